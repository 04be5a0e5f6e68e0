"""Build a converted network again from its configuration, as checkpoints do."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from equicolor.conversion.building import build, plan_for
from equicolor.conversion.dry_run import dry_run, tensors_of
from equicolor.conversion.network import ConvertedNetwork
from equicolor.conversion.normalization import Normalization
from equicolor.conversion.sources import Source, build_source

__all__ = ["converted", "same_outputs"]


def converted(
    *,
    source: str,
    source_options: Mapping[str, Any] | None = None,
    rotations: int = 3,
    lifting: str = "hsv",
    until: str | None = None,
    coset_pool: str | None = "max",
    takes: str = "images",
    check_range: bool = True,
    image_size: int = 224,
    resize: int | None = None,
    init: str = "pretrained",
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    channels: Sequence[tuple[int, int]] | None = None,
) -> ConvertedNetwork:
    """The network that a configuration of :func:`equicolor.convert` describes, without weights.

    Args:
        source, source_options: of :class:`equicolor.conversion.Source`.
        rotations, lifting, until, coset_pool, takes, check_range, image_size, init: of
            :func:`equicolor.convert`.
        resize: the short side of an image before its centre is cropped, if that is known.
        mean, std: of the normalisation.
        channels: pairs of old and new channel counts, if parameters were matched.

    Example:
        >>> from equicolor.conversion import convert
        >>> from equicolor.models import z2cnn
        >>> options = dict(convert(z2cnn(3), rotations=4).config)
        >>> options.pop("model")
        'converted'
        >>> converted(**options).rotations
        4
    """
    original = build_source(Source(source, dict(source_options or {})))
    run = dry_run(original, image_size)
    plan = plan_for(original, run, until)
    numbers = Normalization(
        None if mean is None else tuple(mean), None if std is None else tuple(std)
    )
    network = build(
        original,
        plan,
        run,
        image_size,
        numbers,
        rotations=rotations,
        lifting=lifting,
        until=until,
        coset_pool=coset_pool,
        takes=takes,
        check_range=check_range,
        channels=None if channels is None else dict(channels),
        verify=False,  # it was, before it was saved
    )
    network.image_size, network.resize = image_size, resize
    network.config = {
        "model": "converted", "source": source, "source_options": dict(source_options or {}),
        "rotations": rotations, "lifting": lifting, "until": until, "coset_pool": coset_pool,
        "takes": takes, "check_range": check_range, "image_size": image_size,
        "resize": resize, "init": init, "mean": mean, "std": std, "channels": channels,
    }  # fmt: skip
    return network


def same_outputs(network: ConvertedNetwork, rebuilt: ConvertedNetwork) -> bool:
    """Whether two networks with equal names and shapes of weights compute the same from them.

    They may not: strides, dilations and kinds of pooling have no weights.

    Args:
        network: it is not changed.
        rebuilt: what a checkpoint of it builds; its weights are overwritten.

    Example:
        >>> from equicolor.conversion import convert
        >>> from equicolor.models import z2cnn
        >>> network = convert(z2cnn(3), rotations=4)
        >>> options = {key: value for key, value in network.config.items() if key != "model"}
        >>> same_outputs(network, converted(**options))
        True
    """
    twin = copy.deepcopy(network).cpu().eval()
    generator = torch.Generator().manual_seed(0)
    state = {
        # A block that starts at zero would hide what it does.
        key: value if not value.is_floating_point() or value.any() else _some(value, generator)
        for key, value in twin.state_dict().items()
    }
    tensor = next(twin.parameters())
    both = []
    for each in (twin, rebuilt.cpu().to(tensor.dtype).eval()):
        each.load_state_dict(state)
        images = torch.rand(
            1, 3, network.image_size, network.image_size, generator=generator.manual_seed(1),
            device="cpu",
        )  # fmt: skip
        if network.lift.takes == "normalized":
            mean, std = (
                torch.tensor(network.lift.numbers[k]).view(3, 1, 1) for k in ("mean", "std")
            )
            images = (images - mean) / std
        with torch.no_grad():
            both.append(list(tensors_of(each(images.to(tensor.dtype)))))
    tolerance = torch.finfo(tensor.dtype).eps ** 0.5
    return len(both[0]) == len(both[1]) and all(
        a.shape == b.shape and _close(a.double(), b.double(), tolerance)
        for a, b in zip(*both, strict=True)
    )


def _some(like: Tensor, generator: torch.Generator) -> Tensor:
    return (0.1 * torch.rand(like.shape, generator=generator, device="cpu")).to(like.dtype)


def _close(a: Tensor, b: Tensor, tolerance: float) -> bool:
    """Whether tensors are equal to rounding; what is not finite says nothing."""
    if not (a.isfinite().all() and b.isfinite().all()):
        return bool(torch.equal(a.isfinite(), b.isfinite()))
    return bool((a - b).norm() <= tolerance * b.norm())
