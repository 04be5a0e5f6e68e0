"""Build a converted network again from its configuration, as checkpoints do."""

from collections.abc import Mapping, Sequence
from typing import Any

from equicolor.conversion.converting import build
from equicolor.conversion.dry_run import dry_run
from equicolor.conversion.network import ConvertedNetwork
from equicolor.conversion.normalization import Normalization
from equicolor.conversion.plan import make_plan
from equicolor.conversion.sources import Source, build_source
from equicolor.conversion.supported import refuse

__all__ = ["converted"]


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
    plan = make_plan(original, run, until)
    refuse(original, plan.problems)
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
    )
    network.image_size = image_size
    network.config = {
        "model": "converted", "source": source, "source_options": dict(source_options or {}),
        "rotations": rotations, "lifting": lifting, "until": until, "coset_pool": coset_pool,
        "takes": takes, "check_range": check_range, "image_size": image_size, "init": init,
        "mean": mean, "std": std, "channels": channels,
    }  # fmt: skip
    return network
