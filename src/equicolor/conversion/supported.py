"""What a module becomes in an equivariant network, or why it cannot be converted."""

import inspect
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.conv import _ConvNd
from torch.nn.utils import parametrize

from equicolor._observed import is_untouched
from equicolor.nn.batched import HueLift
from equicolor.nn.conv import CEConv2d, CELiftConv2d

CHANNEL_DROPOUTS = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
# One scale and shift per channel, or none: the same for every rotation.
_STAY = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.PReLU, nn.ConvTranspose2d, nn.Conv1d)
_SHOWN = 6


class ConversionError(ValueError):
    """A network that cannot be converted, and why."""


class Kind(Enum):
    """What becomes of a module."""

    MIX = "it mixes channels, and will mix hues"
    DROPOUT = "its random numbers will be shared by the hues"
    DEPTH = "its random decisions will be shared by the hues"
    KEEP = "it stays"


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


class Refusal(NamedTuple):
    """Why a module cannot be converted, and what works instead."""

    reason: str
    advice: Advice = Advice.UNTIL


Problem = tuple[str, Refusal]  # the path of the module, and why
ATTENTION = Refusal(
    "attention mixes places by content: it has no filters over hues", Advice.NO_ATTENTION
)


def kind_of(module: nn.Module) -> Kind | Refusal:
    """What becomes of a module by itself, without its parts."""
    if isinstance(module, (CEConv2d, CELiftConv2d, HueLift)):
        return Refusal("it is colour-equivariant already", Advice.PLAIN_NETWORK)
    if parametrize.is_parametrized(module) or hasattr(module, "weight_g"):
        return Refusal("its weight is parametrised; remove_parametrizations() first")
    if isinstance(module, nn.Conv2d):
        if type(module).forward is not nn.Conv2d.forward and not pads_to_stride(module):
            return Refusal("it is a convolution with a forward of its own")
        return Kind.MIX
    if isinstance(module, nn.Linear):
        if type(module).forward is not nn.Linear.forward:
            return Refusal("it is a linear layer with a forward of its own")
        return Kind.MIX
    if _is_attention(module):
        return ATTENTION
    if isinstance(module, CHANNEL_DROPOUTS) or type(module) is nn.Dropout:
        return Kind.DROPOUT
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return Refusal("there is no version of this dropout with shared masks")
    if type(module).__name__ in ("StochasticDepth", "DropPath"):
        return Kind.DEPTH
    if _is_random(module):
        return Refusal(
            "it draws random numbers in training, which would differ between the hues; build the "
            "network without it"
        )
    if isinstance(module, _BatchNorm) and module.running_mean is None:
        return Refusal(
            "it has no running statistics (track_running_stats=False), so it compares the images "
            "of a batch, in which the hues lie; a batch norm that keeps them works, or a GroupNorm"
        )
    if isinstance(module, nn.Embedding):
        return Refusal("embeddings know nothing of hue")
    if isinstance(module, nn.RNNBase):
        return Refusal("recurrent layers have no filters over hues")
    if isinstance(module, _STAY):
        return Kind.KEEP
    return next(_filters_and_tokens(module), Kind.KEEP)


def _is_attention(module: nn.Module) -> bool:
    if isinstance(module, (nn.MultiheadAttention, nn.TransformerEncoderLayer)):
        return True
    # Squeeze-excite and its relatives call themselves attention too; they are convolutions.
    named = "Attention" in type(module).__name__
    return named and any(isinstance(part, nn.Linear) for part in module.modules())


def _is_random(module: nn.Module) -> bool:
    if type(module).__name__.startswith("DropBlock"):  # torchvision's p, timm's drop_prob
        return bool(getattr(module, "p", getattr(module, "drop_prob", 1.0)))
    if isinstance(module, nn.RReLU):
        return bool(module.lower != module.upper)
    return isinstance(module, (nn.FractionalMaxPool2d, nn.FractionalMaxPool3d))


def _filters_and_tokens(module: nn.Module) -> Iterator[Refusal]:
    """Refuse parameters that are filters, or tokens; single numbers and vectors are neither."""
    for name, parameter in module.named_parameters(recurse=False):
        shape = list(parameter.shape)
        if type(module).__module__.startswith("torch.nn."):
            yield Refusal("there are no hue filters for this layer")
        elif name in ("pos_embed", "cls_token", "pos_embedding", "class_token"):
            reason = f"{name} {shape} is a position or class token, not a filter"
            yield Refusal(reason, Advice.NO_ATTENTION)
        elif sum(size > 1 for size in shape) > 1:
            yield Refusal(f"its parameter {name} {shape} is of an unknown kind")


def pads_to_stride(module: nn.Module) -> bool:
    """Whether a convolution is timm's that pads like TensorFlow."""
    return type(module).__name__ == "Conv2dSame"


def check_network(model: Any) -> None:
    """Refuse anything but a module in Python that takes images alone."""
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


def lost_by_replacement(model: nn.Module) -> Iterator[Problem]:
    """Computed weights, hooks and tied weights: what a replacement would lose."""
    owners: dict[int, str] = {}
    for path, module in model.named_modules():
        computed = isinstance(module, (_ConvNd, nn.Linear)) and "weight" not in module._parameters
        if computed and not parametrize.is_parametrized(module):
            reason = (
                "its weight is computed by a hook (spectral_norm, weight_norm or prune); remove "
                "that first: torch.nn.utils.remove_spectral_norm, remove_weight_norm, prune.remove"
            )
            yield path, Refusal(reason)
            continue
        kind = kind_of(module)
        if kind is Kind.KEEP or isinstance(kind, Refusal):  # the plan names the refused ones
            continue
        if not is_untouched(module):
            reason = (
                "it has hooks, or a method of its own, which a replacement would lose; remove "
                "them, and register them on the converted network"
            )
            yield path, Refusal(reason)
        for name, parameter in module.named_parameters(path, recurse=False):
            owner = owners.setdefault(id(parameter), name)
            if owner != name:
                weight = name.rpartition(".")[2]
                reason = f"its {weight} is also {owner!r}: tied weights would come apart"
                yield path, Refusal(reason)


def refuse(model: nn.Module, problems: Iterable[Problem]) -> None:
    """Raise an error that names every problem, if there is one."""
    problems = list(dict.fromkeys(problems))
    if not problems:
        return
    paths: dict[tuple[str, str], list[str]] = {}
    for path, refusal in problems:
        kind = type(model.get_submodule(path)).__name__
        paths.setdefault((kind, refusal.reason), []).append(path or "(the network itself)")
    lines = [f"{type(model).__name__} cannot be converted; nothing was changed:"]
    for (kind, reason), (first, *others) in list(paths.items())[:_SHOWN]:
        more = f" and {len(others)} more" if others else ""
        lines.append(f"  {first}{more}: {kind}: {reason}")
    if len(paths) > _SHOWN:
        lines.append(f"  and {len(paths) - _SHOWN} other kinds")
    advices = {refusal.advice for _, refusal in problems}
    advice = next(advice for advice in Advice if advice in advices)
    raise ConversionError("\n".join([*lines, f"What works: {advice.value}"]))
