"""Images with labels: undecoded files, or pixels."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from equicolor import _checks
from equicolor.data.image_files import CorruptImageError, ImageFile, ImageFiles

__all__ = ["Contents", "CorruptImageError", "ImageFile", "ImageFiles", "ImageSet"]

SPLITS = ("train", "test")


class Contents(NamedTuple):
    """What a layout reads: labels, class names, and files or pixels, as in :class:`ImageSet`."""

    labels: Tensor
    class_names: tuple[str, ...]
    files: Sequence[ImageFile] = ()
    pixels: Tensor | None = None


@dataclass(frozen=True)
class ImageSet:
    """One part of a dataset.

    Attributes:
        name: of the dataset.
        split: ``"train"`` or ``"test"``.
        labels: int64 :math:`[N]`.
        class_names: one a class.
        files: the undecoded images, kept as :class:`ImageFiles`; empty if there are pixels.
        pixels: the decoded ones, uint8 :math:`[N, 3, H, W]`; None if there are files.
        root: the folder that the dataset's own names of its files begin at, if there is one.

    Example:
        >>> pixels = torch.zeros(2, 3, 32, 32, dtype=torch.uint8)
        >>> len(ImageSet("toy", "train", torch.tensor([0, 1]), ("cat", "dog"), pixels=pixels))
        2
    """

    name: str
    split: str
    labels: Tensor
    class_names: tuple[str, ...]
    files: Sequence[ImageFile] = ()
    pixels: Tensor | None = None
    root: Path | None = None

    def __post_init__(self) -> None:
        _checks.one_of("split", self.split, SPLITS)
        object.__setattr__(self, "files", ImageFiles(self.files))
        what = f"ImageSet({self.name!r})"
        if self.labels.dtype != torch.int64 or self.labels.ndim != 1 or not len(self.labels):
            raise ValueError(
                f"{what} expects int64 labels [N], got {self.labels.dtype} "
                f"{list(self.labels.shape)}"
            )
        if self.pixels is not None:
            shape = list(self.pixels.shape)
            if self.pixels.dtype != torch.uint8 or len(shape) != 4 or shape[1] != 3:
                raise ValueError(
                    f"{what} expects uint8 pixels [N, 3, H, W], got {self.pixels.dtype} {shape}"
                )
            if self.files:
                raise ValueError(f"{what} expects files or pixels, got both")
        count = len(self.files) if self.pixels is None else len(self.pixels)
        if count != len(self.labels):
            raise ValueError(f"{what} got {count} images and {len(self.labels)} labels")
        low, high = int(self.labels.min()), int(self.labels.max())
        if low < 0 or high >= len(self.class_names):
            raise ValueError(
                f"{what} got labels from {low} to {high} for {len(self.class_names)} class names"
            )

    def __len__(self) -> int:
        return len(self.labels)
