"""Pictures: where they come from and how they are coloured."""

from equicolor.data.colormnist import ColorMNIST, Split, biased_colormnist, longtailed_colormnist
from equicolor.data.mnist import Digits, load_mnist
from equicolor.data.root import MissingDataError, data_root

__all__ = [
    "ColorMNIST",
    "Digits",
    "MissingDataError",
    "Split",
    "biased_colormnist",
    "data_root",
    "load_mnist",
    "longtailed_colormnist",
]
