"""Layers of a spatial group written as hue layers of more channels, which fold like any others."""

from torch import Tensor, nn

from equicolor.groups import SpatialGroup
from equicolor.nn.conv import CEConv2d, CELiftConv2d
from equicolor.nn.functional import spatial_bank
from equicolor.nn.norm import CEBatchNorm2d, CEDropout2d


def expand_spatial(model: nn.Module) -> None:
    """Give layers of a spatial group the filters of all its elements, in place.

    Coset pooling stays as it is. Weights must not be parametrized.
    """
    for module in list(model.modules()):
        if getattr(module, "spatial", "p1") == "p1":
            continue
        if isinstance(module, CELiftConv2d | CEConv2d):
            _expand_convolution(module)
        elif isinstance(module, CEBatchNorm2d):
            _expand_norm(module)
        elif isinstance(module, CEDropout2d):
            module.spatial = "p1"  # it does nothing in inference


def _expand_convolution(module: CELiftConv2d | CEConv2d) -> None:
    of_images = isinstance(module, CELiftConv2d)
    order = SpatialGroup(module.spatial).order
    for name, parameter in list(module.named_parameters(recurse=False)):
        if name == "bias":
            _set(module, name, parameter.repeat_interleave(order))
        elif name != "transformation_matrix":
            _set(module, name, spatial_bank(parameter, module.spatial, of_images=of_images))
    module.out_channels *= order
    if not of_images:
        module.in_channels *= order
    module.spatial = "p1"


def _expand_norm(module: CEBatchNorm2d) -> None:
    order = SpatialGroup(module.spatial).order
    for name, tensor in list(module.state_dict(keep_vars=True).items()):
        if tensor.ndim:
            _set(module, name, tensor.repeat_interleave(order))
    module.num_features *= order
    module.spatial = "p1"


def _set(module: nn.Module, name: str, value: Tensor) -> None:
    """Replace a parameter or buffer."""
    value = value.detach()
    is_parameter = name in module._parameters
    setattr(module, name, nn.Parameter(value, requires_grad=False) if is_parameter else value)
