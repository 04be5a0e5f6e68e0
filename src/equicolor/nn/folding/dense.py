"""The dense form: every layer is one convolution of all rotations."""

import torch
from torch import fx, nn

from equicolor.nn.conv import CEConv2d, CELiftConv2d
from equicolor.nn.folding.folder import Folder
from equicolor.nn.folding.plain import conv2d, in_every_hue, matrices_of, turns_back
from equicolor.nn.functional import dense_filters
from equicolor.nn.pooling import CosetFlatten, CosetMaxPool


class DenseFolder(Folder):
    """Features are ``[B, C * n, H, W]``, channel-major, so that flattening costs nothing."""

    cyclic = False

    def enter(self, x: fx.Node, rotations: int) -> fx.Node:
        parts = self.method(x, "unflatten", 0, (rotations, -1))
        return self.method(self.method(parts, "permute", 1, 2, 0, 3, 4), "flatten", 1, 2)

    def leave(self, x: fx.Node, module: CEConv2d) -> fx.Node:
        parts = self.method(x, "unflatten", 1, (module.out_channels, module.rotations))
        return self.method(self.method(parts, "permute", 2, 0, 1, 3, 4), "flatten", 0, 1)

    def lift(self, node: fx.Node, module: CELiftConv2d, x: fx.Node) -> fx.Node:
        n, matrices = module.rotations, matrices_of(module)
        if matrices is not None:
            weight = in_every_hue(module, matrices).transpose(0, 1)
            return self.call(node, "conv", conv2d(module, weight, 1), x)
        # Hues lie beside the channels; the filters of a rotation see only their own hue.
        hues = self.method(x, "unsqueeze", 1)
        orbit = self.shifted(node, hues, n, turns_back(n, module.weight, 2), 1)  # [B, n, 3, H, W]
        own = torch.eye(n, device=module.weight.device, dtype=module.weight.dtype)
        weight = torch.einsum("kl,ochw->oklchw", own, module.weight[:, :, 0]).flatten(2, 3)
        lifted = self.method(orbit, "flatten", 1, 2)
        return self.call(node, "conv", conv2d(module, weight, 1), lifted)

    def conv(self, node: fx.Node, module: CEConv2d, x: fx.Node) -> fx.Node:
        bank = dense_filters(module.weight, module.pointwise_weight, module.rotations)
        weight = bank.movedim(0, 1).flatten(2, 3)  # [O, k, C/g * r, kh, kw]
        return self.call(node, "conv", conv2d(module, weight, module.groups), x)

    def coset(self, node: fx.Node, module: nn.Module, x: fx.Node, n: int) -> fx.Node:
        if isinstance(module, CosetFlatten):
            return self.method(x, "clone")  # as eager mode copies: x may be changed in place
        features = self.method(x, "unflatten", 1, (-1, n))
        return self.method(features, "amax" if isinstance(module, CosetMaxPool) else "mean", 2)
