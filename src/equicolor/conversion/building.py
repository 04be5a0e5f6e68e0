"""Plan a conversion, carry it out on a copy, and try the result."""

import copy
import itertools

from torch import nn

from equicolor.conversion.dry_run import BATCH, DryRun, dry_run
from equicolor.conversion.network import ConvertedNetwork
from equicolor.conversion.normalization import Normalization
from equicolor.conversion.plan import Exit, Plan, make_plan
from equicolor.conversion.replacing import carry_out, exit_of, new_path
from equicolor.conversion.supported import ConversionError, refuse
from equicolor.conversion.verifying import WHAT_WORKS, check_numbers
from equicolor.conversion.widths import scale_channels
from equicolor.nn.batched import HueLift

__all__ = ["build", "plan_for"]


def plan_for(
    original: nn.Module, run: DryRun, until: str | None, training: DryRun | None = None
) -> Plan:
    """The plan of a conversion; a network of which something cannot be converted is refused.

    Example:
        >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3))
        >>> plan_for(model, dry_run(model, 8), None).exit
        Exit(where='output', path='')
    """
    plan = make_plan(original, run, until, training=training)
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
    verify: bool = True,
) -> ConvertedNetwork:
    """Carry out a plan on a copy of a network, and try the result.

    Where pooling before the last linear layer does not give what the original gives, as in a
    network with two classifiers, the hues are pooled at the outputs.
    """
    tensor = next(original.parameters())
    model = original
    if channels is not None:
        model = copy.deepcopy(original)
        scale_channels(model, plan, channels)

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
        converted = carry_out(model, plan, lift, coset_pool)
        _run_once(converted, plan, run, size, until, coset_pool)
        if verify:
            check_numbers(model, plan, lift, coset_pool, size)
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


def _run_once(
    converted: ConvertedNetwork,
    plan: Plan,
    run: DryRun,
    size: int,
    until: str | None,
    coset_pool: str | None,
) -> None:
    """Run the result: it must return what the original returns, with or without its hues."""
    expected = run.outputs
    if coset_pool is None:
        expected = [[BATCH, converted.rotations, *shape[1:]] for shape in run.outputs]
    found: object
    try:
        result = dry_run(converted, size)
        _check_batch_first(converted, plan, run, result, exit_of(plan, coset_pool))
        found = result.outputs
    except ConversionError:
        raise
    except ValueError as error:
        found = str(error).partition("; if it needs another size")[0]
    if found == expected:
        return
    if until is not None:
        raise ConversionError(
            f"until={until!r} cannot end the equivariant part: data flows past it, so plain and "
            f"equivariant features would meet. Name a module that everything passes, such as a "
            f"whole stage ({found})"
        )
    raise ConversionError(
        f"{type(converted.network).__name__} does something to the batch that conversion does not "
        f"know: expected outputs {expected}, got {found}. {WHAT_WORKS}"
    )


def _check_batch_first(
    converted: ConvertedNetwork, plan: Plan, run: DryRun, result: DryRun, exit_: Exit
) -> None:
    """Refuse a layer for hues that gets them anywhere but in front, or not all of them."""
    n = converted.rotations
    for path in plan.replaced:
        before, after = run.inputs[path], result.inputs[new_path(path, exit_)]
        for old, new in itertools.zip_longest(before, after):
            if old is None or new is None or old[0] % BATCH or new[0] != n * old[0]:
                kind = type(converted.get_submodule(new_path(path, exit_))).__name__
                raise ConversionError(
                    f"{type(converted.network).__name__} does not keep the batch first: for "
                    f"{BATCH} images {path!r} sees {old}, and for {BATCH} images in {n} hues, "
                    f"which lie in the batch, it ({kind}) sees {new}. {WHAT_WORKS}"
                )
