"""Networks whose dropout drops the channels that a test chooses."""

from torch import Tensor, nn

from equicolor.models.z2cnn import Z2CNN

LAYERS = (0, 2, 3, 4)  # with dropout behind them


class _Factors(nn.Module):
    """Multiplies the channels of every image by factors ``[B, C]``."""

    def __init__(self, factors: Tensor) -> None:
        super().__init__()
        self.factors = factors

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factors.view(*self.factors.shape, *[1] * (x.ndim - 2))


def drop(network: Z2CNN, factors: Tensor) -> None:
    """Put factors ``[4, B, C]`` in the place of dropout, layer by layer."""
    for layer, of_layer in zip(LAYERS, factors, strict=True):
        network.blocks[layer][3] = _Factors(of_layer)
