"""Several networks judged on the same images: tables, a figure and a page."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from rich.console import Console
from torch import Tensor

from equicolor import _checks
from equicolor._files import output_folder, refuse_files, refuse_to_replace, write_whole
from equicolor._text import counted, enumerated, shortened
from equicolor.evaluation.actions import action_named, action_values
from equicolor.evaluation.diagnose import Subject, judge, open_subject
from equicolor.evaluation.evaluate import Evaluation
from equicolor.evaluation.figures import Curve, action_panels, curve_style, sweep_curve
from equicolor.evaluation.hue_sweep import HueSweep
from equicolor.evaluation.images import OtherClassesError
from equicolor.evaluation.report import details, lowest_cells
from equicolor.models.cost import Cost, cost
from equicolor.models.facts import network_title
from equicolor.models.loading import is_foreign
from equicolor.models.tensor_files import name_of_file
from equicolor.reporting.figures import png
from equicolor.reporting.html import Section, write_report
from equicolor.reporting.tables import MISSING, Table
from equicolor.results import provenance, write_results

RESULTS, FIGURE, PAGE = "comparison.json", "curves.png", "comparison.html"
_NAME_LENGTH = 36  # characters of a name in a figure, at most


@dataclass(frozen=True, eq=False)
class Compared:
    """One of several networks that were judged on the same images."""

    network: str  # as the user named it
    name: str  # a shorter one, unique among the networks
    cost: Cost | None  # for one image; None if it cannot be counted
    evaluation: Evaluation

    @property
    def first_sweep(self) -> HueSweep:
        """The sweep of the action that was named first."""
        return next(iter(self.evaluation.sweeps.values()))


def compare(
    networks: Sequence[str | Path],
    data: str | Path | None = None,
    *,
    actions: Sequence[str] = ("hsv",),
    shifts: int | Sequence[float] | Tensor = 37,
    pretrained: bool = True,
    split_seed: int | None = None,
    batch_size: int | None = None,
    skip_corrupt: bool = False,
    console: Console | None = None,
    **options: Any,
) -> list[Compared]:
    """Judge several networks on the same images.

    All networks are loaded, and their classes compared with those of the images, before the first
    one is judged. Each network gets images of its own size.

    Args:
        networks: two or more, each as :func:`equicolor.models.load_network` takes it.
        data: a dataset by name or folder; by default what the first network was trained on.
        actions, shifts: see :func:`equicolor.evaluation.evaluate`; there must be an action.
        pretrained: load the weights that timm and torchvision offer.
        split_seed: for datasets without a split of their own; by default that of the training,
            which must be the same for all networks trained on the dataset.
        batch_size, skip_corrupt, console: see :func:`equicolor.evaluation.diagnose.load_subject`.
        options: others of :func:`equicolor.evaluation.diagnose.open_subject`, for all networks.
    """
    specs = [str(network) for network in networks]
    if len(specs) < 2:
        raise ValueError(f"compare needs two networks or more, got {len(specs)}: {specs}")
    repeated = [spec for spec in dict.fromkeys(specs) if specs.count(spec) > 1]
    if repeated:
        raise ValueError(f"networks must differ, got twice: {enumerated(repeated)}")
    actions = list(actions)
    if not action_values(actions, shifts):
        raise ValueError("compare needs an action, such as hsv; got none")
    if batch_size is not None:
        _checks.positive_int("batch_size", batch_size)
    console = Console(stderr=True) if console is None else console
    if not pretrained and not any(map(is_foreign, specs)):
        raise ValueError(
            "pretrained chooses the weights of timm's and torchvision's networks, but none of "
            "these is one: leave --no-pretrained out"
        )

    def open_one(spec: str, data: str | Path | None, seed: int | None) -> Subject:
        weights = pretrained or not is_foreign(spec)
        try:
            return open_subject(
                spec, data, pretrained=weights, split_seed=seed, console=console, **options
            )
        except OtherClassesError as error:
            raise ValueError(f"{spec}: {error}") from None

    subjects = [open_one(specs[0], data, split_seed)]
    subjects += [open_one(spec, subjects[0].data, split_seed) for spec in specs[1:]]
    seed = _common_seed(specs, subjects)
    subjects = [
        subject if (subject.split_seed or 0) == seed else open_one(spec, subjects[0].data, seed)
        for spec, subject in zip(specs, subjects, strict=True)
    ]
    compared = []
    for spec, name in zip(specs, short_names(specs), strict=True):
        subject = subjects.pop(0).decode(
            batch_size=batch_size, skip_corrupt=skip_corrupt, console=console
        )
        evaluation = judge(subject, actions=actions, shifts=shifts, console=console)
        try:
            counts = cost(subject.network, evaluation.facts["size"])
        except (RuntimeError, ValueError):  # not every network runs on the meta device
            counts = None
        compared.append(Compared(spec, name, counts, evaluation))
    return compared


def _common_seed(specs: Sequence[str], subjects: Sequence[Subject]) -> int:
    """The split seed of all networks that know theirs; 0 if none does."""
    seeds = {
        spec: subject.split_seed
        for spec, subject in zip(specs, subjects, strict=True)
        if subject.split_seed is not None
    }
    if len(set(seeds.values())) > 1:
        pairs = enumerated([f"{seed} of {spec}" for spec, seed in seeds.items()])
        raise ValueError(
            f"the networks were trained on different splits of {subjects[0].images.name} (seeds: "
            f"{pairs}), so test images of one are training images of another; --split-seed "
            "chooses one nevertheless"
        )
    return next(iter(seeds.values()), 0)


def short_names(specs: Sequence[str]) -> list[str]:
    """The last parts of paths and names, or the whole ones where two would be the same.

    Example:
        >>> short_names(["runs/first/model.safetensors", "runs/second/", "timm:resnet18"])
        ['first', 'second', 'timm:resnet18']
        >>> short_names(["a/run", "b/run"])
        ['a/run', 'b/run']
    """
    names = [name_of_file(spec) for spec in specs]
    return [
        spec if not name or names.count(name) > 1 else name
        for spec, name in zip(specs, names, strict=True)
    ]


def comparison_table(compared: Sequence[Compared], *, brief: bool = False) -> Table:
    """Cost and accuracy, one line per network; ``brief`` leaves out columns, for a terminal."""
    first, *others = (action_named(action) for action in compared[0].evaluation.sweeps)
    columns = ["network", "architecture", "parameters", "GMACs", "original", first.label]
    columns += ["lowest", *([] if brief else ["lowest at", "answers changed"])]
    for other in others:
        columns += [other.label, "lowest"]
    lines = []
    for each in compared:
        evaluation, sweep = each.evaluation, each.first_sweep
        title = network_title(evaluation.facts | {"run": "", "dataset": ""})
        line = [
            each.name,
            MISSING if title == each.name else title,
            MISSING if each.cost is None else f"{each.cost.parameters:,}",
            MISSING if each.cost is None else f"{each.cost.macs / 1e9:.3g}",
            f"{evaluation.original:.2f}",
            f"{sweep.mean:.2f}",
            *lowest_cells(sweep)[: 1 if brief else 3],
        ]
        for another in list(evaluation.sweeps.values())[1:]:
            line += [f"{another.mean:.2f}", f"{float(another.accuracy.min()):.2f}"]
        lines.append(line)
    images = " or ".join(dict.fromkeys(f"{each.evaluation.images:,}" for each in compared))
    title = f"{compared[0].evaluation.facts['dataset']}, {images} images; accuracy in percent"
    return Table(columns, lines, title, text_columns=2).without_empty(["architecture"])


def class_table(compared: Sequence[Compared], *, most: int = 10) -> Table:
    """The classes whose mean accuracy under the first action differs most between networks."""
    action = compared[0].first_sweep.action
    accuracy = [
        {change.name: change.shifted for change in each.evaluation.class_changes(action)}
        for each in compared
    ]
    names = [name for name in accuracy[0] if all(name in each for each in accuracy)]

    def difference(name: str) -> float:
        values = [each[name] for each in accuracy]
        return max(values) - min(values)

    names.sort(key=difference, reverse=True)
    lines = [(name, *(f"{each[name]:.1f}" for each in accuracy)) for name in names[:most]]
    which = f"The {most} of {len(names)} classes" if len(names) > most else "Classes"
    title = f"{which} that differ most; accuracy in percent, mean over {action_named(action).label}"
    return Table(("class", *(each.name for each in compared)), lines, title)


def comparison_figure(compared: Sequence[Compared]) -> Figure:
    """One panel per action, with the curves of all networks."""
    panels: dict[str, list[Curve]] = {action: [] for action in compared[0].evaluation.sweeps}
    for place, each in enumerate(compared):
        name = shortened(each.name, _NAME_LENGTH)
        for action, sweep in each.evaluation.sweeps.items():
            panels[action].append(sweep_curve(sweep, name, curve_style(place)))
    return action_panels(panels, width=7.4)


def headline(compared: Sequence[Compared]) -> str:
    """One sentence: the best networks, under the first action and on the original images."""
    best = max(compared, key=lambda each: each.first_sweep.mean)
    original = max(compared, key=lambda each: each.evaluation.original)
    label = action_named(best.first_sweep.action).label
    return (
        f"Highest mean over {label}: {best.name} with {best.first_sweep.mean:.1f} %; on the "
        f"original images: {original.name} with {original.evaluation.original:.1f} %."
    )


def write(
    compared: Sequence[Compared], output: Path | str, *, device: torch.device | str = "cpu"
) -> list[Path]:
    """Write a page, the figure and all numbers into a folder; earlier files are replaced.

    Returns:
        The files: ``comparison.html``, with everything inside; ``curves.png``; and
        ``comparison.json``, which has a row for each network with the keys of
        :func:`equicolor.evaluation.report.write` and ``network``, ``name``, ``parameters`` and
        ``macs``.
    """
    folder = output_folder(output)
    rows = []
    for each in compared:
        parameters, macs = each.cost or (None, None)
        row = {"network": each.network, "name": each.name, "parameters": parameters, "macs": macs}
        rows.append(row | each.evaluation.rows()[0] | details(each.evaluation))
    figure = png(comparison_figure(compared))
    label = action_named(compared[0].first_sweep.action).label
    classes = class_table(compared)
    sections = [
        Section(
            "Accuracy and cost",
            "GMACs are billions of multiply-accumulates executed for one image, with the "
            "algorithm that every layer chooses here ('equicolor cost' counts both). Answers "
            "changed: the share of images with another answer than untouched, on average.",
            comparison_table(compared),
            figure,
            "Accuracy of every network over the values of each action.",
        ),
        Section("Classes", f"{classes.title}.", replace(classes, title="")),
    ]
    page = write_report(
        folder / PAGE,
        f"{counted(len(compared), 'network')} on {compared[0].evaluation.facts['dataset']}",
        sections,
        lead=headline(compared),
        numbers={f"{one.name}, {label}": f"{one.first_sweep.mean:.1f} %" for one in compared[:4]},
        provenance=provenance(device),
    )
    results = write_results(folder / RESULTS, rows, device=device)
    return [page, write_whole(folder / FIGURE, figure), results]


def refuse_existing(output: Path | str, overwrite: bool) -> None:
    """Refuse a folder that is a file or holds an earlier comparison, before any work."""
    refuse_files(Path(output))
    refuse_to_replace((Path(output) / name for name in (PAGE, FIGURE, RESULTS)), overwrite)
