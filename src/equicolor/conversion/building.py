"""Plan a conversion, carry it out on a copy, and run the result once."""

import copy

from torch import nn

from equicolor.conversion.dry_run import BATCH, DryRun, dry_run
from equicolor.conversion.network import ConvertedNetwork
from equicolor.conversion.normalization import Normalization
from equicolor.conversion.plan import Exit, Plan, make_plan
from equicolor.conversion.replacing import end_with, replace, replacement
from equicolor.conversion.supported import ConversionError, refuse
from equicolor.conversion.widths import scale_channels
from equicolor.nn.batched import BatchedCosetPool, HueLift

__all__ = ["build", "plan_for"]


def plan_for(original: nn.Module, run: DryRun, until: str | None) -> Plan:
    """The plan of a conversion; a network of which something cannot be converted is refused.

    Example:
        >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3))
        >>> plan_for(model, dry_run(model, 8), None).exit
        Exit(where='output', path='')
    """
    plan = make_plan(original, run, until)
    refuse(original, plan.problems)
    return plan


def build(
    original: nn.Module,
    plan: Plan,
    run: DryRun,
    size: int,
    numbers: Normalization,
    *,
    rotations: int,
    lifting: str,
    until: str | None,
    coset_pool: str | None,
    takes: str = "images",
    check_range: bool = True,
    padded: bool = False,
    channels: dict[int, int] | None = None,
) -> ConvertedNetwork:
    """Carry out a plan on a copy of a network; the new hue filters are the identity.

    Where pooling before the last linear layer does not give what the original gives, as in a
    network with two classifiers, the hues are pooled at the outputs.
    """
    tensor = next(original.parameters())

    def made(plan: Plan) -> ConvertedNetwork:
        lift = HueLift(
            rotations,
            lifting,
            mean=numbers.mean,
            std=numbers.std,
            takes=takes,
            padded=padded,
            check_range=check_range,
        )
        lift = lift.to(tensor.device, tensor.dtype)
        converted = _carry_out(original, plan, lift, coset_pool, channels)
        _verify(converted, run, size, until, coset_pool)
        converted.batch_comes_first = all(shape[:1] == [BATCH] for shape in run.outputs)
        return converted

    try:
        return made(plan)
    except ConversionError:
        if plan.exit.where != "before" or channels is not None:
            raise
        at_output = make_plan(original, run, until, Exit("output"))
        if at_output.problems:
            raise
        try:
            return made(at_output)
        except ConversionError:
            pass
        raise


def _carry_out(
    original: nn.Module,
    plan: Plan,
    lift: HueLift,
    coset_pool: str | None,
    channels: dict[int, int] | None,
) -> ConvertedNetwork:
    network = copy.deepcopy(original)
    if channels is not None:
        scale_channels(network, plan, channels)
    modules = dict(network.named_modules())
    for path, kind in plan.replaced.items():
        replace(network, modules[path], replacement(modules[path], kind, lift.rotations))
    pool: BatchedCosetPool | nn.Identity = BatchedCosetPool(lift.rotations, coset_pool)
    exit_, head = plan.exit, plan.head
    if exit_.where == "before" and coset_pool is None:
        exit_ = Exit("output")  # the classifier sees every hue
    if exit_.where != "output":
        end_with(network, exit_, pool)
        pool = nn.Identity()
        head = f"{head}.head" if exit_.where == "before" else head
    converted = ConvertedNetwork(lift, network, pool)
    converted.head = head
    for module in (converted, converted.lift, converted.pool):  # the others have modes of their own
        module.training = original.training
    return converted


def _verify(
    converted: ConvertedNetwork,
    run: DryRun,
    size: int,
    until: str | None,
    coset_pool: str | None,
) -> None:
    """Run the result: it must return what the original returns, with or without its hues."""
    expected = run.outputs
    if coset_pool is None:
        expected = [[BATCH, converted.rotations, *shape[1:]] for shape in run.outputs]
    outputs: object
    try:
        outputs = dry_run(converted, size).outputs
    except ValueError as error:
        outputs = str(error)
    if outputs == expected:
        return
    if until is not None:
        raise ConversionError(
            f"until={until!r} cannot end the equivariant part: data flows past it, so plain and "
            f"equivariant features would meet. Name a module that everything passes, such as a "
            f"whole stage ({outputs})"
        )
    raise ConversionError(
        f"{type(converted.network).__name__} does something to the batch that conversion does not "
        f"know: expected outputs {expected}, got {outputs}"
    )
