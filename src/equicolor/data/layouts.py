"""How datasets are stored on disk: the interface of all readers."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from equicolor.data.images import ImageFile


class Contents(NamedTuple):
    """One split: the fields of :class:`~equicolor.data.ImageSet` that a reader decides."""

    labels: Tensor
    class_names: tuple[str, ...]
    files: Sequence[ImageFile] = ()
    pixels: Tensor | None = None


class Layout(ABC):
    """How a dataset is stored below the data root."""

    split_by_seed = False  # whether the dataset has no split of its own, so that a seed splits it

    @abstractmethod
    def missing(self, root: Path) -> list[str]:
        """Names of missing files and folders, from lists and names alone; no image is opened."""

    def incomplete(self, root: Path) -> list[str]:
        """What is incomplete though no file is missing; the rest can be trained on."""
        return []

    @abstractmethod
    def read(self, root: Path, split: str, seed: int) -> Contents:
        """One split of a dataset with no missing files."""
