"""An equivariant stem beside the frozen stem of a pretrained network."""

import copy
from collections.abc import Iterator
from typing import Any, Self

import torch
from torch import Tensor, nn

from equicolor import _checks
from equicolor.conversion.dry_run import dry_run
from equicolor.conversion.layers import replace
from equicolor.conversion.source import choose_image_size, find_normalization
from equicolor.conversion.supported import ConversionError, check_network
from equicolor.models.layers import Normalize
from equicolor.nn.batched import BatchedCEConv2d, BatchedCosetPool, HueLift


class AdaptedStem(nn.Module):
    """A frozen convolution of images, plus an equivariant branch times a gate that starts at 0.

    The branch starts from a copy of the convolution's filters.
    """

    def __init__(self, stem: nn.Conv2d, lift: HueLift, coset_pool: str) -> None:
        super().__init__()
        channels, like = stem.out_channels, stem.weight
        options: dict[str, Any] = {"device": like.device, "dtype": like.dtype}
        self.stem = stem
        self.adapter = nn.Sequential(
            lift,
            copy.deepcopy(stem).requires_grad_(True),
            nn.BatchNorm2d(channels, **options),
            nn.ReLU(),
            BatchedCEConv2d(channels, channels, 3, padding=1, rotations=lift.rotations, **options),
            BatchedCosetPool(lift.rotations, coset_pool),
        )
        self.gate = nn.Parameter(torch.zeros(channels, 1, 1, **options))

    def forward(self, images: Tensor) -> Tensor:
        """Images ``[B, 3, H, W]`` to features ``[B, C, H', W']``."""
        return self.stem(images) + self.gate * self.adapter(images)


class AdaptedNetwork(nn.Module):
    """A frozen network with an adapted stem; made by :func:`adapt`.

    Only the adapter is trained. The rest stays in eval mode whatever ``train()`` says, so that
    its batch norms keep their statistics.

    Attributes:
        network: the frozen network, its stem replaced.
        stem: what replaced it, with the adapter.
    """

    stem: AdaptedStem

    def __init__(self, network: nn.Module, stem: AdaptedStem) -> None:
        super().__init__()
        self.network = network
        object.__setattr__(self, "stem", stem)  # not registered: a part of the network
        network.requires_grad_(False)
        for parameter in self.adapter_parameters():
            parameter.requires_grad_(True)
        self.train(False)

    def forward(self, images: Tensor) -> Any:
        """The input of the original network to its output."""
        return self.network(images)

    def train(self, mode: bool = True) -> Self:
        """Train the adapter; the frozen network stays in eval mode."""
        super().train(mode)
        self.network.eval()
        self.stem.adapter.train(mode)
        return self

    def adapter_parameters(self) -> Iterator[nn.Parameter]:
        """What is trained, for an optimizer."""
        yield self.stem.gate
        yield from self.stem.adapter.parameters()


def adapt(
    model: nn.Module,
    stem: str = "auto",
    rotations: int = 6,
    lifting: str = "hsv",
    coset_pool: str = "max",
    *,
    normalization: Any = "auto",
    image_size: int | None = None,
    check_range: bool = True,
) -> AdaptedNetwork:
    """A frozen copy of a network with a hue-invariant branch beside its first convolution.

    The branch is lifted to all hues, mixes them and pools them; its gate is zero at first, so
    the network starts as it was, to the bit. It takes what the original takes: where that is
    normalised images, the branch undoes the normalisation before it shifts hues. Works for any
    network that begins with a convolution, vision transformers included.

    Args:
        model: a network of images. It is not changed.
        stem: the path of the convolution that sees the images; ``"auto"`` is the first.
        rotations, lifting: as in :func:`equicolor.convert`.
        coset_pool: ``"max"`` or ``"avg"``.
        normalization: how the images that the first convolution sees are normalised; as in
            :func:`equicolor.convert`.
        image_size: height and width of the images the network is tried with.
        check_range: refuse images that are not in [0, 1] once the normalisation is undone.

    Returns:
        A network of which only the adapter has parameters that require a gradient.

    Example:
        >>> plain = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 5))
        >>> network = adapt(plain, normalization=None, image_size=8)
        >>> images = torch.rand(2, 3, 8, 8)
        >>> torch.equal(network(images), plain(images))
        True
        >>> [name for name, p in network.named_parameters() if p.requires_grad][:2]
        ['network.0.gate', 'network.0.adapter.1.weight']
    """
    _checks.one_of("coset_pool", coset_pool, ("max", "avg"))
    check_network(model)
    normalizers = [module for module in model.modules() if isinstance(module, Normalize)]
    if isinstance(normalization, str) and normalization == "auto" and normalizers:
        normalization = tuple(normalizers[0].numbers.values())  # of what the stem sees
    mean, std = find_normalization(model, normalization)
    network = copy.deepcopy(model)
    run = dry_run(model, choose_image_size(model, image_size))
    modules = dict(network.named_modules())
    convolutions = [path for path in run.calls if isinstance(modules[path], nn.Conv2d)]
    convolutions.sort(key=lambda path: run.calls[path][0].start)
    possible = [path for path in convolutions if modules[path].in_channels == 3]
    if not possible:
        kind = type(model).__name__
        raise ConversionError(f"{kind} has no convolution of images with 3 channels")
    path = convolutions[0] if stem == "auto" else stem
    if path not in possible:
        raise ConversionError(
            f"stem must be the path of a convolution of images with 3 channels, such as "
            f"{possible[0]!r}; got {path!r}"
        )
    plain: Any = modules[path]
    lift = HueLift(
        rotations,
        lifting,
        mean=mean,
        std=std,
        takes="images" if mean is None else "normalized",
        check_range=check_range,
    )
    adapted = AdaptedStem(plain, lift.to(plain.weight.device, plain.weight.dtype), coset_pool)
    holder = nn.ModuleList([network])  # the network may be the stem itself
    replace(holder, plain, adapted)
    return AdaptedNetwork(holder[0], adapted)
