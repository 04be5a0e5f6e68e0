"""Make any convolutional network colour-equivariant, its weights included."""

import copy
import warnings
from typing import Any

from torch import nn

from equicolor import _checks
from equicolor.conversion.building import build, plan_for
from equicolor.conversion.drawing import draw
from equicolor.conversion.dry_run import dry_run, training_run
from equicolor.conversion.normalization import Normalization, find_normalization
from equicolor.conversion.sources import Source, source_of
from equicolor.conversion.supported import check_network, check_weights, refuse
from equicolor.conversion.widths import match_parameters as match
from equicolor.models.foreign import ForeignNetwork
from equicolor.models.registry import Network
from equicolor.nn.batched import COSET_POOLS, TAKES
from equicolor.nn.functional import LIFTINGS

__all__ = ["INITS", "choose_image_size", "convert"]

INITS = ("pretrained", "random")


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
) -> nn.Module:
    r"""A colour-equivariant copy of a convolutional network, its weights included.

    The images are lifted to :math:`n` hues, which pass through the network side by side;
    convolutions and linear layers get a filter over the hues, and the hues are pooled before
    the classifier. With ``init="pretrained"`` those filters are the identity: hue :math:`k`
    carries exactly what the original network computes for the image shifted by
    :math:`-k/n` turns, and the pooled result is invariant to hue shifts by :math:`1/n` before
    any training. Training then learns to mix the hues.

    The converted network takes images in [0, 1] and normalises them itself, after the shift.

    All that holds if the network treats every image of a batch alike and by itself, since the
    hues lie in the batch. Nobody can read that from a network, so it is tried: the shapes that
    its layers see without computing anything, and the result with numbers, in float64 on small
    images: a copy with three hues (or n, if those are fewer) must carry the original network in
    every hue, and with random filters over the hues its features must shift with the hue of
    the image and its outputs stay, in eval and in train mode. Of a detector the backbone is
    tried, and of outputs that are no tensors what leads to them. Networks on the meta device
    have no numbers to try.

    Args:
        model: a network of images from torchvision, timm, equicolor or yourself; or a detector
            of torchvision, whose backbone is converted. It is not changed.
        rotations: the number :math:`n` of hues.
        lifting: ``"hsv"``, exact for HSV hue shifts, or ``"rgb"``, the paper's rotation.
        until: the module that the equivariant part ends with, such as ``"layer2"``: a hybrid.
        init: ``"pretrained"`` keeps the weights; ``"random"`` draws all of them anew.
        coset_pool: ``"max"`` or ``"avg"`` over the hues; None keeps them apart, and every
            output is :math:`[B, n, ...]`.
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
        verify: try the result with numbers, as said above; False tries the shapes alone, for
            networks too large to be computed a dozen times over.

    Returns:
        A :class:`ConvertedNetwork`, or for a detector the detector.

    Raises:
        ConversionError: if something in the network cannot be converted, with its path, or if
            what came out is not what it should be.

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
    _checks.one_of("init", init, INITS)
    _checks.one_of("takes", takes, TAKES)
    if coset_pool not in COSET_POOLS:
        raise ValueError(f"coset_pool must be 'max', 'avg' or None, got {coset_pool!r}")
    if until is not None and coset_pool is None:
        raise ValueError("a hybrid (until=...) pools its hues: coset_pool must be 'max' or 'avg'")
    if match_parameters and init != "random":
        raise ValueError("match_parameters changes every layer: it needs init='random'")
    check_network(model)
    options: dict[str, Any] = {"rotations": rotations, "lifting": lifting, "until": until}
    options |= {"coset_pool": coset_pool, "takes": takes, "check_range": check_range}
    if _is_detector(model):
        _check_detector_options(normalization, takes, match_parameters, source)
        return _convert_detector(model, init, image_size, options, verify=verify)
    numbers = find_normalization(model, normalization)
    original, size = _unwrap(model), choose_image_size(model, image_size)
    refuse(original, check_weights(original))  # first: such networks cannot even be copied
    run = dry_run(original, size)
    plan = plan_for(original, run, until, training_run(original, size))
    channels = None
    if match_parameters:
        channels = match(original, plan, rotations, size)
    network = build(original, plan, run, size, numbers, channels=channels, verify=verify, **options)
    if init == "random":
        draw(network)
    if not plan.mixes:
        warnings.warn(
            f"no layer of {type(original).__name__} gets a filter over the hues (convolutions "
            "and linear layers between the first convolution and the pool do): the result is "
            "invariant, but training cannot make it compare hues",
            stacklevel=2,
        )
    network.image_size, network.resize = size, _choose_resize(model, size)
    if isinstance(model, Network):
        network.class_names = model.class_names
        network.dataset, network.split_seed = model.dataset, model.split_seed
        network.training_digest = model.training_digest
    known = source_of(model, source, run, plan.exit)
    if known is not None:
        options |= {"image_size": size, "resize": network.resize}
        network.config = _config(known, numbers, options, init, channels)
    return network


def _unwrap(model: nn.Module) -> nn.Module:
    return model.network if isinstance(model, ForeignNetwork) else model


def choose_image_size(model: nn.Module, given: int | None) -> int:
    """The images to try a network with."""
    if given is not None:
        return _checks.positive_int("image_size", given)
    own = getattr(model, "image_size", None)
    if isinstance(own, int):
        return own
    config = getattr(model, "pretrained_cfg", None)
    if isinstance(config, dict) and config.get("input_size"):
        return int(config["input_size"][-1])
    return 224


def _choose_resize(model: nn.Module, size: int) -> int | None:
    """The short side before the centre is cropped, in the proportion a network was judged with."""
    if isinstance(model, (ForeignNetwork, Network)):
        own = model.resize
        return None if own is None else round(own * size / model.image_size)
    config = getattr(model, "pretrained_cfg", None)
    if isinstance(config, dict) and config.get("crop_pct"):
        return round(size / float(config["crop_pct"]))
    return None


def _config(
    source: Source,
    numbers: Normalization,
    options: dict[str, Any],
    init: str,
    channels: dict[int, int] | None,
) -> dict[str, Any]:
    return {
        "model": "converted",
        "source": source.spec,
        "source_options": dict(source.options),
        **options,
        "init": init,
        "mean": None if numbers.mean is None else list(numbers.mean),
        "std": None if numbers.std is None else list(numbers.std),
        "channels": None if channels is None else sorted(channels.items()),
    }


def _is_detector(model: nn.Module) -> bool:
    transform = getattr(model, "transform", None)
    return hasattr(transform, "image_mean") and isinstance(
        getattr(model, "backbone", None), nn.Module
    )


def _check_detector_options(
    normalization: Any, takes: str, match_parameters: bool, source: str | Source | None
) -> None:
    """Refuse what would be passed over in silence."""
    given = {
        "normalization": not (isinstance(normalization, str) and normalization == "auto"),
        "takes": takes != "images",
        "match_parameters": match_parameters,
        "source": source is not None,
    }
    refused = [name for name, there in given.items() if there]
    if refused:
        raise ValueError(
            f"a detector normalises its images itself, keeps its widths and is kept by its "
            f"state_dict(): {' and '.join(refused)} cannot be given. Convert its backbone by "
            "itself for that"
        )


def _convert_detector(
    model: nn.Module, init: str, image_size: int | None, options: dict[str, Any], *, verify: bool
) -> nn.Module:
    """Convert the backbone of a detector, which gets images that were normalised and padded."""
    transform: Any = model.transform
    backbone: Any = model.backbone
    body = getattr(backbone, "body", backbone)
    numbers = Normalization(tuple(transform.image_mean), tuple(transform.image_std))
    if options["coset_pool"] is None:
        raise ValueError(
            "what follows a detector's backbone is plain: coset_pool is 'max' or 'avg'"
        )
    size = image_size
    if size is None:
        sizes = getattr(transform, "min_size", (224,))
        size = int(sizes[0] if isinstance(sizes, (tuple, list)) else sizes)
    refuse(body, check_weights(body))
    run = dry_run(body, size)
    plan = plan_for(body, run, options["until"], training_run(body, size))
    chosen = options | {"takes": "normalized", "padded": True}
    converted = build(body, plan, run, size, numbers, verify=verify, **chosen)
    if init == "random":
        draw(converted)
    detector: Any = copy.deepcopy(model)
    if body is backbone:
        vars(converted)["out_channels"] = getattr(backbone, "out_channels", None)
        detector.backbone = converted
    else:
        detector.backbone.body = converted
    return detector  # type: ignore[no-any-return]
