"""Which algorithm a hidden layer should use: a cost model, justified by ``benchmarks/layers.py``.

The cyclic algorithm saves multiplications and adds memory traffic, since features are mixed
before and after its convolutions. Per pixel it wins when

    multiplications saved > exchange rate x elements moved by the mixing.

Convolution libraries work on blocks of channels, so channel counts are rounded up to a
block before multiplications are counted. Block and exchange rate are the only measured
numbers here; ``benchmarks/layers.py`` compares the choice with the faster algorithm.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from torch import nn

from equicolor import _checks
from equicolor.groups.cyclic import cyclic_products

ALGORITHMS = ("auto", "dense", "cyclic")


class _Machine(NamedTuple):
    block: int  # channels a convolution kernel handles at once
    exchange_rate: float  # multiplications that take as long as moving one element


# CPU: AVX-512 blocks, fitted to two cores. Others: tensor cores at bfloat16 against HBM.
_CPU = _Machine(block=16, exchange_rate=12)
_ACCELERATOR = _Machine(block=8, exchange_rate=100)


def choose_algorithm(
    rotations: int, weight: Sequence[int], groups: int = 1, device: str = "cpu"
) -> str:
    """``"dense"`` or ``"cyclic"``, whichever should be faster for a layer on a type of device.

    ``weight`` is the shape ``[O, C/g, n or 1, kh, kw]`` of the filters.

    Example:
        >>> choose_algorithm(12, (64, 64, 1, 3, 3)), choose_algorithm(3, (4, 4, 1, 3, 3))
        ('cyclic', 'dense')
    """
    machine = _CPU if device in ("cpu", "meta") else _ACCELERATOR
    outputs, inputs = weight[0] // groups, weight[1]
    taps = groups * math.prod(weight[3:])

    def round_up(channels: int) -> int:
        return math.ceil(channels / machine.block) * machine.block

    def multiplications(copies: int) -> int:
        return taps * round_up(copies * inputs) * round_up(copies * outputs)

    products = cyclic_products(rotations)
    saved = multiplications(rotations) - products * multiplications(1)
    # Before and after the convolutions, mixing moves the products twice and the features once.
    moved = (rotations + 2 * products) * groups * (inputs + outputs)
    return "cyclic" if saved > machine.exchange_rate * moved else "dense"


def set_algorithm(model: nn.Module, algorithm: str) -> nn.Module:
    """Make every hidden layer of a network use one algorithm; returns the network.

    Args:
        model: any module.
        algorithm: ``"auto"``, ``"dense"`` or ``"cyclic"``.

    Example:
        >>> from equicolor.nn import CEConv2d
        >>> set_algorithm(nn.Sequential(CEConv2d(4, 4, 3)), "dense")[0].algorithm
        'dense'
    """
    from equicolor.nn.conv import CEConv2d

    _checks.one_of("algorithm", algorithm, ALGORITHMS)
    for module in model.modules():
        if isinstance(module, CEConv2d):
            module.algorithm = algorithm
    return model
