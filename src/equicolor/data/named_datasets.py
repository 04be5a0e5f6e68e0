"""Datasets whose files have the labels in their names: BreaKHis."""

import re
from collections import defaultdict
from pathlib import Path

from equicolor.data.folder_datasets import SUFFIXES, contents_of, hashed
from equicolor.data.layouts import Contents, Layout

# Such as SOB_M_DC-14-12312-400-001.png: biopsy, benign or malignant, kind of tumour, year, case,
# magnification, number. Letters behind the case, as in 22549AB, name pieces of its tissue.
_NAME = re.compile(r"SOB_([BM])_[A-Z]+-(\d+-\d+)[A-Z]*-400-\d+")
_CLASSES = {"benign": "B", "malignant": "M"}
_IMAGES = 1820
_TESTED = 0.3  # as its authors do


class BreaKHis(Layout):
    """BreaKHis at a magnification of 400: stained breast tissue, benign or malignant.

    Images may lie in any folders below. 30 % of the benign cases and of the malignant ones are for
    testing: those whose hash with the seed is smallest. The images of a case stay together, because
    tissue of one patient, stained once, is easy to recognise.
    """

    folder = "breakhis"
    split_by_seed = True

    def missing(self, root: Path) -> list[str]:
        cases = self._cases(root)
        return [
            f"{self.folder}/**/SOB_{letter}_*-400-*.png of two cases"
            for name, letter in _CLASSES.items()
            if len(cases[name]) < 2
        ]

    def incomplete(self, root: Path) -> list[str]:
        here = sum(len(paths) for cases in self._cases(root).values() for paths in cases.values())
        return [f"{_IMAGES - here} of {_IMAGES} images"] if here < _IMAGES else []

    def read(self, root: Path, split: str, seed: int) -> Contents:
        selected = {}
        for name, cases in self._cases(root).items():
            order = sorted(cases, key=lambda case: hashed(case, seed))
            count = max(1, round(_TESTED * len(order)))
            members = order[:count] if split == "test" else order[count:]
            selected[name] = sorted(path for case in members for path in cases[case])
        return contents_of(selected)

    def _cases(self, root: Path) -> dict[str, dict[str, list[str]]]:
        """The images of every case of every class."""
        classes: dict[str, dict[str, list[str]]] = {name: defaultdict(list) for name in _CLASSES}
        names = {letter: name for name, letter in _CLASSES.items()}
        for path in (root / self.folder).rglob("SOB_*-400-*"):
            match = _NAME.fullmatch(path.stem)
            if match and path.suffix.lower() in SUFFIXES:
                classes[names[match[1]]][match[2]].append(str(path))
        return classes
