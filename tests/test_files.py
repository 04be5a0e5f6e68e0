"""Files that appear whole, and locks."""

import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from equicolor import _files
from equicolor._files import LockedError, locked, output_folder, written_aside

Start = Callable[..., "subprocess.CompletedProcess[str]"]

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


@pytest.mark.slow
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


@pytest.mark.slow
def test_children_do_not_hold_a_lock(tmp_path: Path, start_script: Start) -> None:
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
        ended = start_script(script)
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


FULL = """
import resource, sys
from pathlib import Path
from equicolor.models import save_model, z2cnn
from equicolor.models.tensor_files import write_pickle
from equicolor.models.export import export
from equicolor.reporting.html import Section, write_report
from equicolor.results import write_results

folder = Path(sys.argv[1])
network = z2cnn(3, width=24)
writers = {
    "network": lambda: save_model(network, folder / "a"),
    "checkpoint": lambda: write_pickle(folder / "a", network.state_dict()),
    "results": lambda: write_results(folder / "a", [{"model": "x" * 10_000}]),
    "report": lambda: write_report(folder / "a", "title", [Section("a", "x" * 10_000)]),
    "script": lambda: export(network, folder / "a", "torchscript", input_size=28),
    "program": lambda: export(network, folder / "a", "exported-program", input_size=28),
}
# No file may be longer: writing fails in the middle, as on a full disk.
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
for name, write in writers.items():
    try:
        write()
    except OSError as error:
        print(name, "refused", len(str(error).splitlines()), len(list(folder.iterdir())))
    else:
        print(name, "written")
"""


@pytest.mark.slow
def test_a_full_disk_is_told_and_leaves_nothing(tmp_path: Path, start_script: Start) -> None:
    pytest.importorskip("resource")
    result = start_script(f"import sys; sys.argv[1:] = [{str(tmp_path)!r}]\n{FULL}")
    assert result.returncode == 0, result.stderr
    lines = [line for line in result.stdout.splitlines() if "refused" in line or "written" in line]
    assert len(lines) == 6
    assert [line for line in lines if not line.endswith("refused 1 0")] == []


@pytest.mark.skipif(os.name == "nt", reason="no /usr")
def test_a_folder_where_nothing_may_be_written_is_refused_before_any_work(
    start_script: Start,
) -> None:
    script = """
import os
from pathlib import Path
from equicolor._files import refuse_files
if os.geteuid() == 0:
    os.setuid(65534)  # nobody: root may write anywhere
refuse_files(Path("/usr/new/results"))
"""
    ended = start_script(script)
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1] == (
        "PermissionError: results go to /usr/new/results, but /usr may not be written to"
    )
