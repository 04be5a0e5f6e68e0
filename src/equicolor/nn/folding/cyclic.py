"""The cyclic form: every hidden layer some convolutions between two mixes of the rotations."""

import operator

import torch
from torch import fx, nn

from equicolor.nn.conv import CEConv2d, CELiftConv2d
from equicolor.nn.folding.folder import Folder
from equicolor.nn.folding.plain import batch_norm, conv2d, in_every_hue, matrices_of, turns_back
from equicolor.nn.functional import cyclic_filters
from equicolor.nn.norm import CEBatchNorm2d
from equicolor.nn.pooling import CosetFlatten, CosetMaxPool


class CyclicFolder(Folder):
    """Features are ``[n * B, C, H, W]``, rotation-major, in channels_last memory."""

    cyclic = True

    def enter(self, x: fx.Node, rotations: int) -> fx.Node:
        """Features ``[n * B, C, H, W]`` in this layout."""
        return x

    def leave(self, x: fx.Node, module: CEConv2d) -> fx.Node:
        """Features of this layout as ``[n * B, C, H, W]``."""
        return x

    def lift(self, node: fx.Node, module: CELiftConv2d, x: fx.Node) -> fx.Node:
        """A lifting convolution of images ``[B, 3, H, W]``."""
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
        """A hidden convolution."""
        n = module.rotations
        tables = module.tables
        analysis = self.buffer(node, "analysis", tables.analysis)
        synthesis = self.buffer(node, "synthesis", tables.synthesis)
        filters = cyclic_filters(module.weight, module.pointwise_weight, tables)
        pixels = self.method(self.method(x, "permute", 0, 2, 3, 1), "unflatten", 0, (n, -1))
        mixed = self.mix(analysis, pixels, 1, 0)  # [r, b, h, w, c]
        images = self.method(mixed, "permute", 0, 1, 4, 2, 3)
        products = []
        for index, weight in enumerate(filters):
            part = self.graph.call_function(operator.getitem, (images, index))
            # The first product is the mean over the rotations: n times the bias comes out as it.
            bias = None if module.bias is None or index else n * module.bias
            plain = conv2d(module, weight.unsqueeze(1), module.groups, bias)
            products.append(self.call(node, f"product{index}", plain, part))
        joined = self.method(
            self.graph.call_function(torch.cat, (products,)), "permute", 0, 2, 3, 1
        )
        pixels = self.method(joined, "unflatten", 0, (tables.products, -1))
        out = self.mix(synthesis, pixels, 0, 0)  # [n, b, h, w, c]
        return self.method(self.method(out, "flatten", 0, 1), "permute", 0, 3, 1, 2)

    def norm(self, module: CEBatchNorm2d, n: int) -> nn.BatchNorm2d:
        """A batch norm that no convolution could take in."""
        return batch_norm(module, 1)

    def coset(self, node: fx.Node, module: nn.Module, x: fx.Node, n: int) -> fx.Node:
        """Pooling over the rotations, or flattening them."""
        features = self.method(x, "unflatten", 0, (n, -1))
        if isinstance(module, CosetFlatten):
            return self.method(self.method(features, "permute", 1, 2, 0, 3, 4), "flatten", 1, 2)
        return self.method(features, "amax" if isinstance(module, CosetMaxPool) else "mean", 0)
