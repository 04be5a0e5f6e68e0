"""``equicolor convert`` looks at what it is told before it computes or writes anything."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from equicolor.cli import app
from equicolor.models import save_model, z2cnn


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_model(z2cnn(2, width=4), tmp_path / "net.safetensors")
    (tmp_path / "old.safetensors").write_bytes(b"kept")
    (tmp_path / "mine.py").write_text("def build():\n    raise RuntimeError('never called')\n")
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("net.safetensors -o old.safetensors --force --data nosuch", "unknown dataset 'nosuch'"),
        ("net.safetensors -o old.safetensors --force --data ./no/such", "no folder of pictures at"),
        ("net.safetensors -o new.txt", r"a checkpoint is written as \*.safetensors, got new.txt"),
        ("mine.py:build -o a", "could not be built again .* in Python.* takes a checkpoint of"),
        ("mine.py -o a", "could not be built again .* in Python.*timm:NAME or torchvision:NAME$"),
        ("gone -o a", "no network at gone; expected a checkpoint.*timm:NAME or torchvision:NAME$"),
        ("notes.md -o a", r"notes.md is no checkpoint; expected a checkpoint of equicolor \(\*.s"),
    ],
)
def test_mistakes_are_found_first(place, arguments, message):
    (place / "notes.md").write_text("# notes")
    before = sorted(place.iterdir())
    result = CliRunner().invoke(app, ["convert", *arguments.split()], prog_name="equicolor")
    assert result.exit_code in (1, 2), result.output
    assert re.search(message, result.stderr.splitlines()[-1])
    assert sorted(place.iterdir()) == before
    assert Path("old.safetensors").read_bytes() == b"kept"
