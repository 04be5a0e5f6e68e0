"""Datasets whose files have the labels in their names."""

import hashlib
from pathlib import Path

import pytest
from tests.data import trees

from equicolor.data.datasets import MissingDataError, load_dataset

MALIGNANT = ("14-12312", "14-11031", "14-15570", "14-18842", "15-190")


def cases(root: Path, split: str, seed: int = 0) -> set[str]:
    files = load_dataset("breakhis", split, root=root, seed=seed).files
    assert all("-400-" in file.path.name for file in files)
    return {"-".join(file.path.name.split("-")[1:3]).rstrip("ABCDEF") for file in files}


@pytest.mark.parametrize("seed", [0, 5])
def test_the_cases_of_smallest_hash_are_tested_on(seed: int, tmp_path: Path) -> None:
    trees.breakhis(tmp_path)
    order = sorted(MALIGNANT, key=lambda c: hashlib.sha256(f"{seed} {c}".encode()).hexdigest())
    assert set(order[:2]) == cases(tmp_path, "test", seed) & set(MALIGNANT)
    assert set(order[2:]) == cases(tmp_path, "train", seed) & set(MALIGNANT)


def test_no_case_is_trained_and_tested_on(tmp_path: Path) -> None:
    trees.breakhis(tmp_path)
    train, test = cases(tmp_path, "train"), cases(tmp_path, "test")
    assert not train & test
    assert len(train | test) == 8


def test_pieces_of_the_same_case_stay_together(tmp_path: Path) -> None:
    trees.breakhis(tmp_path)
    place = tmp_path / "breakhis" / "elsewhere"
    for number, piece in enumerate(("", "AB", "CD", "EF", "GH")):
        trees.write(place / f"SOB_B_A-14-22549{piece}-400-009.png", 9500 + number)
    for split in ("train", "test"):
        names = [file.path.name for file in load_dataset("breakhis", split, root=tmp_path).files]
        assert sum("14-22549" in name for name in names) in (0, 7)


def test_other_files_are_left_out(tmp_path: Path) -> None:
    expected = trees.breakhis(tmp_path)
    place = tmp_path / "breakhis"
    for name in ("SOB_M_DC-14-1-400-001.txt", "notes-400-1.png", "SOB_X_DC-14-1-400-001.png"):
        (place / name).write_bytes(b"no image")
    assert load_dataset("breakhis", "train", root=tmp_path).labels.tolist() == expected.train


def test_one_case_cannot_be_split(tmp_path: Path) -> None:
    trees.breakhis(tmp_path)
    for path in (tmp_path / "breakhis").rglob("SOB_B_*.png"):
        if "22549" not in path.name:
            path.unlink()
    with pytest.raises(MissingDataError, match=r"no breakhis/\*\*/SOB_B_\*-400-\*.png of two"):
        load_dataset("breakhis", "train", root=tmp_path)
