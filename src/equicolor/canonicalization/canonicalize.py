"""Make any network invariant to hue shifts, without touching it: take the shift back first."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from torch import nn

from equicolor import _checks
from equicolor.canonicalization.network import (
    LIGHTS,
    PRESETS,
    SELECTIONS,
    SELECTOR_OPTIONS,
    Canonicalized,
    Options,
    Score,
)
from equicolor.conversion.source import (
    Source,
    build_source,
    choose_image_size,
    choose_resize,
    find_normalization,
    known_source,
)
from equicolor.models.foreign import ForeignNetwork
from equicolor.models.registry import Network, class_names_of
from equicolor.models.selector import HueSelector

Selection = str | Score | HueSelector


def canonicalize(
    model: nn.Module,
    rotations: int = 12,
    select: Selection | Sequence[Selection] = "learned",
    modes: int = 1,
    gate: float | None = None,
    *,
    preset: str = "default",
    normalization: Any = "auto",
    differentiable: bool = False,
    image_size: int | None = None,
    source: str | Source | None = None,
) -> Canonicalized:
    r"""Any network, made invariant to hue shifts by taking them back before it sees the image.

    Nothing in the network changes, so it may be a transformer, a detector or one behind an
    interface. With ``select="learned"``, train the selector on images without labels next:
    ``canonicalize(model).fit(images)``.

    Args:
        model: takes images :math:`[B, 3, H, W]` and returns anything, or a detector of torchvision.
        rotations: the number :math:`n` of hues that are compared; a trained selector brings its
            own.
        select: what finds the hue: ``"learned"``, a small equivariant network; ``"energy"``,
            ``"entropy"`` or ``"confidence"``, the hue that makes the network surest, at :math:`n`
            more passes; a :class:`~equicolor.models.selector.HueSelector`, trained or to be fitted;
            or a function of images :math:`[B, 3, H, W]` in [0, 1] that scores them :math:`[B]`.
            ``"gray-world"`` or ``"shades-of-gray"`` takes the colour of the light away instead
            (:func:`equicolor.light.balance_light`); ``("gray-world", "learned")`` does both.
        modes: how many angles are tried; class probabilities are averaged, weighted by theirs.
        gate: if the probability of the best angle is at least this, no other angle is tried.
        preset: the size of a learned selector: ``"fast"``, ``"default"`` or ``"accurate"``.
        normalization: what the network expects of its images, as in :func:`equicolor.convert`.
            The canonicalised network takes images in [0, 1].
        differentiable: let gradients flow through the angle.
        image_size: height and width of the network's images, for reports and export.
        source: where the network comes from, such as ``"timm:vit_tiny_patch16_224"``, for
            :func:`equicolor.models.save_model`; timm's and equicolor's networks know it.

    Returns:
        A network with the outputs of ``model``.

    Example:
        >>> import equicolor, torch
        >>> from equicolor.color import shift_hue
        >>> from equicolor.models import resnet18
        >>> def warmth(images):  # in place of a selector that was trained
        ...     return (images[:, 0] - images[:, 2]).mean((1, 2))
        >>> network = equicolor.canonicalize(resnet18(10, width=4).eval(), 4, select=warmth)
        >>> sunset = torch.rand(2, 3, 64, 64) * torch.tensor([1.0, 0.5, 0.2]).view(3, 1, 1)
        >>> torch.allclose(network(shift_hue(sunset, 1 / 4)), network(sunset), atol=1e-4)
        True
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"canonicalize expects a torch.nn.Module, got {type(model).__name__}")
    light, hue = _light_and_hue(select)
    _checks.one_of("preset", preset, tuple(PRESETS))
    if hue != "learned" and preset != "default":
        came = "a HueSelector" if isinstance(hue, HueSelector) else f"select={select!r}"
        raise ValueError(f"preset={preset!r} is for select='learned', got {came}")
    chosen: dict[str, Any] = {"select": hue, "rotations": rotations, **PRESETS[preset]}
    if isinstance(hue, HueSelector):
        if rotations not in (12, hue.rotations):
            raise ValueError(f"the selector compares {hue.rotations} hues, got {rotations=}")
        chosen = {"select": "learned", **{key: hue.config[key] for key in SELECTOR_OPTIONS}}
    elif callable(hue):
        chosen["select"] = getattr(hue, "__name__", type(hue).__name__)
    if hue is None and (rotations, modes, gate, differentiable) != (12, 1, None, False):
        raise ValueError(
            "rotations, modes, gate and differentiable are for hues, "
            f"but select={select!r} selects none"
        )
    detects = hasattr(getattr(model, "transform", None), "image_mean")  # normalises by itself
    automatic = isinstance(normalization, str) and normalization == "auto"
    mean, std = find_normalization(model, None if detects and automatic else normalization)
    size = choose_image_size(model, image_size)
    options = Options(
        **chosen,
        light=light,
        modes=modes,
        gate=gate,
        differentiable=differentiable,
        mean=mean,
        std=std,
        image_size=size,
        resize=choose_resize(model, size),
    )
    body = model.network if isinstance(model, ForeignNetwork) else model
    network = Canonicalized(body, options, None if isinstance(hue, str) else hue)
    network.class_names = class_names_of(model)
    if isinstance(model, Network):
        network.origin = model.origin
    weight = next((p for p in model.parameters() if p.is_floating_point()), None)
    if weight is not None:
        network.normalize.to(weight.device, weight.dtype)
        if network.selector is not None:
            network.selector.to(weight.device)
    origin = known_source(model, source)
    if origin is not None and network.score is None:
        network.config = _config(origin, options)
    return network


def _light_and_hue(select: object) -> tuple[str | None, Any]:
    """What balances the light, and what finds the hue."""
    selections = list(select) if isinstance(select, (list, tuple)) else [select]
    for each in selections:
        if isinstance(each, str):
            _checks.one_of("select", each, (*SELECTIONS, *LIGHTS))
        elif not callable(each):
            raise TypeError(
                f"select must be one of {', '.join((*SELECTIONS, *LIGHTS))}, a HueSelector or a "
                f"function of images, got {type(each).__name__}"
            )
    lights = [each for each in selections if isinstance(each, str) and each in LIGHTS]
    hues = [each for each in selections if each not in lights]
    if len(lights) > 1 or len(hues) > 1 or not selections:
        raise ValueError(
            "select is one thing that finds the hue, one that balances the light, or one of each; "
            f"got {select!r}"
        )
    return next(iter(lights), None), next(iter(hues), None)


def canonicalized(
    *,
    source: str,
    source_options: Mapping[str, Any] | None = None,
    select: str | None = "learned",
    light: str | None = None,
    rotations: int = 12,
    modes: int = 1,
    gate: float | None = None,
    differentiable: bool = False,
    size: int = PRESETS["default"]["size"],
    width: int = PRESETS["default"]["width"],
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    image_size: int = 224,
    resize: int | None = None,
) -> Canonicalized:
    """The network that a configuration of :func:`canonicalize` describes, without weights.

    The source is a :class:`equicolor.conversion.Source`; the other arguments are those of
    :class:`Options`.
    """
    if select is not None:
        _checks.one_of("select", select, SELECTIONS)
    origin = Source(source, dict(source_options or {}))
    options = Options(
        select=select, light=light, rotations=rotations, modes=modes, gate=gate,
        differentiable=differentiable, size=size, width=width, image_size=image_size, resize=resize,
        mean=None if mean is None else list(mean), std=None if std is None else list(std),
    )  # fmt: skip
    network = Canonicalized(build_source(origin, more=("converted",)).eval(), options)
    network.config = _config(origin, options)
    return network


def _config(source: Source, options: Options) -> dict[str, Any]:
    """The arguments of :func:`canonicalized`."""
    names = {"source": source.spec, "source_options": dict(source.options)}
    return {"model": "canonicalized", **names, **asdict(options)}
