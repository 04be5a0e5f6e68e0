"""Files that appear whole, and locks."""

import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import pytest

from equicolor import _files
from equicolor._files import LockedError, locked, output_folder, written_aside

HOLD = """
import sys, time
from pathlib import Path
sys.path.insert(0, {src!r})
from equicolor._files import locked
with locked(Path({path!r}), "busy"):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    with written_aside(path) as partial:
        partial.write_text("first")
        assert not path.exists()
    assert path.read_text() == "first"

    with written_aside(path) as partial:
        os.close(os.open(partial, os.O_CREAT | os.O_WRONLY, 0o600))  # as safetensors does
        partial.write_text("first")
    usual = tmp_path / "usual"
    usual.touch()
    assert path.stat().st_mode == usual.stat().st_mode

    def fail() -> None:
        with written_aside(path) as partial:
            partial.write_text("half of the sec")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert path.read_text() == "first"
    assert [found.name for found in path.parent.iterdir()] == ["file"]


def test_processes_write_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    with written_aside(path) as mine:
        mine.write_text("mine")
        monkeypatch.setattr(_files.os, "getpid", lambda: 1)
        with written_aside(path) as other:
            assert other != mine
            other.write_text("another's")
        assert path.read_text() == "another's"
    assert path.read_text() == "mine"


def test_a_lock_is_held_against_other_processes_until_they_end(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    script = HOLD.format(src=str(Path(_files.__file__).parents[1]), path=str(path))
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as it:
        assert it.stdout is not None
        assert it.stdout.readline() == "held\n"
        with pytest.raises(LockedError) as caught, locked(path, "here"):
            pass
        assert str(caught.value) == f"process {it.pid} on {platform.node()} is here"
        it.kill()
    with locked(path, "here"):
        assert path.read_text() == f"process {os.getpid()} on {platform.node()}\n"


def test_children_do_not_hold_a_lock(tmp_path: Path) -> None:
    # A worker that outlives a killed run must not keep others from continuing it.
    path = tmp_path / "lock"
    with locked(path, "here"):
        child = os.fork()
        if not child:
            time.sleep(60)
            os._exit(0)
    try:
        script = HOLD.format(src=str(Path(_files.__file__).parents[1]), path=str(path))
        script = script.replace("time.sleep(60)", "pass")
        ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        assert ended.stdout == "held\n", ended.stderr
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


def test_results_do_not_go_into_files(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(
            NotADirectoryError, match=r"results go to a folder, but .*file is a file"
        ):
            output_folder(path)
