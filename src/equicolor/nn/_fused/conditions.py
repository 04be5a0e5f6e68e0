"""Where the fused path of :mod:`equicolor.nn._fused` can be taken."""

import torch
from torch import Tensor, nn

from equicolor import _checks
from equicolor._observed import is_transformed, is_untouched, is_watched
from equicolor.devices import KERNEL_DTYPES, takes_kernels
from equicolor.groups import SpatialGroup
from equicolor.nn.conv import CEConv2d, CELiftConv2d
from equicolor.nn.norm import CEBatchNorm2d
from equicolor.nn.pooling import CEMaxPool2d, CosetMaxPool

# Device types on which networks take this path by default.
DEVICES: tuple[str, ...] = ("cuda",)


def applies(block: nn.Module, x: Tensor) -> bool:
    """Whether a block of convolutions, norms and ReLU can take this path for some features.

    It can on a GPU that Triton compiles for, in float32 or half precision, in training and
    evaluation. It cannot where operations are traced or transformed (torch.compile, export,
    torch.func), nor where something inside the block is observed or replaced (hooks, subclasses
    of layers). The first convolution of the block takes the features ``[B, C, n, H, W]``.
    """
    if not _fits(x, 5):
        return False
    inner = [module for module in block.modules() if module is not block]
    if not all(_takes(module, x) for module in inner):
        return False
    convolutions = [module for module in inner if isinstance(module, CEConv2d)]
    first, groups = convolutions[0], {m.spatial for m in inner if hasattr(m, "spatial")}
    return len(groups) == 1 and first.in_channels * SpatialGroup(first.spatial).order == x.shape[1]


def stem_applies(
    images: Tensor, conv: nn.Module, norm: nn.Module, relu: nn.Module, pool: nn.Module
) -> bool:
    """:func:`applies` for the first layers; ``pool`` is 3×3 with stride 2, or the identity."""
    return (
        _fits(images, 4)
        and images.shape[1] == 3
        and type(conv) is CELiftConv2d
        and type(norm) is CEBatchNorm2d
        and type(relu) is nn.ReLU
        and all(_takes(module, images) for module in (conv, norm, relu))
        and conv.spatial == norm.spatial
        and is_untouched(pool)
        and (type(pool) is nn.Identity or is_stem_pool(pool))
    )


def pool_applies(pool: nn.Module, x: Tensor) -> bool:
    """:func:`applies` for the maximum over the rotations of features."""
    fits = _fits(x, 5)  # first, as torch.compile must not trace the rest
    return fits and type(pool) is CosetMaxPool and pool.spatial == "p1" and is_untouched(pool)


def can_fuse(tensor: Tensor) -> bool:
    """Whether device and dtype of features or weights have this path."""
    return takes_kernels(tensor, DEVICES)


def is_known(module: nn.Module) -> bool:
    """Whether the fused path computes what a layer computes, for any input."""
    if not is_untouched(module):
        return False
    if type(module) is CEBatchNorm2d:
        statistics = module.running_mean, module.running_var, module.num_batches_tracked
        tensors = module.weight, module.bias, *statistics
        # The kernels read them as contiguous vectors, on the device of the weight.
        return all(
            tensor is not None and tensor.is_contiguous() and tensor.device == tensors[0].device
            for tensor in tensors
        )
    if type(module) is CEConv2d and (module.groups > 1 or module.algorithm == "dense"):
        return False
    if type(module) is CEConv2d or type(module) is CELiftConv2d:
        zeros = module.padding_mode == "zeros" and isinstance(module.padding, tuple)
        return zeros and module.bias is None
    return type(module) is nn.ReLU


def is_stem_pool(pool: nn.Module) -> bool:
    """Whether a module is 3×3 max pooling with stride 2 and padding 1."""
    if type(pool) is not CEMaxPool2d or pool.ceil_mode or not is_untouched(pool):
        return False
    options = pool.kernel_size, pool.stride, pool.padding, pool.dilation
    return all(
        option in (size, (size, size)) for option, size in zip(options, (3, 2, 1, 1), strict=True)
    )


def _fits(x: Tensor, dimensions: int) -> bool:
    return (
        # First: torch.compile must not trace the rest.
        not torch.compiler.is_compiling()
        and type(x) in (Tensor, nn.Parameter)
        and x.ndim == dimensions
        and not is_transformed()
        and not is_watched(modules=True)
        and can_fuse(x)
    )


def _takes(module: nn.Module, x: Tensor) -> bool:
    """Whether the fused path knows a module, and the module takes such an input."""
    if type(module) is nn.Sequential:
        children = [type(child) for child in module]
        return is_untouched(module) and children in ([], [CEConv2d, CEBatchNorm2d])
    if not is_known(module):
        return False
    if not isinstance(module, CEConv2d | CELiftConv2d):
        return True
    weight = module.weight
    casts = weight.dtype in KERNEL_DTYPES and _checks.autocasting(x.device)
    of_group = type(module) is CELiftConv2d or module.rotations == x.shape[2]
    return of_group and weight.device == x.device and (weight.dtype == x.dtype or casts)
