"""Which pixels the elements of a network's features depend on, from the operations it executes.

:class:`Dependence` watches a network run and computes the planes of
:mod:`equicolor.analysis.planes` for every tensor. It sees the operations below all modules and
functions, so residual sums, concatenations, group mixing and layers of other libraries need no
rules of their own. The result of an operation without a rule is taken to depend on everything,
and the name of the operation is recorded.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.weak import WeakTensorKeyDictionary

from equicolor.analysis import planes as rules
from equicolor.analysis.planes import Planes

# Operations whose results depend only on the shape of a tensor.
_SHAPE_ONLY = {
    "empty_like", "full_like", "is_same_size", "new_empty", "new_full", "new_ones", "new_zeros",
    "ones_like", "promote_types", "rand_like", "randn_like", "result_type", "zeros_like",
}  # fmt: skip


@dataclass(frozen=True)
class _Operation:
    """An operation that was executed, with at least one argument that depends on the image."""

    dependence: "Dependence"
    name: str  # without the overload
    func: Any
    args: Sequence[Any]
    kwargs: dict[str, Any]
    named: dict[str, Any]  # all arguments, defaults included
    outputs: list[Tensor]

    @property
    def inputs(self) -> list[Planes]:
        """The planes of all arguments that have some."""
        leaves = tree_leaves((self.args, self.kwargs))
        all_planes = (self.dependence.planes(x) for x in leaves if isinstance(x, Tensor))
        return [planes for planes in all_planes if planes is not None]

    @property
    def first(self) -> Planes:
        """The planes of the first argument, or the hull of all arguments if it has none."""
        planes = self.dependence.planes(self.args[0])
        return rules.hull(self.inputs, ()) if planes is None else planes


class Dependence(TorchDispatchMode):
    """A context that records which pixels of an image ``[1, 3, H, W]`` every tensor depends on.

    Use it in inference mode, where tensors are the very objects that an operation returned.
    """

    def __init__(self, images: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        height, width = images.shape[-2:]
        self.image = (height, width)
        self.unknown: set[str] = set()  # operations without a rule
        self._planes = WeakTensorKeyDictionary()
        self._planes[images] = rules.pixel_planes(height, width, device=images.device)
        # Planes of memory that several tensors share and one wrote to. The memory is kept, so that
        # no other gets its address.
        self._written: dict[int, tuple[Any, Planes]] = {}

    def planes(self, tensor: Tensor) -> Planes | None:
        """The planes of a tensor; None if it does not depend on the image."""
        if self._written and (memory := _memory(tensor)) in self._written:
            return _view_planes(tensor, self._written[memory][1])
        return self._planes.get(tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and record the planes of its results."""
        kwargs = kwargs or {}
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        name = func.overloadpacket.__name__
        if name in _SHAPE_ONLY or all(self.planes(x) is None for x in tensors):
            return func(*args, **kwargs)
        rule = _find_rule(func, name)
        if rule is None:
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
            rule = _depend_on_everything
        named = {
            argument.name: args[place]
            if place < len(args)
            else kwargs.get(argument.name, argument.default_value)
            for place, argument in enumerate(func._schema.arguments)
        }
        result = func(*args, **kwargs)
        outputs = [x for x in tree_leaves(result) if isinstance(x, Tensor)]
        if outputs and rule is _depend_on_everything:
            self.unknown.add(name)
        call = _Operation(self, name, func, args, kwargs, named, outputs)
        for output, planes in zip(outputs, rule(call) if outputs else (), strict=True):
            shaped = tuple(plane.expand(output.shape) for plane in planes)
            if name.endswith("_"):
                self._write(output, shaped)
            else:
                self._planes[output] = shaped
        return result

    def _write(self, output: Tensor, planes: Planes) -> None:
        """Record what an operation wrote to a tensor, whose memory others may share."""
        memory = _memory(output)
        if memory not in self._written:
            whole = output.nbytes == output.untyped_storage().nbytes()
            sharing = [x for x in self._planes if x is not output and _memory(x) == memory]
            if whole and not sharing:
                self._planes[output] = planes
                return
            count = output.untyped_storage().nbytes() // output.element_size()
            empty = torch.full((count,), torch.inf, device=output.device)
            mirror = tuple(empty.clone() for _ in planes)
            self._written[memory] = output.untyped_storage(), mirror
            for tensor in sharing:
                self._write(tensor, self._planes[tensor])
        parts = _view_planes(output, self._written[memory][1])
        for part, plane in zip(parts, planes, strict=True):
            part.copy_(plane)


def _view_planes(tensor: Tensor, mirror: Planes) -> Planes:
    """The part of the planes of a memory that belongs to a tensor."""
    where = tensor.shape, tensor.stride(), tensor.storage_offset()
    return tuple(plane.as_strided(*where) for plane in mirror)


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


_Rule = Callable[[_Operation], list[Planes]]
_RULES: dict[str, _Rule] = {}


def _rule_of(*names: str) -> Callable[[_Rule], _Rule]:
    """Register a function as the rule of operations, named with spaces between."""

    def register(rule: _Rule) -> _Rule:
        _RULES.update(dict.fromkeys(" ".join(names).split(), rule))
        return rule

    return register


def _find_rule(func: Any, name: str) -> _Rule | None:
    """The rule of an operation, or of the one that it does in place."""
    plain = name.strip("_").removeprefix("i") if name.startswith("__") else name.removesuffix("_")
    if plain in _RULES:
        return _RULES[plain]
    packet = getattr(torch.ops.aten, plain, None)
    overloads = [] if packet is None else [getattr(packet, key) for key in packet.overloads()]
    if any(torch.Tag.pointwise in overload.tags for overload in (func, *overloads)):
        return _pointwise
    return _move if func.is_view else None


# Also the rule of all operations that torch tags as pointwise.
@_rule_of("_prelu_kernel hardswish log_sigmoid")
def _pointwise(call: _Operation) -> list[Planes]:
    return [rules.union(call.inputs, output.shape) for output in call.outputs]


def _depend_on_everything(call: _Operation) -> list[Planes]:
    return [rules.hull(call.inputs, output.shape) for output in call.outputs]


# Copies, and operations that do nothing in eval mode.
@_rule_of(
    "_to_copy alias alpha_dropout clone contiguous detach dropout feature_alpha_dropout",
    "feature_dropout lift_fresh to type_as",
)
def _same(call: _Operation) -> list[Planes]:
    return [call.first]


@_rule_of("copy fill zero")
def _overwrite(call: _Operation) -> list[Planes]:
    source = call.named.get("src", call.named.get("value"))
    planes = call.dependence.planes(source) if isinstance(source, Tensor) else None
    return [rules.nothing(call.outputs[0].device) if planes is None else planes]


# These move elements, and planes are moved in the same way. Also the rule of all views.
@_rule_of(
    "_unsafe_index cat flip gather index index_select native_channel_shuffle pixel_shuffle",
    "pixel_unshuffle repeat repeat_interleave roll stack upsample_nearest1d upsample_nearest2d",
)
def _move(call: _Operation) -> list[Planes]:
    if call.name in ("view", "_unsafe_view"):
        # Not view: planes may have another memory layout.
        return [tuple(plane.reshape(call.outputs[0].shape) for plane in call.first)]
    tensors = [x for x in tree_leaves((call.args[1:], call.kwargs)) if isinstance(x, Tensor)]
    if any(not x.is_floating_point() and call.dependence.planes(x) is not None for x in tensors):
        return _depend_on_everything(call)  # which elements are moved depends on the image
    moved = []
    for index in range(len(call.inputs[0])):

        def plane(x: Any, index: int = index) -> Any:
            if not isinstance(x, Tensor):
                return x
            planes = call.dependence.planes(x)
            if planes is not None:
                return planes[index]
            # Constants, as in cat, depend on nothing; indices stay.
            return torch.full_like(x, torch.inf) if x.is_floating_point() else x

        result = call.func(*tree_map(plane, call.args), **tree_map(plane, call.kwargs))
        moved.append([x for x in tree_leaves(result) if isinstance(x, Tensor)])
    return list(zip(*moved, strict=True))


def _pairs(value: Any, rank: int) -> list[int]:
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    return values * rank if len(values) == 1 else values


@_rule_of("convolution", *(f"conv{rank}d conv_transpose{rank}d" for rank in (1, 2, 3)))
def _convolve(call: _Operation) -> list[Planes]:
    named, weight, output = call.named, call.named["weight"], call.outputs[0]
    rank = weight.ndim - 2
    if output.ndim != weight.ndim:  # without a batch
        return _depend_on_everything(call)
    kernel, dilation = list(weight.shape[2:]), _pairs(named["dilation"], rank)
    if named["padding"] == "same":
        padding = [d * (k - 1) // 2 for k, d in zip(kernel, dilation, strict=True)]
    else:
        padding = _pairs(0 if named["padding"] == "valid" else named["padding"], rank)
    windows = rules.Windows(kernel, _pairs(named["stride"], rank), padding, dilation)
    mixed = rules.mix_channels(call.first, named["groups"], output.shape[1])
    if named.get("transposed") or "transpose" in call.name:
        return [rules.spread(mixed, windows, output.shape[2:])]
    return [rules.slide(mixed, windows, call.args[0].shape[2:], output.shape[2:])]


@_rule_of(*(f"avg_pool{rank}d max_pool{rank}d max_pool{rank}d_with_indices" for rank in (1, 2, 3)))
def _pool(call: _Operation) -> list[Planes]:
    named = call.named
    rank = int(call.name.removesuffix("_with_indices")[-2])
    kernel = _pairs(named["kernel_size"], rank)
    stride = _pairs(named["stride"], rank) if named["stride"] else kernel
    padding, dilation = _pairs(named["padding"], rank), _pairs(named.get("dilation", 1), rank)
    windows = rules.Windows(kernel, stride, padding, dilation)
    before, sizes = call.args[0].shape[-rank:], call.outputs[0].shape[-rank:]
    return [rules.slide(call.first, windows, before, sizes)] * len(call.outputs)


@_rule_of("im2col")
def _unfold(call: _Operation) -> list[Planes]:
    named, (*outer, height, width) = call.named, call.args[0].shape
    ones, (rows, columns) = [1, 1], _pairs(named["padding"], 2)
    sizes = height + 2 * rows, width + 2 * columns
    windows = rules.Windows(ones, ones, (rows, columns), ones)
    padded = rules.slide(call.first, windows, (height, width), sizes)
    options = named["kernel_size"], named["dilation"], [0, 0], named["stride"]
    return [tuple(call.func(plane.expand(*outer, *sizes), *options) for plane in padded)]


@_rule_of(*(f"adaptive_avg_pool{rank}d adaptive_max_pool{rank}d" for rank in (1, 2, 3)))
def _adaptive_pool(call: _Operation) -> list[Planes]:
    rank = int(call.name[-2])
    planes = rules.bins(call.first, call.outputs[0].shape[-rank:], call.dependence.image)
    return [planes] * len(call.outputs)


@_rule_of("mm bmm matmul linear addmm baddbmm")
def _multiply(call: _Operation) -> list[Planes]:
    bias, left, right = None, *call.args[:2]
    if call.name in ("addmm", "baddbmm"):
        bias, left, right = call.args[:3]
    if call.name == "linear":
        right = right.mT
    sides = [call.dependence.planes(side) for side in (left, right)]
    if call.name == "linear" and sides[1] is not None:
        return _depend_on_everything(call)
    planes = rules.multiply(sides[0], sides[1], (left, right), call.outputs[0].shape)
    added = None if bias is None else call.dependence.planes(bias)
    return [planes if added is None else rules.union([planes, added], call.outputs[0].shape)]


def _axes(call: _Operation) -> list[int]:
    """The axes that an operation reduces."""
    value, rank = call.named.get("dim"), call.args[0].ndim
    if value is None or value == []:
        return list(range(rank))
    return [axis % rank for axis in _pairs(value, 1)]


@_rule_of(
    "all amax amin aminmax any argmax argmin linalg_vector_norm logsumexp max mean median min norm",
    "prod std std_mean sum var var_mean",
)
def _reduce(call: _Operation) -> list[Planes]:
    if "other" in call.named:  # max(a, b)
        return _pointwise(call)
    axes, shape = _axes(call), call.outputs[0].shape
    planes = rules.reduce(call.first, axes, call.dependence.image)
    if len(shape) < call.args[0].ndim:
        for axis in sorted(axes, reverse=True):
            planes = tuple(plane.squeeze(axis) for plane in planes)
    return [planes] * len(call.outputs)


def _normalise(axes: Callable[[_Operation, int], Sequence[int]]) -> _Rule:
    """The rule for elements that also depend on statistics over axes, chosen by the rank."""

    def rule(call: _Operation) -> list[Planes]:
        statistics = rules.reduce(call.first, axes(call, call.args[0].ndim), call.dependence.image)
        return [rules.union([call.first, statistics], call.outputs[0].shape)]

    return rule


_over_batch = _normalise(lambda _, rank: [0, *range(2, rank)])


@_rule_of("batch_norm")
def _batch_norm(call: _Operation) -> list[Planes]:
    return _over_batch(call) if call.named["training"] else [call.first]


_rule_of("softmax _softmax log_softmax _log_softmax")(_normalise(lambda call, _: _axes(call)))
_rule_of("layer_norm native_layer_norm")(
    _normalise(lambda call, rank: range(rank - len(call.named["normalized_shape"]), rank))
)
_rule_of("instance_norm")(_normalise(lambda _, rank: range(2, rank)))
# Over all channels, not those of a group: usually both see the same places.
_rule_of("group_norm")(_normalise(lambda _, rank: range(1, rank)))


@_rule_of("constant_pad_nd reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d")
def _pad(call: _Operation) -> list[Planes]:
    amounts = list(call.named.get("pad") or call.named["padding"])  # from the last axis on
    rank = len(amounts) // 2
    ones = [1] * rank
    windows = rules.Windows(ones, ones, amounts[-2::-2], ones)
    before, sizes = call.args[0].shape[-rank:], call.outputs[0].shape[-rank:]
    planes = rules.slide(call.first, windows, before, sizes)
    if call.name == "constant_pad_nd":
        return [planes]
    # Reflected and replicated elements depend on pixels.
    exact = (call.func(call.first[index].contiguous(), amounts) for index in rules.EXACT)
    return [(*exact, *planes[len(rules.EXACT) :])]
