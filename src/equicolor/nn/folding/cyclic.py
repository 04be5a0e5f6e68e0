"""The cyclic form: every hidden layer is some convolutions between two mixes of rotations."""

import torch
from torch import Tensor, fx, nn

from equicolor.nn.conv import CEConv2d, CELiftConv2d
from equicolor.nn.folding.folder import Folder
from equicolor.nn.folding.plain import conv2d, in_every_hue, matrices_of, turns_back
from equicolor.nn.pooling import CosetFlatten, CosetMaxPool


class CyclicFolder(Folder):
    """Features are ``[n * B, C, H, W]``, rotation-major, in channels_last memory."""

    cyclic = True

    def enter(self, x: fx.Node, rotations: int) -> fx.Node:
        return x

    def leave(self, x: fx.Node, module: CEConv2d) -> fx.Node:
        return x

    def lift(self, node: fx.Node, module: CELiftConv2d, x: fx.Node) -> fx.Node:
        n, matrices = module.rotations, matrices_of(module)
        pixels = self.method(x, "permute", 0, 2, 3, 1)
        if matrices is None:
            colors = self.method(self.method(pixels, "unsqueeze", -1), "unsqueeze", -1)
            colors = self.method(colors, "unsqueeze", 0)
            orbit = self.shifted(node, colors, n, turns_back(n, module.weight, 5), 0)
            orbit = self.method(self.method(orbit, "flatten", -3), "flatten", 0, 1)
            images = self.method(orbit, "permute", 0, 3, 1, 2)
            return self.call(node, "conv", self.plain(module), images)
        weight = in_every_hue(module, matrices)
        bias = None if module.bias is None else module.bias.repeat(n)
        lifted = self.call(node, "conv", conv2d(module, weight, 1, bias), x)
        pixels = self.method(lifted, "permute", 0, 2, 3, 1)
        features = self.method(pixels, "unflatten", 3, (n, module.out_channels))
        features = self.method(features, "permute", 3, 0, 1, 2, 4)
        return self.method(self.method(features, "flatten", 0, 1), "permute", 0, 3, 1, 2)

    def conv(self, node: fx.Node, module: CEConv2d, x: fx.Node) -> fx.Node:
        def plain(weight: Tensor, bias: Tensor | None) -> nn.Conv2d:
            return conv2d(module, weight.unsqueeze(1), module.groups, bias)

        n = module.rotations
        pixels = self.method(self.method(x, "permute", 0, 2, 3, 1), "unflatten", 0, (n, -1))
        mixed = self.mix(self.buffer(node, "analysis", module.analysis), pixels, 1, 0)
        images = self.method(mixed, "permute", 0, 1, 4, 2, 3)  # of [r, b, h, w, c]
        products = self.products(node, module, images, plain)
        joined = self.method(self.function(torch.cat, products), "permute", 0, 2, 3, 1)
        pixels = self.method(joined, "unflatten", 0, (len(products), -1))
        synthesis = self.buffer(node, "synthesis", module.synthesis)
        out = self.mix(synthesis, pixels, 0, 0)  # [n, b, h, w, c]
        return self.method(self.method(out, "flatten", 0, 1), "permute", 0, 3, 1, 2)

    def coset(self, node: fx.Node, module: nn.Module, x: fx.Node, n: int) -> fx.Node:
        features = self.method(x, "unflatten", 0, (n, -1))
        if isinstance(module, CosetFlatten):
            return self.method(self.method(features, "permute", 1, 2, 0, 3, 4), "flatten", 1, 2)
        return self.method(features, "amax" if isinstance(module, CosetMaxPool) else "mean", 0)
