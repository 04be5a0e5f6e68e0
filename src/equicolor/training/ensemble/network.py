"""Many seven-layer networks as one: grouped convolutions, one group per network.

The result is that of running :class:`equicolor.models.z2cnn.Z2CNN` networks one by one, up to
rounding. On a GPU it is many times faster, since one small network leaves most of the GPU idle.
Activations are ``[B, S * P, H, W]`` in channels_last memory: S networks with P lanes each. A lane
is a channel c in one of its n hues k, at ``k * C + c``; lanes are padded with zeros to numbers for
which grouped convolution is fast.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor

from equicolor.color import rotation_matrix, shift_hue_orbit
from equicolor.models.z2cnn import DEPTH, DROPPING, Z2CNN
from equicolor.nn.functional import dense_filters

State = Mapping[str, Tensor]
MOMENTUM, EPS = 0.1, 1e-5  # of torch's batch norms
# Lanes per network in grouped convolutions. Measured on one H200, bfloat16: 64 are four times
# faster than 51 or 56, and five times faster per product than 192.
BLOCK = 64


def stack_states(networks: Sequence[Z2CNN]) -> dict[str, Tensor]:
    """State dicts of equal networks, stacked along a new first dimension."""
    states = [network.state_dict() for network in networks]
    return {key: torch.stack([state[key] for state in states]) for key in states[0]}


@dataclass(frozen=True)
class StackedZ2CNN:
    """The forward pass of S networks of one architecture."""

    width: int
    rotations: int = 1
    ce_layers: int = 0
    coset_pool: str | None = None
    lifting: str = "rgb"
    # What convolutions compute in; statistics and logits are float32.
    dtype: torch.dtype = torch.float32
    pad: bool = False  # whether to pad lanes for the GPU's grouped convolutions

    @classmethod
    def like(
        cls, network: Z2CNN, *, dtype: torch.dtype = torch.float32, pad: bool = False
    ) -> "StackedZ2CNN":
        """The stacked form of a network's architecture."""
        spatial = network.config.get("spatial", "p1")
        if spatial != "p1":
            raise ValueError(f"networks with spatial={spatial!r} cannot be trained as one")
        options = ("width", "rotations", "ce_layers", "coset_pool", "lifting")
        architecture = {key: network.config[key] for key in options if key in network.config}
        return cls(**architecture, dtype=dtype, pad=pad)

    def logits(
        self, state: State, images: Tensor, *, training: bool = False, dropout: Tensor | None = None
    ) -> Tensor:
        """Logits of every network for its own images.

        Args:
            state: stacked parameters and buffers, keys as in the network's state dict;
                training updates the running statistics in place.
            images: ``[S, B, 3, 28, 28]``.
            training: normalise with the statistics of the batch.
            dropout: factors ``[4, B, S, C]`` for the channels of the layers with dropout; None
                drops nothing.

        Returns:
            float32 ``[S, B, num_classes]``.
        """
        networks, batch = images.shape[:2]
        x = images.to(self.dtype)
        dropping = {} if dropout is None else dict(zip(DROPPING, dropout, strict=True))
        for layer in range(DEPTH):
            n = self._hues(layer)
            y = self._lift(state, x) if layer == 0 else self._conv(state, layer, x, networks)
            x = self._activate(state, layer, y, networks, dropping.get(layer), training=training)
            if layer == 1:
                x = F.max_pool2d(x, 2)
            if layer == self.ce_layers - 1:
                x = self._coset(x, networks, n)
        lanes = x.view(batch, networks, -1).transpose(0, 1)
        weight, bias = state["classifier.weight"], state["classifier.bias"]
        if self.ce_layers == DEPTH and self.coset_pool is None:
            # The classifier orders features (channel, hue), the lanes (hue, channel).
            weight = weight.unflatten(2, (-1, self.rotations)).transpose(2, 3).flatten(2)
        lanes = lanes[..., : weight.shape[2]].float()
        return lanes @ weight.transpose(1, 2) + bias[:, None]

    def _hues(self, layer: int) -> int:
        return self.rotations if layer < self.ce_layers else 1

    def _lanes(self, count: int) -> int:
        if not self.pad:
            return count
        return 32 if count <= 32 else -(-count // BLOCK) * BLOCK

    def _pad(self, x: Tensor, at_least: int = 0) -> Tensor:
        """Pad the last dimension with zeros to the number of lanes."""
        return F.pad(x, (0, self._lanes(max(x.shape[-1], at_least)) - x.shape[-1]))

    def _lift(self, state: State, images: Tensor) -> Tensor:
        """The first layer: rotated filters on the image, or one filter on its shifted hues."""
        weight = state["blocks.0.0.weight"]
        weight = weight.squeeze(3) if self.ce_layers else weight  # [S, O, 3, kh, kw]
        n = self._hues(0)
        if n > 1 and self.lifting == "hsv":
            orbit = shift_hue_orbit(images.float(), n).to(self.dtype)
            images = orbit.permute(1, 2, 0, 3, 4, 5).flatten(2, 3)  # [S, B, n * 3, H, W]
            identity = torch.eye(n, device=weight.device, dtype=weight.dtype)
            bank = torch.einsum("kr,soihw->skorihw", identity, weight).flatten(1, 2).flatten(2, 3)
        elif n > 1:
            # Made on the device: a CUDA graph cannot copy from the host.
            rotations = rotation_matrix(torch.arange(n, device=weight.device) / n)
            bank = torch.einsum("kij,sojhw->skoihw", rotations, weight).flatten(1, 2)
        else:
            bank = weight
        # With other numbers of lanes in than out, cuDNN would take slow kernels.
        at_least = bank.shape[1] if self.pad else 0
        lanes = self._pad(images.permute(1, 3, 4, 0, 2), at_least)  # [B, H, W, S, lanes]
        return self._grouped(lanes.flatten(3).permute(0, 3, 1, 2), bank)

    def _conv(self, state: State, layer: int, x: Tensor, networks: int) -> Tensor:
        n = self._hues(layer)
        weight = state[f"blocks.{layer}.0.weight"].flatten(0, 1)
        if n == 1:
            return self._grouped(x, weight.unflatten(0, (networks, -1)))
        pointwise = state[f"blocks.{layer}.0.pointwise_weight"].flatten(0, 1)
        filters = dense_filters(weight, pointwise, n)  # [k, S * O, I, r, kh, kw]
        filters = filters.unflatten(1, (networks, -1)).permute(1, 0, 2, 4, 3, 5, 6)
        return self._grouped(x, filters.flatten(1, 2).flatten(2, 3))

    def _grouped(self, x: Tensor, bank: Tensor) -> Tensor:
        """Convolve the lanes of every network with its own filters ``[S, out, in, kh, kw]``."""
        networks, outputs, inputs = bank.shape[:3]
        spare = x.shape[1] // networks - inputs, self._lanes(outputs) - outputs
        bank = F.pad(bank, (0, 0, 0, 0, 0, spare[0], 0, spare[1])).to(self.dtype)
        if not self.pad or bank.shape[1] <= BLOCK:
            return _convolve(x, bank)
        # Larger groups are slow: convolve every block of inputs with every block of outputs.
        lanes = x.unflatten(1, (networks, -1, BLOCK)).unbind(2)
        blocks = [part.flatten(1, 2) for part in lanes]
        rows = bank.unflatten(1, (-1, BLOCK)).unflatten(3, (-1, BLOCK)).unbind(1)
        parts = []
        for row in rows:
            terms = [_convolve(*pair) for pair in zip(blocks, row.unbind(2), strict=True)]
            parts.append(functools.reduce(torch.add, terms).unflatten(1, (networks, BLOCK)))
        y = torch.stack(parts, 2).flatten(1, 3)
        return y.contiguous(memory_format=torch.channels_last)

    def _activate(
        self,
        state: State,
        layer: int,
        y: Tensor,
        networks: int,
        factors: Tensor | None,
        *,
        training: bool,
    ) -> Tensor:
        """Batch norm over all hues of a channel, ReLU and dropout."""
        n = self._hues(layer)
        names = "running_mean", "running_var", "weight", "bias"
        running_mean, running_var, weight, shift = (state[f"blocks.{layer}.1.{p}"] for p in names)
        # The convolution has no bias, since the mean of the batch would cancel it.
        bias = state[f"blocks.{layer}.0.bias"].detach()
        if factors is not None:
            factors = self._pad(factors[:, :, None].expand(-1, -1, n, -1).flatten(2)).flatten(1)
        if networks == 1 and not self.pad:
            # A single network needs no lanes: torch's own kernel, on [B, C, H, W * n].
            pixels = y.permute(0, 2, 3, 1)
            hues = pixels.unflatten(3, (n, -1)).flatten(2, 3).permute(0, 3, 1, 2).float()
            mean = running_mean[0] - bias[0]
            affine = weight[0], shift[0], training, MOMENTUM, EPS
            normed = F.batch_norm(hues, mean, running_var[0], *affine)
            if training:
                running_mean[0].copy_(mean + bias[0])
            normed = normed.permute(0, 2, 3, 1).reshape(pixels.shape).permute(0, 3, 1, 2)
            active = F.relu(normed)
            dropped = active if factors is None else active * factors[..., None, None]
            return dropped.to(y.dtype)
        if not training:
            mean, var = running_mean - bias, running_var
            return scale_and_cut(y, mean, var, weight, shift, factors, n)
        norm = _kernels().norm_and_cut if y.is_cuda else norm_and_cut
        out, mean, var = norm(y, weight, shift, factors, n)
        with torch.no_grad():
            count = n * y.shape[0] * y.shape[2] * y.shape[3]
            running_mean.lerp_(mean + bias, MOMENTUM)
            running_var.lerp_(var * (count / (count - 1)), MOMENTUM)
        return out

    def _coset(self, x: Tensor, networks: int, n: int) -> Tensor:
        if self.coset_pool is None:
            return x
        lanes = x.permute(0, 2, 3, 1).unflatten(3, (networks, -1))[..., : n * self.width]
        hues = lanes.unflatten(4, (n, -1))
        pooled = hues.amax(4) if self.coset_pool == "max" else hues.mean(4)
        return self._pad(pooled).flatten(3).permute(0, 3, 1, 2)


def _convolve(x: Tensor, bank: Tensor) -> Tensor:
    """Convolve ``[B, S * in, H, W]`` with the filters ``[S, out, in, kh, kw]``."""
    x = x.contiguous(memory_format=torch.channels_last)
    filters = bank.flatten(0, 1).contiguous(memory_format=torch.channels_last)
    return F.conv2d(x, filters, groups=len(bank))


def _kernels() -> ModuleType:
    # Only torch's CUDA builds bring Triton.
    from equicolor.training.ensemble import norm_kernels

    return norm_kernels


def norm_and_cut(
    y: Tensor, weight: Tensor, shift: Tensor, factors: Tensor | None, n: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Batch norm over all hues of a channel, ReLU and dropout; also the mean and variance.

    Args:
        y: ``[B, S * P, H, W]`` in channels_last memory.
        weight, shift: of the norm, ``[S, C]``.
        factors: of dropout, float32 ``[B, S * P]``; not differentiated.
        n: hues of a channel.
    """
    lane_var, lane_mean = torch.var_mean(y.float(), (0, 2, 3), correction=0)
    mean, var = join_hues(lane_mean, lane_var, weight.shape, n)
    return scale_and_cut(y, mean, var, weight, shift, factors, n), mean, var


def scale_and_cut(
    y: Tensor,
    mean: Tensor,
    var: Tensor,
    weight: Tensor,
    shift: Tensor,
    factors: Tensor | None,
    n: int,
) -> Tensor:
    """Normalise with given statistics, cut with ReLU, and drop channels."""
    scale = weight * torch.rsqrt(var + EPS)
    scales, shifts = (
        to_lanes(value, n, y.shape[1])[:, None, None] for value in (scale, shift - mean * scale)
    )
    out = F.relu(y.float() * scales + shifts)
    if factors is not None:
        out = out * factors[..., None, None]
    return out.to(y.dtype)


def join_hues(
    lane_mean: Tensor, lane_var: Tensor, shape: torch.Size, n: int
) -> tuple[Tensor, Tensor]:
    """Mean and variance of channels, of shape ``[S, C]``, from those of their lanes."""
    networks, channels = shape
    means, variances = (
        value.view(networks, -1)[:, : n * channels].unflatten(1, (n, channels))
        for value in (lane_mean, lane_var)
    )
    mean = means.mean(1)
    return mean, variances.mean(1) + (means - mean[:, None]).square().mean(1)


def to_lanes(value: Tensor, n: int, lanes: int) -> Tensor:
    """Repeat numbers of channels, ``[S, C]``, for each of their lanes; padding lanes get zero."""
    networks, channels = value.shape
    spare = lanes // networks - n * channels
    return F.pad(value[:, None].expand(-1, n, -1).flatten(1), (0, spare)).flatten()
