"""Make any convolutional network colour-equivariant, its weights included."""

import copy
import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from equicolor import _checks
from equicolor.conversion.dry_run import BATCH, DryRun, RunError, dry_run
from equicolor.conversion.layers import draw
from equicolor.conversion.network import ConvertedNetwork, assemble
from equicolor.conversion.plan import Conversion, Exit, Plan, make_plan
from equicolor.conversion.source import (
    Source,
    build_source,
    choose_image_size,
    choose_resize,
    find_normalization,
    source_of,
)
from equicolor.conversion.supported import (
    ConversionError,
    Kind,
    check_network,
    lost_by_replacement,
    refuse,
)
from equicolor.conversion.verify import check_numbers, check_shapes
from equicolor.conversion.widths import match_widths, scale_channels
from equicolor.groups import SpatialGroup
from equicolor.models.foreign import ForeignNetwork
from equicolor.models.registry import Network, class_names_of
from equicolor.nn.batched import COSET_POOLS, TAKES
from equicolor.nn.functional import LIFTINGS


def convert(
    model: nn.Module,
    rotations: int = 3,
    lifting: str = "hsv",
    until: str | None = None,
    init: str = "pretrained",
    coset_pool: str | None = "max",
    *,
    normalization: Any = "auto",
    takes: str = "images",
    image_size: int | None = None,
    match_parameters: bool = False,
    source: str | Source | None = None,
    check_range: bool = True,
    verify: bool = True,
    spatial: str = "p1",
) -> nn.Module:
    r"""A colour-equivariant copy of a convolutional network, its weights included.

    The images are lifted to :math:`n` hues, which pass through the network side by side;
    convolutions and linear layers get a filter over the hues, and the hues are pooled before
    the classifier, or behind it with ``coset_pool="confidence"``. With ``init="pretrained"``
    those filters are the identity: hue :math:`k` carries exactly what the original network
    computes for the image shifted by :math:`-k/n` turns, and the pooled result is invariant to
    hue shifts by :math:`1/n` before any training. Training then learns to mix the hues.

    The converted network takes images in [0, 1] and normalises them itself, after the shift.

    The hues lie in the batch, so the network must treat every image of a batch alike and by
    itself. That is tried before anything is returned: first with shapes alone, then with numbers,
    in float64 on small images. A copy with three hues (or n, if those are fewer) must carry the
    original network in every hue. With random filters over the hues, its features must shift with
    the hue of the image and its outputs must stay, in eval and in train mode. Of a detector,
    the backbone is tried. Networks on the meta device are tried with shapes alone.

    Args:
        model: a network of images from torchvision, timm, equicolor or yourself; or a detector
            of torchvision, whose backbone is converted. It is not changed.
        rotations: the number :math:`n` of hues.
        lifting: ``"hsv"``, exact for HSV hue shifts, or ``"rgb"``, the paper's rotation.
        until: the module that the equivariant part ends with, such as ``"layer2"``: a hybrid.
        init: ``"pretrained"`` keeps the weights; ``"random"`` draws all of them anew.
        coset_pool: ``"max"`` or ``"avg"`` over the hues; ``"confidence"``, for networks that
            return logits :math:`[B, C]`, pools behind the classifier and takes the logits of the
            hue that is surest of its class; None keeps the hues apart, and every output is
            :math:`[B, n, ...]`.
        normalization: what the network expects of its images: ``"auto"`` reads it from timm's
            metadata and knows equicolor's networks; ``"imagenet"``; a pair (mean, std); a member
            of a torchvision weights enum; or None for images in [0, 1] as they are.
        takes: ``"images"`` in [0, 1]; or ``"normalized"``, for a part of your own network that
            gets its images normalised already.
        image_size: height and width of the images the network is tried with; its own if it has
            any, else 224.
        match_parameters: with ``init="random"``, make all layers narrower, so that the
            converted network has about as many parameters as the original.
        source: where the network comes from, such as ``"torchvision:resnet18"``, for
            :func:`equicolor.models.save_model`; timm's and equicolor's networks know it.
        check_range: refuse images far outside [0, 1]; see :class:`equicolor.nn.batched.HueLift`.
        verify: try the result with numbers, as described above; False tries the shapes alone,
            for networks too large to be run a dozen times.
        spatial: ``"p1"`` alone: turns and mirror images need a network that is trained with them.

    Returns:
        A :class:`ConvertedNetwork`, or for a detector the detector.

    Raises:
        ConversionError: if something in the network cannot be converted, with its path, or if
            the result fails the trial.

    Example:
        >>> import torch
        >>> from equicolor.color import shift_hue
        >>> plain = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3),
        ...                       nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))
        >>> network = convert(plain, rotations=4, normalization=None, image_size=16)
        >>> images = torch.rand(2, 3, 16, 16)
        >>> torch.allclose(network(shift_hue(images, 1 / 4)), network(images), atol=1e-5)
        True
    """
    _checks.positive_int("rotations", rotations)
    _checks.one_of("lifting", lifting, LIFTINGS)
    _checks.one_of("init", init, ("pretrained", "random"))
    _checks.one_of("takes", takes, TAKES)
    if coset_pool not in COSET_POOLS:
        raise ValueError(
            f"coset_pool must be 'max', 'avg', 'confidence' or None, got {coset_pool!r}"
        )
    if until is not None and coset_pool not in ("max", "avg"):
        raise ValueError(
            "a hybrid (until=...) pools its hues before its plain part: coset_pool must be 'max' "
            f"or 'avg', got {coset_pool!r}"
        )
    if SpatialGroup(spatial).order > 1:
        raise ValueError(
            f"convert cannot make spatial={spatial!r} exact: the layers behind a pretrained filter "
            "have not learnt to read it turned, and strides of pretrained networks tell one border "
            f"from the other. Train one anew, such as models.resnet18(spatial={spatial!r})"
        )
    if match_parameters and init != "random":
        raise ValueError("match_parameters changes every layer: it needs init='random'")
    check_network(model)
    detector = _is_detector(model)
    if detector:
        _check_detector_options(normalization, takes, coset_pool, match_parameters, source)
        parts: Any = model
        transform, body = parts.transform, getattr(parts.backbone, "body", parts.backbone)
        normalization, takes = (transform.image_mean, transform.image_std), "normalized"
        if image_size is None:
            sizes = getattr(transform, "min_size", 224)
            image_size = sizes if isinstance(sizes, int) else int(sizes[0])
    else:
        body = model.network if isinstance(model, ForeignNetwork) else model
    size = choose_image_size(model, image_size)
    mean, std = find_normalization(model, normalization)
    resize = choose_resize(model, size)
    options = Conversion(
        rotations=rotations, lifting=lifting, until=until, coset_pool=coset_pool, takes=takes,
        check_range=check_range, image_size=size, resize=resize, init=init, mean=mean, std=std,
        padded=detector,
    )  # fmt: skip
    refuse(body, lost_by_replacement(body))  # first: such networks cannot even be copied
    run = dry_run(body, size)
    try:
        training = dry_run(body, size, training=True)
    except RunError:  # in train mode it needs more than images
        training = None
    plan = make_plan(body, options, run, training)
    if match_parameters:
        options = dataclasses.replace(options, channels=match_widths(body, plan, options))
    network = _build(body, plan, options, run, verify=verify)
    if init == "random":
        draw(network)
    if detector:
        return _with_backbone(model, network)
    if Kind.MIX not in plan.replaced.values():
        warnings.warn(
            f"no layer of {type(body).__name__} gets a filter over the hues (convolutions "
            "and linear layers between the first convolution and the pool do): the result is "
            "invariant, but training cannot make it compare hues",
            stacklevel=2,
        )
    network.class_names = class_names_of(model)
    if isinstance(model, Network):
        network.origin = model.origin
    network.image_size, network.resize = size, resize
    origin = source_of(model, source, run)
    if origin is not None:
        network.config = _config(origin, options)
    return network


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

    The source is a :class:`equicolor.conversion.Source`; the other arguments are those of
    :class:`equicolor.conversion.plan.Conversion`.
    """
    origin = Source(source, dict(source_options or {}))
    body = build_source(origin)
    options = Conversion(
        rotations=rotations, lifting=lifting, until=until, coset_pool=coset_pool, takes=takes,
        check_range=check_range, image_size=image_size, resize=resize, init=init,
        mean=None if mean is None else list(mean),
        std=None if std is None else list(std),
        channels=None if channels is None else sorted(dict(channels).items()),
    )  # fmt: skip
    run = dry_run(body, image_size)
    # Its numbers were verified before it was saved.
    network = _build(body, make_plan(body, options, run), options, run, verify=False)
    network.image_size, network.resize = image_size, resize
    network.config = _config(origin, options)
    return network


def _config(source: Source, options: Conversion) -> dict[str, Any]:
    """The arguments of :func:`converted`."""
    arguments = {key: value for key, value in vars(options).items() if key != "padded"}
    names = {"source": source.spec, "source_options": dict(source.options)}
    return {"model": "converted", **names, **arguments}


def _is_detector(model: nn.Module) -> bool:
    backbone = getattr(model, "backbone", None)
    normalizes = hasattr(getattr(model, "transform", None), "image_mean")
    return normalizes and isinstance(backbone, nn.Module)


def _check_detector_options(
    normalization: Any,
    takes: str,
    coset_pool: str | None,
    match_parameters: bool,
    source: str | Source | None,
) -> None:
    """Refuse options that would be ignored."""
    changed = {
        "normalization": not (isinstance(normalization, str) and normalization == "auto"),
        "takes": takes != "images",
        "match_parameters": match_parameters,
        "source": source is not None,
    }
    if names := " and ".join(name for name, is_changed in changed.items() if is_changed):
        raise ValueError(
            f"a detector normalises its images itself, keeps its widths and is saved by its "
            f"state_dict(): {names} cannot be given. Convert its backbone by itself for that"
        )
    if coset_pool not in ("max", "avg"):
        raise ValueError(
            "what follows a detector's backbone is plain: coset_pool must be 'max' or 'avg', got "
            f"{coset_pool!r}"
        )


def _with_backbone(model: nn.Module, network: ConvertedNetwork) -> nn.Module:
    """A copy of a detector whose backbone, or its body, was converted."""
    detector: Any = copy.deepcopy(model)
    if hasattr(detector.backbone, "body"):
        detector.backbone.body = network
    else:
        vars(network)["out_channels"] = getattr(detector.backbone, "out_channels", None)
        detector.backbone = network
    return detector


def _build(
    original: nn.Module, plan: Plan, options: Conversion, run: DryRun, *, verify: bool
) -> ConvertedNetwork:
    """Carry out a plan on a copy of a network, and try the result.

    If pooling before the last linear layer changes what the network computes, as in a network
    with two classifiers, the hues are pooled at the outputs.
    """
    model = original
    if options.channels is not None:
        model = copy.deepcopy(original)
        scale_channels(model, plan, dict(options.channels))

    def attempt(plan: Plan) -> ConvertedNetwork:
        network = assemble(model, plan, options)
        check_shapes(network, plan, options, run)
        if verify:
            check_numbers(model, plan, options)
        network.batch_comes_first = all(shape[:1] == [BATCH] for shape in run.outputs)
        return network

    try:
        return attempt(plan)
    except ConversionError as error:
        if plan.exit.where != "before" or options.channels is not None:
            raise
        try:
            return attempt(make_plan(original, options, run, exit_=Exit("output")))
        except ConversionError:
            raise error from None
