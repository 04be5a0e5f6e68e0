"""Evaluations: consistent numbers, rows, tables, files and the figure."""

import dataclasses
import itertools
import json
import statistics
from pathlib import Path

import pytest
import torch
from matplotlib.text import Text
from rich.console import Console
from torch import Tensor, nn

from equicolor.data import ImageSet, decode, load_mnist
from equicolor.evaluation import ACTIONS, Evaluation, evaluate, hue_sweep, report
from equicolor.evaluation.figures import Curve, curve_style, evaluation_figure, hue_panels, spread
from equicolor.models import resnet44
from equicolor.results import read_results

NAMES = ("red", "green", "blue", "grey")


class Colours(nn.Module):
    """Names the strongest channel, or grey if there is none; with high confidence."""

    def forward(self, images: Tensor) -> Tensor:
        means = images.mean((2, 3))
        return 20 * torch.cat((means, means.mean(1, keepdim=True) + 0.1), 1)


@pytest.fixture
def batches() -> list[tuple[Tensor, Tensor]]:
    """Ten red, four green and six grey images, no blue ones; two labels are wrong."""
    colours = {0: (0.9, 0.1, 0.1), 1: (0.2, 0.7, 0.2), 3: (0.5, 0.5, 0.5)}
    labels = torch.tensor([0] * 10 + [1] * 4 + [3] * 6)
    raw = torch.stack([torch.tensor(colours[int(label)]) for label in labels])
    images = raw.view(-1, 3, 1, 1).expand(-1, 3, 4, 4).clone()
    labels = labels.clone()
    labels[9], labels[19] = 3, 0
    return [(images[:13], labels[:13]), (images[13:], labels[13:])]


@pytest.fixture
def result(batches) -> Evaluation:
    return evaluate(Colours(), batches, class_names=NAMES, facts={"dataset": "toy", "seed": 4})


def test_numbers_are_consistent(result: Evaluation, batches) -> None:
    assert result.images == 20
    assert result.original == 90
    assert result.per_class[[0, 1, 3]].tolist() == pytest.approx([90, 100, 500 / 6])
    assert result.per_class[2].isnan()
    assert list(result.sweeps) == ["hsv", "rgb", "rgb-clip"]
    for action, sweep in result.sweeps.items():
        assert sweep.original == result.original
        alone = hue_sweep(Colours(), batches, action=action)
        assert torch.equal(alone.correct, sweep.correct)
    assert 0 < result.reliability.expected_error < 20
    assert result.nll > 0
    assert result.seconds > 0


def test_accuracy_has_double_precision() -> None:
    """That of the sweep and of the evaluation, also of networks in double precision."""

    class Nearly(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return torch.tensor([1, 1 + 1e-12], dtype=torch.float64).expand(len(images), 2)

    batches = [(torch.rand(3, 3, 4, 4), torch.tensor([0, 0, 1]))]
    result = evaluate(Nearly(), batches, shifts=[0.0], actions=["hsv"])
    sweep = result.sweeps["hsv"]
    for value in (result.original, sweep.original, float(sweep.accuracy[0])):
        assert value == pytest.approx(100 / 3, rel=1e-12)


def test_results_are_short_in_a_notebook(result: Evaluation) -> None:
    assert repr(result).startswith(
        "Evaluation(Colours on toy, 20 images of 4 classes: original 90.0"
    )
    assert "RGB rotation, clipped " in repr(result)
    assert repr(result.reliability).startswith("Reliability(edges=float64 [16], counts=int64 [15]")
    pixels, names = torch.zeros(9, 3, 8, 8, dtype=torch.uint8), tuple("abcdefghi")
    images = ImageSet("toy", "train", torch.arange(9), names, pixels=pixels)
    assert repr(images) == (
        "ImageSet(name='toy', split='train', labels=int64 [9], class_names=9 items, "
        "files=ImageFiles(0 files), pixels=uint8 [9, 3, 8, 8], root=None)"
    )
    for each in (result, result.reliability, images, decode(images), load_mnist(embedded=True)):
        assert "\n" not in repr(each)
        assert len(repr(each)) < 300


def test_changes_of_an_action_that_was_not_swept_are_refused(batches) -> None:
    result = evaluate(Colours(), batches, shifts=2, actions=["rgb"])
    with pytest.raises(ValueError, match="action must be one of 'rgb'; got 'hsv'"):
        result.class_changes()


def test_changes_are_sorted_by_loss(result: Evaluation) -> None:
    changes = result.class_changes()
    assert {change.name for change in changes} == {"red", "green", "grey"}  # blue has no images
    assert [change.drop for change in changes] == sorted((c.drop for c in changes), reverse=True)
    by_name = {change.name: change for change in changes}
    grey = by_name["grey"]
    assert (grey.images, grey.original) == (6, pytest.approx(500 / 6))
    # The five grey images stay grey; the red one that is labelled so is never right.
    assert grey.shifted == pytest.approx(500 / 6)
    assert by_name["green"].drop > 50
    assert by_name["green"].changed == pytest.approx(by_name["green"].drop)


def test_rows_are_flat_and_complete(result: Evaluation) -> None:
    (row,) = result.rows()
    assert row["model"] == "Colours"
    assert (row["dataset"], row["seed"], row["original"], row["images"]) == ("toy", 4, 90.0, 20)
    sweep = result.sweeps["hsv"]
    assert row["hue_mean"] == pytest.approx(sweep.mean, abs=1e-3)
    assert row["hue_mean_distinct"] == pytest.approx(sweep.mean_distinct, abs=1e-3)
    assert row["hue_curve"] == pytest.approx(sweep.accuracy.tolist(), abs=1e-3)
    assert len(row["rgb_curve"]) == len(row["rgb_clip_curve"]) == 37
    assert row["ece"] == pytest.approx(result.reliability.expected_error, abs=1e-3)
    assert "shifts" not in row  # left out for the paper's shifts
    assert json.loads(json.dumps(row)) == row


def test_other_shifts_are_in_the_row(batches) -> None:
    (row,) = evaluate(Colours(), batches, actions=["rgb"], shifts=[0.0, 0.25]).rows()
    assert row["shifts"] == [0.0, 0.25]
    assert "hue_mean" not in row
    assert len(row["rgb_curve"]) == 2


def test_rows_and_tables_of_other_actions_than_hue_shifts(batches) -> None:
    result = evaluate(Colours(), batches, actions=["gamma", "cast", "brightness"], shifts=5)
    (row,) = result.rows()
    assert row["gamma_values"] == pytest.approx([0.5, 0.707107, 1, 1.414214, 2])
    assert row["brightness_values"] == [-2, -1, 0, 1, 2]
    assert row["shifts"] == [-0.5, -0.25, 0.0, 0.25, 0.5]  # of the light's hue
    assert "cast_values" not in row
    for action, sweep in result.sweeps.items():
        assert row[f"{action}_mean"] == pytest.approx(sweep.mean, abs=1e-3)
        assert row[f"{action}_mean_distinct"] == pytest.approx(sweep.mean_distinct, abs=1e-3)
        assert row[f"{action}_curve"] == pytest.approx(sweep.accuracy.tolist(), abs=1e-3)
    assert json.loads(json.dumps(row)) == row
    table = report.summary_table(result)
    names = [line[0] for line in table.rows]
    assert names == ["original", "gamma", "light cast, 30 %", "brightness"]
    assert [line[2] == "–" for line in table.rows[1:]] == [True, False, True]
    for line, sweep in zip(table.rows[1:], result.sweeps.values(), strict=True):
        assert line[1] == f"{sweep.mean:.2f}"
    worst = float(result.sweeps["brightness"].shifts[result.sweeps["brightness"].accuracy.argmin()])
    assert table.rows[3][4] == f"{worst:+.1f} stops"
    classes = report.class_table(result, "gamma")
    assert classes.title.endswith("gamma; percent, means over values")
    mean = result.sweeps["gamma"].mean
    assert f", {mean:.1f} % on average over the values of gamma; " in report.headline(result)


def test_every_action_has_an_axis_of_its_own(batches) -> None:
    result = evaluate(Colours(), batches, actions=ACTIONS, shifts=5, facts={"model": "all of it"})
    figure = evaluation_figure(result)
    panels = [axes for axes in figure.axes if axes.get_title()]
    strips = [axes for axes in figure.axes if not axes.get_title()]
    titles = ["hue shifts", "light cast, 30 %", "gamma", "brightness", "saturation"]
    titles.append("turns and mirror images")
    assert [axes.get_title() for axes in panels] == titles
    assert figure.get_suptitle() == "all of it"
    labels = [axes.get_xlabel() for axes in strips]
    for label, words in zip(
        labels,
        ("hue shift", "hue of the light", "gamma", "stops", "saturation", "turn"),
        strict=True,
    ):
        assert words in label
    assert [len(axes.lines) for axes in panels] == [4, 2, 2, 2, 2, 2]  # with the original images
    for axes, strip, action in zip(panels, strips, ("hsv", *ACTIONS[3:]), strict=True):
        line = axes.lines[1]
        assert line.get_ydata().tolist() == result.sweeps[action].accuracy.tolist()
        assert axes.get_xlim() == strip.get_xlim() == (line.get_xdata()[0], line.get_xdata()[-1])
    assert panels[-1].lines[1].get_markevery() == 1  # each turn is seen
    ticks = [label.get_text() for label in strips[2].get_xticklabels()]
    assert ticks == ["0.5", "0.7", "1", "1.4", "2"]
    assert strips[2].get_xticks().tolist() == pytest.approx([-1, -0.515, 0, 0.485, 1], abs=1e-3)


def test_figure_of_hue_shifts_alone_is_one_panel(result: Evaluation) -> None:
    figure = evaluation_figure(result)
    assert [axes.get_title() for axes in figure.axes] == ["Colours on toy", ""]
    assert figure.get_supxlabel().startswith("hue shift of the test images, degrees")
    assert figure.axes[0].get_xlim() == figure.axes[1].get_xlim() == (-180, 180)
    ticks = [label.get_text() for label in figure.axes[1].get_xticklabels()]
    assert ticks == ["-180", "-120", "-60", "0", "60", "120", "180"]
    strip = figure.axes[1].images[0].get_array()
    assert strip[0, 0].tolist() == pytest.approx([0, 1, 1])  # red half around is cyan
    assert strip[0, strip.shape[1] // 2].argmax() == 0


def test_values_beyond_the_usual_range_are_drawn(batches) -> None:
    result = evaluate(Colours(), batches, actions=["gamma"], shifts=[1.0, 4.0])
    axes, strip = evaluation_figure(result).axes
    assert axes.get_xlim() == strip.get_xlim() == (-1, 2)  # powers of two
    result = evaluate(Colours(), batches, actions=["hsv"], shifts=[0.0, 1 / 3, 2 / 3])
    axes, strip = evaluation_figure(result).axes
    assert axes.get_xlim() == strip.get_xlim() == (-180, 240)


def test_without_actions_only_the_original_images_count(batches, tmp_path: Path) -> None:
    result = evaluate(Colours(), batches, actions=())
    assert result.original == 90
    (tmp_path / "hue-curve.png").write_text("of an earlier evaluation")
    assert [path.name for path in report.write(result, tmp_path)] == ["evaluation.json"]
    assert [path.name for path in tmp_path.iterdir()] == ["evaluation.json"]
    assert report.headline(result).startswith("90.0 % correct; calibration error")


def test_facts_of_our_networks_are_in_the_row() -> None:
    network = resnet44(4, rotations=3, width=4, ce_stages=1)
    batches = [(torch.rand(2, 3, 8, 8), torch.tensor([0, 1]))]
    (row,) = evaluate(network, batches, shifts=2, actions=["hsv"]).rows()
    assert (row["model"], row["rotations"], row["lifting"]) == ("resnet44", 3, "rgb")
    assert (row["ce_stages"], row["width"]) == (1, 4)


def test_another_number_of_classes_is_refused_at_once(batches) -> None:
    def endless():
        yield batches[0]
        raise AssertionError("the second batch should not be asked for")

    with pytest.raises(ValueError, match="the network has 4 outputs, but the images have 3 cl"):
        evaluate(Colours(), endless(), class_names=NAMES[:3])


# --- files -------------------------------------------------------------------------------------


def test_files(result: Evaluation, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    written = report.write(result, folder)
    assert [path.name for path in written] == ["evaluation.json", "hue-curve.png"]
    assert written[1].read_bytes().startswith(b"\x89PNG")
    contents = read_results(written[0])
    assert "versions" in contents
    (row,) = contents["rows"]
    assert row.items() >= result.rows()[0].items()
    assert row["class_names"] == list(NAMES)
    assert row["per_class"] == pytest.approx([90, 100, None, 83.333])
    assert row["hue_per_class"][2] is None
    changes = {change.name: change for change in result.class_changes()}
    assert row["hue_per_class"][1] == pytest.approx(changes["green"].shifted, abs=1e-3)
    changes = {change.name: change for change in result.class_changes("rgb")}
    assert row["rgb_changed_per_class"][0] == pytest.approx(changes["red"].changed, abs=1e-3)
    assert sum(row["reliability_counts"]) == 20
    for count, confidence in zip(
        row["reliability_counts"], row["reliability_confidence"], strict=True
    ):
        assert (count == 0) == (confidence is None)


def test_nothing_is_overwritten_without_force(result: Evaluation, tmp_path: Path) -> None:
    (tmp_path / "hue-curve.png").write_text("mine")
    with pytest.raises(FileExistsError, match=r"hue-curve.png exists; --force replaces it"):
        report.refuse_existing(tmp_path, False)
    report.refuse_existing(tmp_path, True)
    report.write(result, tmp_path)
    assert (tmp_path / "hue-curve.png").read_bytes().startswith(b"\x89PNG")


def test_tables_hold_the_numbers(result: Evaluation) -> None:
    table = report.summary_table(result)
    assert table.rows[0][:2] == ("original", "90.00")
    sweep = result.sweeps["hsv"]
    assert table.rows[1][:3] == ("HSV shift", f"{sweep.mean:.2f}", f"{sweep.mean_distinct:.2f}")
    worst = int(sweep.accuracy.argmin())
    assert table.rows[1][3] == f"{sweep.accuracy[worst]:.2f}"
    assert table.rows[1][4] == f"{360 * float(sweep.shifts[worst]):.0f}°"
    shifted = f"90.0 % correct, {sweep.mean:.1f} % when hues are shifted (HSV); calibration error"
    assert report.headline(result).startswith(shifted)
    changes = result.class_changes()
    classes = report.class_table(result, most=2)
    assert [row[0] for row in classes.rows] == [change.name for change in changes[:2]]
    assert classes.title.startswith("The 2 of 3 classes that lose most, HSV shift")
    assert report.class_table(result).title.startswith("Classes that lose most, HSV shift")
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: PTH123, SIM115
    report.show(result, console)
    text = console.export_text()
    assert "green" in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_class_that_loses_next_to_nothing_has_no_negative_zero(result: Evaluation) -> None:
    correct = torch.full((12, 1), 300)
    correct[0] = 299  # loses 1/36 of a percent
    few = {"shifts": torch.arange(12) / 12, "counts": correct[1], "correct_original": correct[1]}
    sweep = dataclasses.replace(result.sweeps["hsv"], **few, correct=correct, changed=300 - correct)
    nearly = dataclasses.replace(result, class_names=("red",), sweeps={"hsv": sweep})
    assert report.class_table(nearly).rows[0][4] == "+0.0"


# --- the figure --------------------------------------------------------------------------------


def test_figure_shows_every_action(result: Evaluation) -> None:
    figure = evaluation_figure(result)
    axes = figure.axes[0]
    curves = [line for line in axes.get_lines() if len(line.get_xdata()) == 37]
    assert len(curves) == 3
    assert curves[0].get_ydata().tolist() == pytest.approx(result.sweeps["hsv"].accuracy.tolist())
    assert curves[0].get_xdata()[[0, -1]].tolist() == [-180, 180]
    labels = [text.get_text() for text in axes.texts]
    assert f"HSV shift, mean {result.sweeps['hsv'].mean:.1f}" in labels
    assert "original images: 90.0" in labels
    assert axes.get_title() == "Colours on toy"
    # A label on a curve could not be read where the curve is flat.
    assert all(text.get_position()[0] > 180 for text in axes.texts)


def test_titles_name_rotations_lifting_and_run(result: Evaluation) -> None:
    facts = {"rotations": 12, "lifting": "hsv", "run": "my-run", "dataset": "flowers102"}
    named = dataclasses.replace(result, facts=result.facts | facts)
    expected = "Colours, n = 12, hsv lifting (my-run) on flowers102"
    assert evaluation_figure(named).axes[0].get_title() == expected
    assert report.summary_table(named).title.startswith(f"{expected}, 20 images")


def test_labels_do_not_overlap() -> None:
    ends = [50.0, 50.5, 51.0, 10.0, 90.0, 50.2]
    curves = [
        Curve(f"network {end}, {'trained in another way ' * lines}", [-0.5, 0.5], [0.0, end])
        for lines, end in enumerate(ends)
    ]
    figure = hue_panels({"toy": curves})
    figure.draw_without_rendering()
    # of the words, without the line to the curve
    boxes = [Text.get_window_extent(text) for text in figure.axes[0].texts]
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
    assert figure.axes[0].get_window_extent().width > figure.bbox.width / 2


@pytest.mark.parametrize(
    "positions", [[3.0], [1.0, 1.0], [5.0, 4.0, 4.5, 9.0], [0.0, 0.1, 2.0, 2.1]]
)
def test_spread_moves_as_little_as_possible(positions: list[float]) -> None:
    placed = spread(positions, [1.0] * len(positions))
    order = sorted(range(len(positions)), key=lambda index: positions[index])
    ranked = [placed[index] for index in order]
    assert all(after - before > 1 - 1e-9 for before, after in itertools.pairwise(ranked))
    # Slow reference: isotonic regression by the max-min formula, from the means of all stretches
    # around a place.
    rest = [positions[index] - rank for rank, index in enumerate(order)]
    for rank, value in enumerate(ranked):
        best = max(
            min(statistics.fmean(rest[first:last]) for last in range(rank + 1, len(rest) + 1))
            for first in range(rank + 1)
        )
        assert value == pytest.approx(best + rank)


def test_curves_of_one_colour_differ_in_dashes_and_markers() -> None:
    styles = [curve_style(index) for index in range(28)]
    for a, b in itertools.combinations(styles, 2):
        if a["color"] == b["color"]:
            assert a["linestyle"] != b["linestyle"]
            assert a["marker"] != b["marker"]


def test_panels_stand_two_in_a_row() -> None:
    curve = Curve("a", [-0.5, 0.0, 0.5], [1.0, 2.0, 1.0], deviation=[0.1, 0.1, 0.1])
    figure = hue_panels({"one": [curve], "two": [curve], "three": [curve]})
    titles = [axes.get_title() for axes in figure.axes if axes.get_title()]
    assert sorted(titles) == ["one", "three", "two"]
    assert len(figure.axes) == 6
