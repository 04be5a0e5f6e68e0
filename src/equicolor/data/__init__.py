"""Datasets by name or folder, images decoded once, and their augmentation.

:func:`load_dataset` returns an :class:`ImageSet`, :func:`decode` its pixels;
:mod:`equicolor.data.loaders` makes batches of them with an :class:`Augmentation`.
"""

from equicolor.data.augment import Augmentation
from equicolor.data.augmix import AugMix
from equicolor.data.colormnist import ColorMNIST, Split, biased_colormnist, longtailed_colormnist
from equicolor.data.datasets import (
    DATASETS,
    DatasetInfo,
    MissingDataError,
    data_root,
    find_dataset,
    load_dataset,
)
from equicolor.data.decoding import Decoded, decode, default_cache
from equicolor.data.images import CorruptImageError, ImageFile, ImageSet
from equicolor.data.mnist import Digits, load_mnist

__all__ = [
    "DATASETS",
    "AugMix",
    "Augmentation",
    "ColorMNIST",
    "CorruptImageError",
    "DatasetInfo",
    "Decoded",
    "Digits",
    "ImageFile",
    "ImageSet",
    "MissingDataError",
    "Split",
    "biased_colormnist",
    "data_root",
    "decode",
    "default_cache",
    "find_dataset",
    "load_dataset",
    "load_mnist",
    "longtailed_colormnist",
]
