"""Numbers in the README and the pages are those of the committed rows.

`test_docs.py` has the tables of ColorMNIST, classification, fruits, spatial groups and selectors.
"""

import itertools
import math
import re
import statistics
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import nn

from equicolor.color import rotate_hue, shift_hue
from equicolor.groups import cyclic_products
from equicolor.models import create_model, resnet18, resnet44, resnet50
from equicolor.models.widths import ARCHITECTURES, Width, count, resolve_widths
from equicolor.paper import ablations, configurations, equivariance
from equicolor.paper.rows import Findings
from equicolor.paper.variants import PAPER_DATASET
from equicolor.reporting.tables import Table, mean_and_std
from equicolor.results import Row, read_results

ROOT = Path(__file__).parents[1]


def rows_of(name: str, **values: object) -> list[Row]:
    """The rows of a file in results/ that have some values."""
    rows = read_results(ROOT / f"results/{name}.json")["rows"]
    return [row for row in rows if all(row.get(key) == each for key, each in values.items())]


def page(name: str) -> str:
    return (ROOT / name).read_text()


def prose(name: str) -> str:
    """A page whose lines are joined."""
    return " ".join(page(name).split())


def cells_below(name: str, heading: str) -> list[list[str]]:
    """The cells of the first table below some words, without its header and bold type."""
    lines = page(name).partition(heading)[2].partition("\n|--")[2].splitlines()[1:]
    table = list(itertools.takewhile(lambda line: line.startswith("|"), lines))
    assert table, f"{name} has no table below {heading!r}"
    return [line.replace("**", "").strip("| ").split(" | ") for line in table]


def assert_said(name: str, *sentences: str) -> None:
    text = prose(name)
    assert [sentence for sentence in sentences if sentence not in text] == []


WORDS = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


def in_words(points: float) -> str:
    """A number of points, rounded."""
    return WORDS[round(points)]


def mean(rows: Sequence[Row], key: str) -> float:
    return statistics.fmean(row[key] for row in rows)


def accuracies(rows: Sequence[Row], digits: int = 1) -> list[str]:
    """Original and hue-shifted accuracy, with the deviation of three seeds or more."""
    return [
        mean_and_std([row[key] for row in rows], digits) for key in ("original", "hue_mean")
    ]  # fmt: skip


def flowers(model: str, augmentation: str = "none", **values: object) -> list[Row]:
    """The rows of a network that was trained on Flowers-102, three rotations by RGB by default."""
    if model == "ce_resnet18":
        values = {"rotations": 3, "lifting": "rgb", "ce_stages": 4} | values
    values |= {"dataset": "flowers102", "model": model, "augmentation": augmentation}
    return rows_of("classification", **values)


SIX: dict[str, object] = {"rotations": 6, "lifting": "hsv"}
TWELVE: dict[str, object] = {"rotations": 12, "lifting": "hsv"}
IN_README = {
    "plain": flowers("resnet18"),
    "plain, on grey images": flowers("resnet18-gray"),
    "CIConv-W: plain, on a colour-invariant edge map": flowers("ciconv_resnet18"),
    "the paper's layers, three rotations": flowers("ce_resnet18"),
    "HSV lifting, six rotations": flowers("ce_resnet18", **SIX),
    "HSV lifting, twelve rotations": flowers("ce_resnet18", **TWELVE),
    "plain, trained with hue jitter": flowers("resnet18", "jitter 0.5"),
    "three rotations, trained with hue jitter": flowers("ce_resnet18", "jitter 0.5"),
    "HSV, twelve rotations, trained with hue jitter": flowers(
        "ce_resnet18", "jitter 0.5", **TWELVE
    ),
    "CIConv-W, trained with hue jitter": flowers("ciconv_resnet18", "jitter 0.5"),
    "plain, trained with AugMix": flowers("resnet18", "augmix"),
    "three rotations, trained with AugMix": flowers("ce_resnet18", "augmix"),
    "HSV, twelve rotations, trained with AugMix": flowers("ce_resnet18", "augmix", **TWELVE),
}


def test_the_readme_has_the_accuracies_of_the_rows() -> None:
    lines = cells_below("README.md", "\n## What it gains\n")
    assert lines == [
        [name, *accuracies(rows), str(len(rows))] for name, rows in IN_README.items()
    ]  # fmt: skip
    (converted,) = rows_of("conversion", stage="converted and fine-tuned for 20 epochs, max")
    (before,) = rows_of("conversion", stage="before conversion")
    alone, behind = (
        rows_of("canonicalization", model="resnet18", stage=stage)
        for stage in ("network alone", "accurate selector")
    )
    plain, jitter = IN_README["plain"], IN_README["plain, trained with hue jitter"]
    augmix = IN_README["HSV, twelve rotations, trained with AugMix"]
    groups = plain, jitter, augmix, behind, [converted]
    expected = [
        [f"{mean(rows, key):.1f}" for key in ("original", "hue_mean")] for rows in groups
    ]  # fmt: skip
    assert [line[2:] for line in cells_below("README.md", "| you have | command |")] == expected
    original, shifted = expected[0]
    assert_said(
        "README.md",
        f"is right on {original} % of the test images, and on {shifted} % of them",
        f"a network to keep frozen ({mean(alone, 'original'):.1f} alone)",
        f"a trained network ({before['original']:.1f} alone) to fine-tune",
        f"a converted ResNet-18 has {converted['hue_mean']:.1f} % over all hue shifts instead of "
        f"{before['hue_mean']:.1f} %, and {converted['original']:.1f} % on the originals instead "
        f"of {before['original']:.1f} %",
    )


def test_the_readme_compares_networks_as_the_rows_do() -> None:
    twelve, grey, edges = (
        IN_README[name]
        for name in (
            "HSV lifting, twelve rotations", "plain, on grey images",
            "CIConv-W: plain, on a colour-invariant edge map",
        )
    )  # fmt: skip
    rgb = flowers("ce_resnet18", rotations=12)
    next_best = max(mean(rows, "hue_mean") for rows in (grey, edges, rgb))
    assert next_best == mean(rgb, "hue_mean")
    ahead = mean(twelve, "hue_mean") - next_best
    behind = mean(rgb, "original") - mean(twelve, "original")
    assert_said(
        "README.md",
        f"is best on shifted hues: {in_words(ahead)} points above RGB lifting with twelve, which "
        f"is {behind:.1f} points better on the originals",
    )
    edges, slow, augmix = (
        IN_README[name]
        for name in (
            "CIConv-W, trained with hue jitter", "HSV, twelve rotations, trained with hue jitter",
            "HSV, twelve rotations, trained with AugMix",
        )
    )  # fmt: skip
    share = mean(edges, "train_seconds") / mean(slow, "train_seconds")
    assert share == pytest.approx(1 / 4, abs=0.03)
    ahead = mean(augmix, "original") - mean(edges, "original")
    assert_said(
        "README.md",
        f"it does: {mean(augmix, 'hue_mean'):.1f} %, level with CIConv-W and jitter, and "
        f"{mean(augmix, 'original'):.1f} % on the originals, {ahead:.1f} points above it.",
        "reads {:.1f} % and the plain one {:.1f} %".format(
            *(
                mean(rows_of("colormnist-longtailed", model=model, **PLAIN_LOSS), "original")
                for model in ("cecnn", "z2cnn")
            )
        ),
    )


PLAIN_LOSS: dict[str, object] = {"augmentation": "none", "weighted": False}


def test_the_equivariance_of_layers_is_that_of_the_rows() -> None:
    (section,) = equivariance.show(Findings({"equivariance": rows_of("equivariance")}))
    assert isinstance(section.table, Table)
    assert section.table.markdown().splitlines()[2:] == [
        "| " + " | ".join(line) + " |"
        for line in cells_below("docs/experiments/equivariance.md", "![Relative change")
    ]


def test_multiply_accumulates_are_those_of_the_rows() -> None:
    rows = rows_of("configurations")
    assert configurations.report_table(rows).markdown() in page(
        "docs/experiments/configurations.md"
    )
    lines = cells_below("docs/networks.md", "\n## Cost\n")
    plain = {row["model"]: row["macs_dense"] for row in rows if row["rotations"] == 1}
    for line, row in zip(lines, rows, strict=True):
        billions = [row[key] / 1e9 for key in ("macs_dense", "macs_cyclic")]
        over = [f" ({1e9 * each / plain[row['model']]:.1f}×)" for each in billions]
        macs = [
            f"{each:.2f}" + times * (row["rotations"] > 1)
            for each, times in zip(billions, over, strict=True)
        ]
        published = row["paper_macs_g"] and f"{row['paper_macs_g']:.2f}"
        millions = f"{row['parameters'] / 1e6:.2f} M"
        assert line[1:] == [str(row["width"]), millions, *macs, published or ""][: len(line) - 1]


def test_the_macs_of_the_paper_are_compared_as_in_the_rows() -> None:
    said, executed = [], []
    plain: Row = {}
    for row in rows_of("configurations"):
        plain = row if row["rotations"] == 1 else plain
        if row["rotations"] == 3:
            said.append(row["paper_macs_g"] / plain["paper_macs_g"])
            executed.append(row["macs_dense"] / plain["macs_dense"])
    assert_said(
        "docs/networks.md",
        f"suggests {min(said):.1f} to {max(said):.1f} times the baseline, but the code executes "
        f"{min(executed):.1f} to {max(executed):.1f} times",
    )


def parameters(network: nn.Module) -> int:
    return sum(each.numel() for each in network.parameters())


@pytest.mark.slow
def test_widths_and_parameters_are_those_of_the_networks() -> None:
    builders = {"ResNet-18": (resnet18, 4), "ResNet-44": (resnet44, 3), "ResNet-50": (resnet50, 4)}
    for name, *cells in cells_below("docs/networks.md", "Widths of the stages"):
        build, stages = builders[name]
        with torch.device("meta"):
            plain = parameters(build())
            for rotations, cell in zip((3, 6, 12), cells, strict=True):
                network = build(rotations=rotations, ce_stages=stages)
                widths = ", ".join(map(str, network.config["width"]))
                more = 100 * (parameters(network) / plain - 1)
                assert cell == f"{widths} ({more:+.1f} %)".replace("-", "−")


def farthest(depth: int, width: Width = None, *, separable: bool = True) -> int:
    """How far all hybrids up to n = 12 are from the plain parameters, in percent, rounded up."""
    architecture = ARCHITECTURES[depth]
    stages = len(architecture.blocks)
    plain = resolve_widths(architecture, None, 1, 0, separable)
    parameters = count(architecture, plain, 1, 0, separable)
    ratios = (
        count(architecture, resolve_widths(architecture, width, *group), *group) / parameters
        for group in itertools.product(range(2, 13), range(1, stages + 1), [separable])
    )
    return math.ceil(max(100 * abs(ratio - 1) for ratio in ratios))


def test_parameters_are_matched_as_the_page_says() -> None:
    matched, full = (
        max(farthest(depth, separable=separable) for depth in (18, 44))
        for separable in (True, False)
    )
    assert_said(
        "docs/networks.md",
        f"stay within {matched} % with separable filters ({full} % with full ones)",
        f"(within {farthest(18, 'fast')} % for ResNet-18)",
    )


def test_the_sizes_of_networks_are_theirs() -> None:
    text = page("docs/networks.md")
    names = "z2cnn", "resnet44", "resnet18", "resnet34", "resnet50", "resnet101", "resnet152"
    for name in names:
        with torch.device("meta"):
            network = create_model(name)
        assert f"{parameters(network):,}" in text, name
    widths = {row["model"]: str(row["width"]) for row in rows_of("colormnist-longtailed")}
    widths |= {row["model"]: str(row["width"]) for row in rows_of("colormnist-biased")}
    for names, _, width, _ in cells_below("docs/colormnist.md", "\n## Networks\n"):
        assert ", ".join(widths[name] for name in re.findall(r"[\w-]+", names)) == width


def test_products_of_the_algorithms_are_those_of_the_code() -> None:
    for name, words in (
        ("docs/math.md", "### Cost, and why it cannot be less"),
        ("docs/layers.md", "\n## Cost\n"),
    ):
        header = re.search(r"^\| [^|]*n \| 1 \|.*$", page(name).partition(words)[2], re.MULTILINE)
        assert header
        counts = [int(number) for number in re.findall(r"\d+", header[0])]
        dense, cyclic, *_ = cells_below(name, words)
        assert dense[1:] == [str(n * n) for n in counts]
        assert cyclic[1:] == [str(cyclic_products(n)) for n in counts]


def test_the_two_hue_shifts_differ_as_the_pages_say() -> None:
    values = (torch.arange(48, dtype=torch.float64) + 0.5) / 48
    colors = torch.stack(torch.meshgrid(values, values, values, indexing="ij")).flatten(1)
    images = colors[None, :, None]
    for line, clipped in zip(
        cells_below("docs/math.md", "the mean absolute difference is"), (False, True), strict=True
    ):
        for degrees, cell in zip((30, 60, 90, 120), line[1:], strict=True):
            turned = rotate_hue(images, degrees / 360)
            turned = turned.clamp(0, 1) if clipped else turned
            far = (shift_hue(images, degrees / 360) - turned).abs().mean().item()
            assert float(cell) == pytest.approx(far, abs=6e-4)


def test_conversion_is_that_of_the_rows() -> None:
    rows = rows_of("conversion")
    lines = cells_below("docs/convert.md", "On photographs:")
    expected = [[f"{row[key]:.1f}" for key in ("original", "hue_mean")] for row in rows]
    assert [line[1:] for line in lines] == expected
    before, _, tuned, plain, jitter = rows
    short = before["original"] - tuned["original"]
    assert_said(
        "docs/convert.md",
        f"back to {tuned['original']:.1f} %, {short:.1f} points short",
        f"took {tuned['train_seconds']:.0f} s, those of the plain one "
        f"{plain['train_seconds']:.0f} s each",
        f"reaches {mean(flowers('resnet18', 'jitter 0.5'), 'hue_mean'):.1f} % over the hue shifts",
    )
    assert round(jitter["train_seconds"]) == round(plain["train_seconds"])


def test_jitter_and_pooling_are_those_of_the_rows() -> None:
    found: dict[tuple[str, str], list[str]] = {}
    for row in rows_of("ablation-jitter"):
        strength = row["augmentation"].removeprefix("jitter ").replace("none", "0")
        found[row["model"], strength] = accuracies([row])
    for strength, *cells in cells_below("docs/experiments/ablation-jitter.md", "\n## Ours\n"):
        assert cells == [*found["resnet18", strength], *found["ce_resnet18", strength]]
    plain = {strength: float(found["resnet18", strength][0]) for strength in ("0.1", "0.5")}
    behind = float(found["ce_resnet18", "0.5"][1]) - float(found["resnet18", "0.5"][1])
    assert_said(
        "docs/experiments/ablation-jitter.md",
        f"takes {plain['0.1'] - plain['0.5']:.1f} points from the originals, to end "
        f"{behind:.0f} points below",
    )
    pools = {"maximum": "max", "mean": "avg", "flattened": "none"}
    for name, *cells in cells_below("docs/experiments/ablation-cosetpool.md", "\n## Ours\n"):
        pool = pools.get(name.partition(", ")[2])
        assert cells == accuracies(rows_of("ablation-cosetpool", coset_pool=pool))


def test_the_number_of_rotations_is_that_of_the_rows() -> None:
    path = "docs/experiments/ablation-rotations.md"
    rows = rows_of("classification", dataset=PAPER_DATASET, augmentation="none")
    heights = cells_below(path, "Accuracy at the group's own hue shifts")
    table = ablations.peak_table(rows, PAPER_DATASET)
    assert sorted(heights) == sorted(map(list, table.rows))

    def shown(rotations: int, key: str) -> str:
        liftings = (None,) if rotations == 1 else ("rgb", "hsv")
        means = []
        for lifting in liftings:
            model = "resnet18" if lifting is None else "ce_resnet18"
            values = {"rotations": rotations, "lifting": lifting}
            group = [row for row in flowers(model, **values) if key in row]
            means.append(f"{mean(group, key):.1f}")
        return " / ".join(means)

    keys = "original", "hue_mean", "rgb_mean", "rgb_clip_mean"
    for rotations, *cells in cells_below(path, "The others lose up to"):
        assert cells == [shown(int(rotations), key) for key in keys]


def test_neuron_features_and_selectivity_are_those_of_the_rows() -> None:
    path = "docs/experiments/neuron-features.md"
    lines = cells_below(path, "\n## Ours\n")
    assert [line[1:] for line in lines] == [
        [
            f"{row['selective']} of {row['units']}",
            f"{row['hue_deviation']:.1f}°",
            f"{row['hue_deviation_data']:.0f}°",
        ]
        for row in rows_of("neuron-features", rotations=3)
    ]
    six = rows_of("neuron-features", rotations=6)
    *first, last = (f"{row['hue_deviation']:.1f}°" for row in six)
    *before, after = (f"{row['hue_deviation_data']:.0f}°" for row in six)
    assert_said(
        path,
        f"has {', '.join(first)} and {last} in random hues and {', '.join(before)} and {after} in",
    )
    lines = cells_below("docs/experiments/selectivity.md", "\n## Ours\n")
    for line, dataset in zip(lines, ("flowers102", "cifar10"), strict=True):
        (score,) = rows_of("selectivity", dataset=dataset, layer="all")
        layers = [row for row in rows_of("selectivity", dataset=dataset) if row != score]
        scores = (row["selectivity"] for row in (score, layers[0], layers[-1]))
        assert line[2:] == [str(score["units"]), *(f"{each:.2f}" for each in scores)]


def test_what_the_page_on_classification_says_is_in_the_rows() -> None:
    path = "docs/experiments/classification.md"
    lines = cells_below(path, "\n## CIFAR-10\n")
    rows = rows_of("classification", dataset="cifar10")
    assert [line[1:] for line in lines] == [accuracies([row], 2) for row in rows]
    (edges,) = flowers("ciconv_resnet18", "jitter 0.5")
    slow = flowers("ce_resnet18", "jitter 0.5", **TWELVE)
    trained = [round(row["train_seconds"]) for row in slow]
    plain = [row["evaluate_seconds"] for row in rows_of("classification", model="resnet18")]
    swept = [
        row["evaluate_seconds"] for row in rows_of("classification", rotations=12, size=224)
    ]  # fmt: skip
    (three,) = flowers("ce_resnet18", "augmix")
    (alone,) = flowers("resnet18", "augmix")
    augmix = flowers("ce_resnet18", "augmix", **TWELVE)
    best = mean(augmix, "original") - edges["original"]
    assert_said(
        path,
        f"{edges['original']:.1f} % on the originals and {edges['hue_mean']:.1f} % on shifted hues",
        f"took {edges['train_seconds']:.0f} s to train, twelve rotations with jitter "
        f"{min(trained)} to {max(trained)} s",
        f"{alone['original']:.1f} % on the originals, {alone['hue_mean']:.1f} % on shifted hues",
        f"have {three['original']:.1f} and {three['hue_mean']:.1f} %",
        f"shifted hues: {mean(augmix, 'original'):.1f} and {mean(augmix, 'hue_mean'):.1f} %",
        f"{best:.1f} points above CIConv-W with jitter on the originals",
        f"take {min(plain):.0f} to {max(plain):.0f} s with the plain network and {min(swept):.0f} "
        f"to {max(swept):.0f} s with twelve rotations",
    )


def test_what_pages_say_of_smaller_batches_is_in_the_rows() -> None:
    name, file = "docs/experiments/classification.md", "classification-recipe"
    trained = [("resnet18", "jitter 0.5", {}), ("resnet18", "augmix", {})]
    trained += [("ce_resnet18", "augmix", TWELVE)]
    found, before = [], []
    for model, augmentation, values in trained:
        before.append(flowers(model, augmentation, **values))
        given = {"model": model, "augmentation": augmentation, "optimizer": "adam", **values}
        found.append(rows_of(file, **given))
        assert [(row["batch_size"], row["label_smoothing"]) for row in found[-1]] == [(64, 0.1)]
    both = [
        [f"{mean(rows, 'original'):.2f} / {mean(rows, 'hue_mean'):.2f}" for rows in pair]
        for pair in zip(before, found, strict=True)
    ]
    assert [cells[1:] for cells in cells_below(name, "\n### Smaller batches\n")] == both
    (decayed,) = rows_of(file, optimizer="adamw")
    rows = [*rows_of(file), *itertools.chain(*before)]
    errors = {size: [row["ece"] for row in rows if row["batch_size"] == size] for size in (64, 256)}
    leads = [mean(rows[2], "hue_mean") - mean(rows[0], "hue_mean") for rows in (before, found)]
    assert_said(
        name,
        f"shrinks from {leads[0]:.0f} points to {in_words(leads[1])}",
        f"({decayed['original']:.2f} / {decayed['hue_mean']:.2f})",
        f"is {min(errors[64]):.0f} to {max(errors[64]):.0f} points instead of "
        f"{min(errors[256]):.0f} to {max(errors[256]):.0f}",
    )
    cells = [line[1:] for line in cells_below(name, "The two changes apart")]
    assert cells == [
        [
            " / ".join(accuracies(rows_of("classification-batches", batch_size=size, **smooth), 2))
            for size in (256, 64)
        ]
        for smooth in ({"label_smoothing": 0.0}, {"label_smoothing": 0.1})
    ]
    jitter, augmix, twelve = (" and ".join(accuracies(rows)) for rows in found)
    assert_said(
        "README.md",
        f"**{twelve} %** for twelve rotations with AugMix, {augmix} % for the plain network with "
        f"AugMix, {jitter} % with hue jitter",
    )
    gains = [
        mean(after, key) - mean(first, key)
        for first, after in zip(before, found, strict=True)
        for key in ("original", "hue_mean")
    ]
    assert_said("docs/which-network.md", f"with {twelve} % in the last (one")
    assert round(min(gains)) == 2
    assert round(max(gains)) == 10


def test_what_the_page_says_of_gains_is_in_the_rows() -> None:
    networks = "plain", "CIConv-W", "three rotations", "twelve rotations"
    settings = (
        ("resnet18", {}),
        ("ciconv_resnet18", {}),
        ("ce_resnet18", {}),
        ("ce_resnet18", TWELVE),
    )
    original, shifted = (
        {
            (name, augmentation): mean(rows, key)
            for name, (model, values) in zip(networks, settings, strict=True)
            for augmentation in ("none", "jitter 0.5", "augmix")
            if (rows := flowers(model, augmentation, **values))
        }
        for key in ("original", "hue_mean")
    )
    twelve, jitter, augmix = (
        ("twelve rotations", augmentation) for augmentation in ("none", "jitter 0.5", "augmix")
    )
    best = mean(flowers("ce_resnet18", rotations=12), "original")
    edges, plain = ("CIConv-W", "jitter 0.5"), ("plain", "jitter 0.5")
    points = [original[edges] - original[jitter], shifted[edges] - shifted[jitter]]
    caltech = {
        row["model"]: row for row in rows_of("classification-caltech101", augmentation="none")
    }
    three, alone = caltech["ce_resnet18"], caltech["resnet18"]
    assert 1 < best - original[twelve] < 1.5
    assert three["original"] - alone["original"] == pytest.approx(-0.5, abs=0.1)
    assert_said(
        "docs/experiments/classification.md",
        f"CIConv-W is {original['CIConv-W', 'none'] - original[twelve]:.1f} points above it",
        f"adds {in_words(original[jitter] - original[twelve])} point to twelve rotations on the "
        f"originals and {in_words(shifted[jitter] - shifted[twelve])} on shifted hues: "
        f"{shifted[jitter]:.1f} %, {in_words(shifted[jitter] - shifted[plain])} points above the",
        f"{in_words(min(points))} to {in_words(max(points))} points above twelve rotations with",
        f"where it had {shifted['plain', 'none']:.1f} % before",
        f"AugMix adds {original[augmix] - original[twelve]:.1f} points on the originals",
        f"on shifted hues by {three['hue_mean'] - alone['hue_mean']:.0f} points",
    )


def test_the_prose_of_the_ablations_is_in_the_rows() -> None:
    rotations = "docs/experiments/ablation-rotations.md"
    rows = rows_of("classification", dataset=PAPER_DATASET, augmentation="none", ce_stages=4)
    spans: dict[str, dict[int, list[float]]] = {"exact": {}, "other": {}}
    for row in rows:
        for action in ("hue", "rgb", "rgb_clip"):
            curve = row.get(f"{action}_curve")
            heights = curve and ablations.peaks(curve, row["rotations"])
            exact = (row["lifting"], action) in (("hsv", "hue"), ("rgb", "rgb"))
            if heights and row["rotations"] > 3:
                kind = spans["exact" if exact else "other"]
                kind.setdefault(row["rotations"], []).append(max(heights) - min(heights))
    exact = list(itertools.chain(*spans["exact"].values()))
    lost = {n: max(values) for n, values in spans["other"].items()}
    hsv, rgb = ([row for row in rows if row["lifting"] == name] for name in ("hsv", "rgb"))
    twelve = [[row for row in group if row["rotations"] == 12] for group in (hsv, rgb)]
    turned = [[row for row in group if "rgb_mean" in row] for group in twelve]
    behind = mean(twelve[0], "hue_mean") - mean(twelve[1], "hue_mean")
    ahead = mean(turned[1], "rgb_mean") - mean(turned[0], "rgb_mean")
    assert_said(
        rotations,
        f"differ by {min(exact):.2f} to {max(exact):.2f} points, up to "
        f"{in_words(max(exact) / 100 * 6149)} of 6149 images",
        f"lose up to {lost[6]:.0f} points at n = 6 and {lost[12]:.0f} at n = 12",
        f"{behind:.1f} points between the two at n = 12 under HSV shifts, "
        f"{ahead:.1f} the other way",
    )
    pools = {row["coset_pool"]: row["original"] for row in rows_of("ablation-cosetpool")}
    assert abs(pools["max"] - pools["avg"]) == pytest.approx(0.5, abs=0.2)
    assert_said(
        "docs/experiments/ablation-cosetpool.md",
        f"gives it {in_words(pools['none'] - pools[None])} points on the originals",
    )


def test_what_pages_say_besides_their_tables_is_in_the_rows() -> None:
    alone, accurate, entropy, grey = (
        rows_of("canonicalization", model="resnet18", stage=stage)
        for stage in ("network alone", "accurate selector", "lowest entropy", "grey world")
    )
    first = next(row for row in alone if row["seed"] == 0)
    jitter, twelve = flowers("resnet18", "jitter 0.5"), flowers("ce_resnet18", **TWELVE)
    lowest = min(map(statistics.fmean, zip(*(row["hue_curve"] for row in accurate), strict=True)))
    best = " and ".join(f"{mean(twelve, key):.1f}" for key in ("original", "hue_mean"))
    assert_said(
        "docs/canonicalize.md",
        f"whose network alone has {first['original']:.1f} / {first['hue_mean']:.1f} %",
        f"all but {mean(alone, 'original') - lowest:.1f} points",
        f"has {mean(jitter, 'original'):.1f} / {mean(jitter, 'hue_mean'):.1f} %, and one with "
        f"twelve rotations {best.replace(' and ', ' / ')} %",
        f"Twelve rotations in the network itself reach {best} %",
    )
    assert mean(grey, "original") / mean(alone, "original") == pytest.approx(1 / 2, abs=0.03)
    assert_said(
        "docs/which-network.md",
        f"[{first['original'] - mean(entropy, 'original'):.0f} points on the originals]",
    )
    hue, space = (
        mean(rows_of("space", **values), "original") - mean(rows_of("space", **PLAIN), "original")
        for values in ({"rotations": 6, "spatial": None}, {"rotations": 1, "spatial": "p4m"})
    )
    plain, turned = (row["gflop"] for row in rows_of("bench-space-cuda", variant="auto"))
    assert_said(
        "docs/space.md",
        f"by {space:.0f} points in space and by {hue:.0f} in hue",
        f"{turned / plain:.1f} times the operations",
    )
    varieties = {
        row["network"]: row["original"] for row in rows_of("fruits", dataset="fruits")
    }  # fmt: skip
    lost = [
        in_words(varieties["plain"] - varieties[name])
        for name in ("plain, jitter of half a turn", "plain, on grey images")
    ]
    assert_said(
        "docs/experiments/fruits.md",
        f"hue jitter costs {lost[0]} points and grey images {lost[1]}",
    )


PLAIN: dict[str, object] = {"rotations": 1, "spatial": None}


def test_the_training_steps_of_the_speed_page_are_those_of_the_rows() -> None:
    rows = rows_of("bench-networks-cuda", mode="training")
    lines = cells_below("docs/speed.md", "\n## Training steps\n")
    for (_, ms, over, memory, tflops, peak), row in zip(lines, rows, strict=True):
        digits = 1 if row["ms"] < 100 else 0
        assert [ms, tflops, peak] == [
            f"{row['ms']:.{digits}f}", f"{row['tflops']:.0f}", f"{row['peak_fraction']:.0%}"
            .replace("%", " %"),
        ]  # fmt: skip
        assert float(over) == pytest.approx(row["over_plain"], abs=0.0051)
        if "memory_over_plain" in row:
            assert float(memory) == pytest.approx(row["memory_over_plain"], abs=0.0051)
        else:
            assert memory == "–"
    low, high = (end(rows[0]["times_ms"]) for end in (min, max))
    ms = {row["name"]: row["ms"] for row in rows}
    fast, matched = (ms[f"n12-{widths}"] / ms[f"n3-{widths}"] for widths in ("fast", "matched"))
    own = {row["name"]: row for row in rows_of("bench-eager-cuda", form="eager")}
    three, twelve = own["n3-fast"], own["n12-fast-hsv"]
    assert_said(
        "docs/speed.md",
        f"steady, {low:.1f} to {high:.1f} ms over the rounds",
        f"cost {fast:.1f} times as much as three at fast widths and {matched:.1f} times at matched",
        f"three rotations take {three['ms']:.1f} ms and twelve with HSV lifting "
        f"{twelve['ms']:.1f} ms, {three['over_plain']:.2f} and {twelve['over_plain']:.2f} times",
    )
    compiled, recorded = rows_of("bench-small-cuda", variant="plain")
    saved = 1 - compiled["ms"] / recorded["ms"]
    assert saved == pytest.approx(1 / 5, abs=0.02)
    assert 1 - rows[0]["ms"] / rows[1]["ms"] == pytest.approx(1 / 5, abs=0.02)


def test_small_images_of_the_speed_page_are_those_of_the_rows() -> None:
    lines = cells_below("docs/speed.md", "**Small images.**")
    for (_, ms, over, images), row in zip(lines, rows_of("bench-small-cuda"), strict=True):
        assert ms == f"{row['ms']:.1f}"
        assert float(over) == pytest.approx(row["over_plain"], abs=0.0051)
        assert images == f"{row['images_per_s']:,.0f}"


def test_whole_trainings_of_the_speed_page_are_those_of_the_rows() -> None:
    small, _ = rows_of("bench-loop-small-cuda")
    large, *_ = rows_of("bench-loop-cuda")
    long, *_ = rows_of("bench-loop-long-cuda")
    recorded = rows_of("bench-networks-cuda", mode="training")[1]
    assert large["images_per_s"] == pytest.approx(recorded["images_per_s"], rel=0.02)
    assert_said(
        "docs/speed.md",
        f"on CIFAR-10 for {small['epochs']} epochs, so it is compiled: "
        f"{round(small['images_per_s'], -1):,.0f}, which is {small['over_bare']:.2f} times the",
        f"Flowers-102 in a training of {long['epochs']:,} epochs: "
        f"{round(long['images_per_s'], -1):,.0f}, {long['over_bare']:.2f} times",
        f"One of {large['epochs']} epochs is only recorded: "
        f"{round(large['images_per_s'], -1):,.0f}, as fast as the recorded step above, and "
        f"{large['over_bare']:.2f} times the compiled one",
    )


def test_the_kernels_of_the_speed_page_are_those_of_the_rows() -> None:
    kinds = "convolution or matrix product", "convolution, gradient of inputs"
    kinds = *kinds, "convolution, gradient of filters", "ours"
    lines = cells_below("docs/speed.md", "**Where the time goes.**")
    floors, steps = (
        [],
        {row["name"]: row for row in rows_of("bench-networks-cuda", mode="training")},
    )
    files = {"n3-fast": "", "n12-fast-hsv": "", "n3-fast of ResNet-44": "-small"}
    for (_, *cells), (case, file) in zip(lines, files.items(), strict=True):
        name = case.partition(" ")[0]
        found = rows_of(f"bench-kernels{file}-cuda", mode="training")
        rows = [row for row in found if row["name"] == name]
        sums = [sum(row["ms"] for row in rows if row["kind"] == kind) for kind in kinds]
        sums.append(sum(row["ms"] for row in rows) - sum(sums))
        assert [float(cell) for cell in cells] == pytest.approx(sums, abs=0.051)
        if not file:
            step = steps[name]
            floors.append(step["tflops"] * step["ms"] / 650 + sums[3])
    plain = rows_of("bench-networks-cuda", mode="training")[0]["ms"]
    three, twelve = floors
    assert_said(
        "docs/speed.md",
        f"n = 3 would take {three:.0f} ms ({three / plain:.1f} times the plain network) and n = 12 "
        f"{twelve:.0f} ms ({twelve / plain:.1f} times)",
    )


def test_folded_networks_of_the_speed_page_are_those_of_the_rows() -> None:
    plain, _, *rows = rows_of("bench-networks-cuda", mode="folded")
    lines = cells_below("docs/speed.md", "Milliseconds for 256 images")
    for (_, _, folded, images), row in zip(lines, rows, strict=True):
        ms, over = re.findall(r"[\d.]+", folded)
        assert float(ms) == pytest.approx(row["ms"], abs=0.051)
        assert float(over) == pytest.approx(row["over_plain"], abs=0.0051)
        assert float(images.replace(",", "")) == pytest.approx(row["images_per_s"], abs=5)
    assert_said("docs/speed.md", f"takes {plain['ms']:.2f} ms")


def test_layers_on_a_cpu_are_those_of_the_rows() -> None:
    stages = [f"stage{number}" for number in range(1, 5)]
    lines = cells_below("docs/speed.md", "\n## On a CPU\n")
    for line, rotations in zip(lines, (3, 12), strict=True):
        found = rows_of("bench-layers-cpu", mode="training", variant="auto", rotations=rotations)
        ratios = [row["dense_over"] for row in found if row["model"] in stages]
        ratios.append(statistics.geometric_mean(ratios))
        for cell, ratio in zip(line[1:], ratios, strict=True):
            digits = len(cell.partition(".")[2])
            assert cell == f"{ratio:.{digits}f}"


def test_precision_is_that_of_the_rows() -> None:
    fused, dense = (rows_of("bench-precision-cuda", variant=name) for name in ("auto", "dense"))
    off = [100 * mean(rows, "gradient_error") for rows in (fused, dense)]

    def listed(rows: list[Row], key: str, digits: int) -> str:
        *others, last = (f"{row[key]:.{digits}f}" for row in rows)
        return f"{', '.join(others)} and {last}"

    pairs = [*zip(fused, dense, strict=True)]
    ratios = [row["gradient_error"] / other["gradient_error"] for row, other in pairs]
    lower = [other["mean_loss"] - row["mean_loss"] for row, other in pairs]
    ends = [abs(other["final_loss"] - row["final_loss"]) for row, other in pairs]
    assert_said(
        "docs/speed.md",
        f"has gradients {off[0]:.0f} % off float64's",
        f"{off[1]:.0f} % off on the dense one",
        f"a ratio of {max(ratios):.2f} at most",
        f"losses are {listed(fused, 'mean_loss', 3)} on average and "
        f"{listed(fused, 'final_loss', 4)} at the end (fused), {listed(dense, 'mean_loss', 3)} and "
        f"{listed(dense, 'final_loss', 4)} (dense)",
        f"the fused ones are {min(lower):.2f} to {max(lower):.2f} lower on average, and within "
        f"{max(ends):.4f} at the end",
    )


def test_what_the_page_says_of_long_tails_is_in_the_rows() -> None:
    path = "docs/colormnist.md"

    def accuracy(model: str, *, weighted: bool = False) -> float:
        values = {"model": model, "weighted": weighted, "augmentation": "none"}
        return mean(rows_of("colormnist-longtailed", **values), "original")

    gain = accuracy("z2cnn", weighted=True) - accuracy("z2cnn")
    loss = accuracy("cecnn") - accuracy("cecnn", weighted=True)
    results = read_results(ROOT / "results/colormnist-longtailed.json")
    seconds = results["seconds"]
    four = [seconds[name] for name in ("z2cnn", "z2cnn-gray", "cecnn", "cecnn-pooled")]
    *others, last = (f"{each:.0f}" for each in four)
    biased = rows_of("colormnist-biased", augmentation="jitter 0.5")
    cells: dict[tuple[str, float], list[float]] = {}
    for row in biased:
        cells.setdefault((row["model"], row["sigma"]), []).append(row["original"])
    means = [statistics.fmean(values) for values in cells.values()]
    redrawn = read_results(ROOT / "results/colormnist-biased.json")["seconds"]
    again = [f"{redrawn[f'{name} --redraw']:.0f}" for name in ("z2cnn", "cecnn", "cecnn-pooled")]
    assert_said(
        path,
        f"{accuracy('cecnn') - accuracy('z2cnn'):.1f} points here",
        f"gives the plain network {gain:.1f} points and takes {loss:.1f} from",
        f"took {', '.join(others)} and {last} seconds",
        f"{sum(four):.0f} for 40 networks",
        f"{min(means):.1f} to {max(means):.1f} at every spread",
        f"took {again[0]}, {again[1]} and {again[2]} seconds",
    )
