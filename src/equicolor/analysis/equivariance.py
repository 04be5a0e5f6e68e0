"""How equivariant every layer of a network is, measured on images."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from equicolor import _checks
from equicolor.analysis.layers import Layer
from equicolor.analysis.taps import run_tapped
from equicolor.testing import ACTIONS, relative_deviation


@torch.no_grad()
def layer_equivariance(
    network: nn.Module,
    images: Tensor,
    layers: Mapping[str, Layer],
    *,
    rotations: int = 3,
    action: str = "hsv",
) -> dict[str, float]:
    """The worst relative equivariance error of every layer over the hue group.

    As :func:`equicolor.testing.equivariance_error` for a whole network, but for all layers in n
    passes. When the hue of an image is shifted by 1/n, layers with n rotations should roll them;
    the features of all others should not change, which is invariance.

    Args:
        network: takes images in [0, 1]; run in eval mode.
        images: :math:`[B, 3, H, W]`.
        layers: of :func:`equicolor.analysis.find_layers`.
        rotations: the order :math:`n` of the group.
        action: the kind of hue shift, ``"rgb"`` or ``"hsv"``, as in the network's lifting.

    Returns:
        The error by the name of the layer.

    Example:
        >>> from equicolor.analysis import find_layers
        >>> from equicolor.models import cecnn
        >>> network, images = cecnn(rotations=3).double(), torch.rand(2, 3, 28, 28).double()
        >>> errors = layer_equivariance(network, images, find_layers(network, 28))
        >>> max(errors.values()) < 1e-10
        True
    """
    _checks.positive_int("rotations", rotations)
    _checks.one_of("action", action, tuple(ACTIONS))
    _checks.images_in_range("layer_equivariance", images)
    reference: dict[str, Tensor] = {}
    errors = dict.fromkeys(layers, 0.0)

    def receive(name: str, output: object) -> None:
        features = layers[name].features(output, len(images))
        if step == 0:
            reference[name] = features.clone()  # the next layer may work in place
            return
        expected = reference[name]
        if expected.shape[2] == rotations:
            expected = expected.roll(step, 2)
        errors[name] = max(errors[name], relative_deviation(features, expected))

    for step in range(rotations):
        run_tapped(network, ACTIONS[action](images, step / rotations), layers, receive)
    return errors
