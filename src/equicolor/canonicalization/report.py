"""What canonicalisation costs and gains: the work of ``equicolor canonicalize``."""

import contextlib
import dataclasses
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from matplotlib.figure import Figure
from rich.console import Console
from torch import Tensor, nn

from equicolor._files import refuse_files, refuse_to_replace, write_whole
from equicolor._text import counted
from equicolor.canonicalization.canonicalize import canonicalize
from equicolor.canonicalization.fit import FEWEST, load_for_selector, load_unlabelled
from equicolor.canonicalization.network import Canonicalized
from equicolor.conversion.report import (
    COST_COLUMNS,
    cost_report,
    cost_rows,
    headline,
    hue_columns,
    refuse_source,
)
from equicolor.data.datasets import load_dataset
from equicolor.data.images import ImageSet
from equicolor.devices import choose_precision
from equicolor.evaluation.diagnose import Subject, judge, load_subject
from equicolor.evaluation.evaluate import Evaluation
from equicolor.evaluation.figures import Curve, hue_panels
from equicolor.evaluation.hue_sweep import Batches
from equicolor.evaluation.images import choose_preparation, count_outputs, load_batches, subset
from equicolor.evaluation.runner import Runner, evaluating
from equicolor.models.checkpoints import load_model, save_model
from equicolor.models.loading import load_network
from equicolor.models.selector import HueSelector
from equicolor.models.tensor_files import WEIGHTS, CheckpointError
from equicolor.nn import fold
from equicolor.reporting.figures import png
from equicolor.reporting.progress import counting, say
from equicolor.reporting.tables import Table
from equicolor.results import write_results

RESULTS, FIGURE, SELECTOR = "canonicalization.json", "hue-curve.png", "selector.safetensors"
_STATE = "fit.ckpt"  # of an interrupted fit
_HELD_OUT = 5  # of this many images without labels, one is held out to judge with
_STYLES = ({"color": "#d55e00", "marker": "s"}, {"color": "#0072b2", "marker": "o"})


class Outcome(NamedTuple):
    """What :func:`canonicalize_named` returns."""

    cost: Table
    accuracy: Table
    headline: str
    written: list[Path]


def refuse_existing(output: Path, overwrite: bool) -> None:
    """Refuse a folder that is a file or holds an earlier result, before any work."""
    refuse_files(output)
    refuse_to_replace([output / name for name in (WEIGHTS, SELECTOR, RESULTS, FIGURE)], overwrite)


def canonicalize_named(
    network: str,
    data: str | None,
    output: Path,
    *,
    unlabelled: str | None = None,
    epochs: int | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
    console: Console | None = None,
    overwrite: bool = False,
    options: Mapping[str, Any],
    **loading: Any,
) -> Outcome:
    """Canonicalise a network by name, train its selector, judge both, and write all of it.

    Args:
        network: see :func:`equicolor.models.loading.load_network`.
        data: what both are judged on; the selector is trained on its training images. By default
            what the network was trained on, see :func:`equicolor.evaluation.diagnose.open_subject`.
        output: the folder that is written.
        unlabelled: train on the images of this folder, or of this dataset, instead. Without
            ``data``, one in five of them is kept, and judged by the network's own answers.
        epochs, seed: of the selector's training.
        console: shows progress.
        overwrite: begin an interrupted fit again, perhaps with other settings.
        options: the arguments of :func:`equicolor.canonicalize`; ``select`` may name the file of
            a selector that was trained before.
        loading: further arguments of :func:`equicolor.evaluation.diagnose.load_subject`.
    """
    refuse_source(network, output / WEIGHTS)
    images = None if unlabelled is None else load_unlabelled(unlabelled)
    by_own_answers = data is None and images is not None
    if by_own_answers:
        assert images is not None
        images, held_out = _hold_out(images)
        subject = _own_answers(network, held_out, device=device, **loading)
    else:
        subject = load_subject(network, data, device=device, console=console, **loading)
    select = [_load_selector(each) for each in options["select"]]
    canonical = canonicalize(subject.network, **{**options, "select": select})
    fits = "learned" in select
    if not fits and ((epochs, seed) != (None, 0) or not (unlabelled is None or by_own_answers)):
        raise ValueError(
            "--epochs, --seed, and --unlabelled beside --data, are for training a selector: "
            f"select={options['select']!r} trains none"
        )
    if not canonical.config and canonical.selector is None:
        raise ValueError(
            f"{network} cannot be built again from a file, and select={options['select']!r} has no "
            "weights of its own: nothing could be saved; use equicolor.canonicalize in Python"
        )
    refuse_files(output)  # the folder is made with its first file: a failed fit leaves none
    if fits:
        if images is None:
            assert subject.data is not None
            # Of a run without --data this is the path in its recipe; facts have a display name.
            images = load_dataset(subject.data, "train", seed=subject.facts["split_seed"])
        skip = bool(loading.get("skip_corrupt"))
        if overwrite:  # only now: wrong options must not cost an interrupted fit
            (output / _STATE).unlink(missing_ok=True)
        _fit(canonical, images, epochs, seed, output, console, skip_corrupt=skip)
    subjects = subject, dataclasses.replace(subject, network=canonical.to(device).eval())
    before, after = (judge(each, actions=["hsv"], console=console) for each in subjects)
    written = [_save(canonical, output)]
    rows = [each.rows()[0] | {"by_own_answers": by_own_answers} for each in (before, after)]
    rows[1]["canonicalization"] = canonical.info
    written.append(write_results(output / RESULTS, rows, device=device))
    written.append(write_whole(output / FIGURE, png(_figure(before, after))))
    (output / _STATE).unlink(missing_ok=True)
    what = "unchanged answers" if by_own_answers else "accuracy"
    columns = (f"{what} in %", "before", "canonicalised")
    summary = f"{what}: {headline(before, after, 'canonicalisation')}"
    costs = _cost_table(subject.network, canonical, subject.facts["size"], device)
    return Outcome(costs, Table(columns, hue_columns(before, after)), summary, written)


def _load_selector(select: str) -> str | HueSelector:
    """The selector of a file; other selections are returned as they are."""
    if not select.endswith(Path(WEIGHTS).suffix):
        return select
    selector = load_model(select)
    if isinstance(selector, Canonicalized) and selector.selector is not None:
        selector = selector.selector
    if not isinstance(selector, HueSelector):
        raise ValueError(f"{select} holds {type(selector).__name__}, expected a selector of hues")
    return selector


def _fit(
    canonical: Canonicalized,
    images: ImageSet,
    epochs: int | None,
    seed: int,
    folder: Path,
    console: Console | None,
    *,
    skip_corrupt: bool,
) -> None:
    assert canonical.selector is not None
    batches = load_for_selector(images, canonical.selector.size, skip_corrupt=skip_corrupt)
    state = folder / _STATE
    try:
        with counting(console, f"fitting the selector to {len(images)} images") as progress:
            canonical.fit(batches, epochs=epochs, seed=seed, checkpoint=state, progress=progress)
    except KeyboardInterrupt:
        if state.exists():
            say(console, f"The same command continues the fit in {folder}.")
        raise
    assert canonical.fitted is not None
    if resumed := canonical.fitted.resumed:
        say(console, f"the fit was continued after epoch {resumed} of {canonical.fitted.epochs}")
    if skipped := len(images) - canonical.fitted.images:
        say(console, f"left out {counted(skipped, 'corrupt image')} of {len(images):,}")


def _hold_out(images: ImageSet) -> tuple[ImageSet, ImageSet]:
    """Images to train on and images to judge with, by a hash of their names."""
    root = images.root or Path()
    names = [file.path.relative_to(root).as_posix() for file in images.files] or [
        str(number) for number in range(len(images))
    ]
    numbers = [hashlib.sha256(name.encode()).digest()[0] % _HELD_OUT for name in names]
    held_out = torch.tensor([number == 0 for number in numbers])
    if int((~held_out).sum()) < FEWEST or not held_out.any():
        raise ValueError(
            f"{images.name} holds {len(images)} images, too few to train on some and judge by "
            f"others: at least {2 * FEWEST} are needed, or images to judge by (--data)"
        )
    train, test = (subset(images, part.nonzero()[:, 0]) for part in (~held_out, held_out))
    return train, test


class _Relabelled:
    """Batches with other labels, in the same order."""

    def __init__(self, batches: Any, labels: Sequence[Tensor]) -> None:
        self.batches, self.labels = batches, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for (images, _), labels in zip(self.batches, self.labels, strict=True):
            yield images, labels


@torch.no_grad()
def _own_answers(
    name: str,
    images: ImageSet,
    *,
    device: torch.device | str,
    split_seed: int | None = None,
    size: int | None = None,
    resize: int | None = None,
    pretrained: bool = True,
    skip_corrupt: bool = False,
    precision: str = "auto",
    classes_by_index: bool = False,
) -> Subject:
    """A network by name and images without labels, labelled with its answers to them."""
    if split_seed is not None or classes_by_index:
        raise ValueError(
            "--split-seed and --classes-by-index need --data: images without labels are split by "
            "their names, and have no classes"
        )
    device = torch.device(device)
    precision = choose_precision(precision, cuda=device.type == "cuda")
    network = load_network(name, pretrained=pretrained, device=device)
    preparation = choose_preparation(network, size=size, resize=resize)
    classes = count_outputs(network, preparation.size)
    if classes == 1:
        raise ValueError(
            f"{name} has 1 output, so that its answer is always the same: without --data, answers "
            "of 2 or more classes are compared"
        )
    batches: Batches = load_batches(images, preparation, device=device, skip_corrupt=skip_corrupt)
    autocast = torch.bfloat16 if precision == "bfloat16" else None
    runner, answers = Runner(network, autocast), []
    with evaluating(network):
        for batch, labels in batches:
            answers.append(runner(runner.place(batch, labels)[0]).argmax(1))
    names = tuple(map(str, range(classes)))
    known = getattr(network, "class_names", ()) or names
    # Labels come with the batches: corrupt images have none.
    none = torch.zeros_like(images.labels)
    labelled = dataclasses.replace(images, labels=none, class_names=known, split="test")
    facts = {"dataset": images.name, "split": "test", **preparation._asdict()}
    facts |= {"precision": precision}
    return Subject(network, labelled, _Relabelled(batches, answers), facts, autocast)


def _save(canonical: Canonicalized, folder: Path) -> Path:
    """The network in one file; of one that cannot be built again, the selector alone."""
    if canonical.config:
        try:
            return save_model(canonical, folder / WEIGHTS)
        except CheckpointError:  # its builder makes another network than this
            if canonical.selector is None:
                raise
    assert canonical.selector is not None
    return save_model(canonical.selector, folder / SELECTOR)


def _cost_table(
    network: nn.Module, canonical: Canonicalized, size: int, device: torch.device | str
) -> Table:
    networks = {"before": network, "canonicalised": canonical}
    with contextlib.suppress(ValueError):  # not every network can be folded
        networks["canonicalised, folded"] = fold(canonical)
    return Table(COST_COLUMNS, cost_rows(cost_report(networks, size, device=device)))


def _figure(before: Evaluation, after: Evaluation) -> Figure:
    curves = []
    named = zip(("before", "canonicalised"), (before, after), _STYLES, strict=True)
    for name, evaluation, style in named:
        sweep = evaluation.sweeps["hsv"]
        label = f"{name}, mean {sweep.mean:.1f}"
        curves.append(Curve(label, sweep.shifts.tolist(), sweep.accuracy.tolist(), style=style))
    return hue_panels({f"{before.facts['model']} on {before.facts['dataset']}": curves}, width=7.4)
