"""What a module becomes in an equivariant network, or why it cannot become anything."""

import inspect
import re
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.conv import _ConvNd
from torch.nn.utils import parametrize

from equicolor.nn.batched import HueLift
from equicolor.nn.conv import CEConv2d, CELiftConv2d
from equicolor.nn.observed import is_untouched

__all__ = [
    "ATTENTION",
    "CHANNEL_DROPOUTS",
    "Advice",
    "ConversionError",
    "LayerError",
    "Problem",
    "check_network",
    "check_weights",
    "kind_of",
    "pads_to_stride",
    "refuse",
]

CHANNEL_DROPOUTS = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
# One scale and shift per channel, or none: the same for every rotation.
_KEPT = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.PReLU, nn.ConvTranspose2d, nn.Conv1d)
# Draw random numbers in training, other ones for every hue.
_RANDOM = (nn.FractionalMaxPool2d, nn.FractionalMaxPool3d)
_SHOWN = 6
ATTENTION = "attention mixes places by content: it has no filters over hues"


class ConversionError(ValueError):
    """A network that cannot be converted, and why."""


class Advice(Enum):
    """What works instead. Of several problems, the first advice in this order is given."""

    CONVOLUTION = "a network, or an until='NAME', with an nn.Conv2d that sees the images"
    NO_ATTENTION = (
        "a convolutional network (ResNet, RegNet, EfficientNet, ConvNeXt, ...); or "
        "equicolor.adapt(model), which puts an equivariant stem beside this network's own"
    )
    PLAIN_NETWORK = "the plain network it was made from"
    UNTIL = "until='NAME' ends the equivariant part before these; or equicolor.adapt(model)"
    # Last, so that it is given only where every problem is of this kind.
    ONLY_CALLED = (
        "without the modules that are not called. Build the network without them "
        "(aux_logits=False), or put nn.Identity() in their place; and where code reads their "
        "weights, let it call them instead"
    )


class LayerError(ConversionError):
    """A layer that cannot be converted, why, and what works instead."""

    def __init__(self, reason: str, advice: Advice = Advice.UNTIL) -> None:
        super().__init__(reason)
        self.advice = advice


class Problem(NamedTuple):
    """A module that cannot be converted."""

    path: str
    kind: str
    reason: str
    advice: Advice = Advice.UNTIL


def kind_of(module: nn.Module) -> str:
    """What becomes of a module.

    Returns:
        ``"conv"`` or ``"linear"`` for what mixes channels and will mix hues; ``"dropout"`` or
        ``"depth"`` for what needs shared random numbers; ``"keep"`` for what stays.

    Raises:
        LayerError: with the reason, if nothing can become of it.

    Example:
        >>> kind_of(nn.Conv2d(3, 4, 3)), kind_of(nn.ReLU()), kind_of(nn.Dropout2d())
        ('conv', 'keep', 'dropout')
        >>> kind_of(nn.Conv3d(3, 4, 3))
        Traceback (most recent call last):
            ...
        equicolor.conversion.supported.LayerError: there are no hue filters for this layer
    """
    if isinstance(module, (CEConv2d, CELiftConv2d, HueLift)):
        raise LayerError("it is colour-equivariant already", Advice.PLAIN_NETWORK)
    if parametrize.is_parametrized(module) or hasattr(module, "weight_g"):
        raise LayerError("its weight is parametrised; remove_parametrizations() first")
    if isinstance(module, nn.Conv2d):
        if type(module).forward is not nn.Conv2d.forward and not pads_to_stride(module):
            raise LayerError("it is a convolution with a forward of its own")
        return "conv"
    if isinstance(module, nn.Linear):
        if type(module).forward is not nn.Linear.forward:
            raise LayerError("it is a linear layer with a forward of its own")
        return "linear"
    if _is_attention(module):
        raise LayerError(ATTENTION, Advice.NO_ATTENTION)
    if isinstance(module, CHANNEL_DROPOUTS) or type(module) is nn.Dropout:
        return "dropout"
    if isinstance(module, nn.modules.dropout._DropoutNd):
        raise LayerError("there is no version of this dropout with shared masks")
    if type(module).__name__ in ("StochasticDepth", "DropPath"):
        return "depth"
    if _is_random(module):
        raise LayerError(
            "it draws random numbers in training, which would differ between the hues; build the "
            "network without it"
        )
    if isinstance(module, _BatchNorm) and module.running_mean is None:
        raise LayerError(
            "it has no running statistics (track_running_stats=False), so it compares the images "
            "of a batch, in which the hues lie; a batch norm that keeps them works, or a GroupNorm"
        )
    if isinstance(module, nn.Embedding):
        raise LayerError("embeddings know nothing of hue")
    if isinstance(module, nn.RNNBase):
        raise LayerError("recurrent layers have no filters over hues")
    if not isinstance(module, _KEPT):
        _check_parameters(module)
    return "keep"


def check_network(model: Any) -> None:
    """Refuse what is not a network of images written in Python.

    Example:
        >>> check_network(lambda images: images)
        Traceback (most recent call last):
            ...
        equicolor.conversion.supported.ConversionError: a torch.nn.Module is needed, got function
    """
    kind = type(model).__name__
    if not isinstance(model, nn.Module):
        raise ConversionError(f"a torch.nn.Module is needed, got {kind}")
    if isinstance(model, torch.jit.ScriptModule):
        raise ConversionError(
            f"{kind} was made by torch.jit, which leaves no layers to replace: convert the "
            "torch.nn.Module it was made from"
        )
    inputs = [
        name
        for name, parameter in inspect.signature(model.forward).parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    if len(inputs) > 1:
        raise ConversionError(
            f"{kind} takes more than one input ({', '.join(inputs)}), but a converted network "
            "takes images alone: wrap it in a module whose forward takes them and knows the rest, "
            "or convert the part that sees the images"
        )


def check_weights(model: nn.Module) -> Iterator[Problem]:
    """What a replacement would lose: computed weights, hooks and tied weights.

    Example:
        >>> first, second = nn.Linear(3, 3), nn.Linear(3, 3)
        >>> second.weight = first.weight
        >>> [problem.reason for problem in check_weights(nn.Sequential(first, second))]
        ["its weight is also '0.weight': tied weights would come apart"]
    """
    owners: dict[int, str] = {}
    for path, module in model.named_modules():
        kind = type(module).__name__
        computed = isinstance(module, (_ConvNd, nn.Linear)) and "weight" not in module._parameters
        if computed and not parametrize.is_parametrized(module):
            reason = (
                "its weight is computed by a hook (spectral_norm, weight_norm or prune); remove "
                "that first: torch.nn.utils.remove_spectral_norm, remove_weight_norm, prune.remove"
            )
            yield Problem(path, kind, reason)
            continue
        try:
            if kind_of(module) == "keep":
                continue
        except LayerError:  # the plan names it, if it is in the equivariant part
            continue
        if not is_untouched(module):
            reason = (
                "it has hooks, or a method of its own, which a replacement would lose; remove "
                "them, and register them on the converted network"
            )
            yield Problem(path, kind, reason)
        for name, parameter in module._parameters.items():
            if parameter is None:
                continue
            owner = owners.setdefault(id(parameter), f"{path}.{name}")
            if owner != f"{path}.{name}":
                reason = f"its {name} is also {owner!r}: tied weights would come apart"
                yield Problem(path, kind, reason)


def pads_to_stride(module: nn.Module) -> bool:
    """Whether a convolution is timm's that pads like TensorFlow."""
    return type(module).__name__ == "Conv2dSame"


def refuse(model: nn.Module, problems: Iterable[Problem]) -> None:
    """Raise an error that names every problem, if there is one."""
    problems = list(problems)
    if not problems:
        return
    paths: dict[tuple[str, str], list[str]] = {}
    for problem in problems:
        path = problem.path or "(the network itself)"
        paths.setdefault((problem.kind, problem.reason), []).append(path)
    lines = [f"{type(model).__name__} cannot be converted; nothing was changed:"]
    for (kind, reason), (first, *others) in list(paths.items())[:_SHOWN]:
        more = f" and {len(others)} more" if others else ""
        lines.append(f"  {first}{more}: {kind}: {reason}")
    if len(paths) > _SHOWN:
        lines.append(f"  and {len(paths) - _SHOWN} other kinds")
    advices = {problem.advice for problem in problems}
    advice = next(advice for advice in Advice if advice in advices)
    raise ConversionError("\n".join([*lines, f"What works: {advice.value}"]))


def _is_random(module: nn.Module) -> bool:
    if type(module).__name__.startswith("DropBlock"):  # torchvision's p, timm's drop_prob
        return bool(getattr(module, "p", getattr(module, "drop_prob", 1.0)))
    if isinstance(module, nn.RReLU):
        return bool(module.lower != module.upper)
    return isinstance(module, _RANDOM)


def _is_attention(module: nn.Module) -> bool:
    if isinstance(module, (nn.MultiheadAttention, nn.TransformerEncoderLayer)):
        return True
    # Squeeze-excite and its relatives call themselves attention too; they are convolutions.
    named = re.search(r"Attention", type(module).__name__) is not None
    return named and any(isinstance(part, nn.Linear) for part in module.modules())


def _check_parameters(module: nn.Module) -> None:
    """Refuse parameters that are filters, or tokens; single numbers and vectors are neither."""
    for name, parameter in module._parameters.items():
        if parameter is None:
            continue
        shape = list(parameter.shape)
        if type(module).__module__.startswith("torch.nn."):
            raise LayerError("there are no hue filters for this layer")
        if name in ("pos_embed", "cls_token", "pos_embedding", "class_token"):
            raise LayerError(
                f"{name} {shape} is a position or class token, not a filter", Advice.NO_ATTENTION
            )
        if sum(size > 1 for size in shape) > 1:
            raise LayerError(f"its parameter {name} {shape} is of an unknown kind")
