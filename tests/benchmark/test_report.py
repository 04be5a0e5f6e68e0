"""Tables, sentences, figures and files, from given rows."""

import json

import pytest
from PIL import Image
from rich.console import Console

from equicolor.benchmark import report
from equicolor.benchmark.figures import loss_figure, ratio_figure, rotation_figure
from equicolor.benchmark.ratios import Goal


def timed(variant, n, ms, mode="training", model="stage2", **more):
    return {
        "model": model,
        "rotations": n,
        "variant": variant,
        "mode": mode,
        "batch": 8,
        "precision": "bf16",
        "compiled": True,
        "ms": ms,
        "over_plain": ms,
        "memory_over_plain": 2.0,
        **more,
    }


ROWS = [
    timed("plain", 1, 1.0),
    *(timed("dense", n, 1.1 * n**2) for n in range(2, 13)),
    *(timed("cyclic", n, 1.6 * n) for n in range(2, 13)),
]
LEFT_OUT = {**timed("auto", 12, None), "problem": "left out: time limit", "over_plain": None}


def test_growth_is_drawn_between_linear_and_quadratic():
    figure = rotation_figure([*ROWS, timed("plain", 1, 0.4, "forward"), LEFT_OUT])
    training, forward = figure.axes
    assert training.get_title() == "stage2, training step"
    lines = {line.get_label(): line for line in training.lines}
    assert set(lines) == {"n² × plain", "n × plain", "plain", "dense", "cyclic"}
    assert list(lines["n² × plain"].get_ydata()) == [n**2 for n in range(1, 13)]
    assert list(lines["n × plain"].get_ydata()) == list(range(1, 13))
    assert list(lines["cyclic"].get_xdata()) == list(range(1, 13))
    assert lines["cyclic"].get_ydata()[0] == 1.0  # from the plain layer
    assert training.get_xscale() == training.get_yscale() == "log"
    assert forward.get_title() == "stage2, forward pass"


def test_plain_and_equivariant_networks_share_a_panel():
    rows = [timed("plain", 1, 1.0, model="resnet18"), timed("auto", 3, 3.0, model="ce_resnet18")]
    (axes,) = rotation_figure(rows).axes
    assert len(axes.lines) == 4


def test_bars_of_every_mode_and_of_memory():
    rows = [timed("plain", 1, 1.0), timed("auto", 3, 3.0), timed("auto", 3, 2.5, "forward")]
    figure = ratio_figure([*rows, LEFT_OUT])
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == ["training step", "forward pass", "peak memory, training step"]
    assert len(figure.axes[0].patches) == 1  # plain is a line at 1, not a bar
    assert list(figure.axes[0].lines[0].get_xdata()) == [1, 1]


def test_losses_of_every_seed():
    rows = [
        {"variant": variant, "seed": seed, "losses": [2.0, 1.0], "final_loss": 1.0}
        for variant in ("dense", "auto")
        for seed in (0, 1, 2)
    ]
    figure = loss_figure([*rows, {"variant": "cyclic", "seed": 3, "problem": "out of memory"}])
    assert [axes.get_title() for axes in figure.axes] == ["seed 0", "seed 1", "seed 2"]


def test_table_fits_a_terminal():
    row = timed("auto", 12, 1234.5, name="n12-matched", dense_over=11.25, images_per_s=8123.0)
    row |= {"peak_mib": 23456.7, "memory_over_plain": 12.34, "tflops": 612.3, "peak_fraction": 0.8}
    console = Console(width=80)
    with console.capture() as captured:
        report.show("networks", [row, LEFT_OUT], console)
    lines = captured.get().splitlines()
    assert lines[0].startswith("training step, batch 8, bf16, compiled")
    assert lines[2].split() == [
        *("n12-matched", "12", "auto", "1234", "1234.50", "11.25", "8123", "23457", "12.34"),
        *("612", "80.0"),
    ]
    assert lines[3].split()[3:6] == ["–", "–", "–"]
    assert lines[4].startswith("left out: time limit: stage2, n = 12 auto training")


def test_tables_say_what_was_compiled_and_what_recorded():
    compiled = timed("auto", 3, 4.0, "folded", recorded=False)
    fused = timed("fused", 3, 3.0, "folded", compiled=False, recorded=True)
    start = "folded inference, batch 8, bf16, compiled"
    assert report.mode_table([compiled], "folded").title == start
    assert report.mode_table([compiled, fused], "folded").title == f"{start} (fused recorded)"
    fused["recorded"] = False
    assert report.mode_table([compiled, fused], "folded").title == f"{start} (fused not)"


def test_problems_are_gathered():
    rows = [
        {**timed("dense", 12, None), "problem": "out of memory"},
        {**timed("dense", 11, None), "problem": "out of memory"},
        {"model": "ce_resnet18", "rotations": 3, "variant": "auto", "seed": 2, "problem": "x"},
    ]
    assert report.problems(rows) == [
        "out of memory: stage2, n = 12 dense training; stage2, n = 11 dense training",
        "x: ce_resnet18, n = 3 auto seed 2",
    ]


def test_goals_in_words():
    lines = report.goal_lines([Goal("a", 3.333, 3.2), Goal("b", None, 1.8, at_most=False)])
    assert lines == [
        "a: 3.33, goal at most 3.2: missed",
        "b: –, goal at least 1.8: not measured",
    ]


def test_paths(tmp_path):
    assert report.result_paths(tmp_path, "layers", "cpu") == (
        tmp_path / "bench-layers-cpu.json",
        tmp_path / "bench-layers-cpu.png",
    )
    assert report.result_paths(tmp_path / "x.json", "layers", "cpu")[1] == tmp_path / "x.png"
    (tmp_path / "x.png").touch()
    with pytest.raises(FileExistsError, match=r"x\.png exists; --force replaces it"):
        report.result_paths(tmp_path / "x.json", "layers", "cpu")
    report.result_paths(tmp_path / "x.json", "layers", "cpu", overwrite=True)
    with pytest.raises(NotADirectoryError, match="is a file"):
        report.result_paths(tmp_path / "x.png" / "folder", "layers", "cpu")


def test_files(tmp_path):
    path = report.write(
        "rotations",
        ROWS,
        tmp_path / "new" / "rows.json",
        device="cpu",
        goals=[Goal("a", 1.0, 2.0)],
        facts={"matrix_peak_tflops": 0.1},
    )
    found = json.loads(path.read_text())
    assert found["rows"] == ROWS
    assert found["goals"] == [{"what": "a", "value": 1.0, "at_most": 2.0, "met": True}]
    assert {"device", "command", "versions", "suite", "matrix_peak_tflops"} <= set(found)
    (picture,) = report.draw("rotations", ROWS, tmp_path / "rows.png")
    with Image.open(picture) as image:
        assert image.format == "PNG"
        assert min(image.size) > 300
    assert report.draw("rotations", [LEFT_OUT], tmp_path / "none.png") == []
    assert not (tmp_path / "none.png").exists()
