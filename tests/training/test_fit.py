"""What a run on images leaves in its folder, and what networks learn."""

import csv
import dataclasses
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from rich.console import Console
from torch import Tensor

from equicolor.models import CheckpointError, load_model
from equicolor.models.loading import find_model
from equicolor.models.registry import GrayInput
from equicolor.reporting import progress
from equicolor.training import fit as fitting
from equicolor.training import monitor
from equicolor.training import task as tasks
from equicolor.training.finetuning import finetune_recipe
from equicolor.training.fit import Fit, RunOptions, fit
from equicolor.training.recipes import TrainingRecipe, find_recipe
from equicolor.training.run_folder import RunFolder
from equicolor.training.task import ClassificationTask

# But for the run of a session, which several tests look at.
pytestmark = pytest.mark.usefixtures("few_shifts")

CPU = RunOptions(device="cpu", checkpoint_every=0)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_model(folder / "model.safetensors").state_dict()


class TestFolder:
    def test_what_is_written(self, finished: Fit, toy_recipe: TrainingRecipe) -> None:
        folder = finished.folder.path
        assert {path.name for path in folder.iterdir()} >= {
            "recipe.json", "metrics.csv", "last.ckpt", "model.safetensors", "result.json",
        }  # fmt: skip
        recipe = TrainingRecipe.from_json((folder / "recipe.json").read_text())
        assert recipe == dataclasses.replace(toy_recipe, ema=0.9)
        with (folder / "metrics.csv").open() as file:
            rows = list(csv.DictReader(file))
        assert [(row["epoch"], row["step"]) for row in rows] == [("1", "3"), ("2", "6"), ("3", "9")]
        assert all(float(row["loss"]) > 0 and row["test_accuracy"] == "" for row in rows)
        result = json.loads((folder / "result.json").read_text())
        assert result["recipe"] == dataclasses.asdict(recipe)
        (row,) = result["rows"]
        assert row == finished.row
        expected = {
            "model": "ce_resnet18", "rotations": 3, "lifting": "rgb", "ce_stages": 2, "width": 2,
            "dataset": "toy", "augmentation": "none", "seed": 0, "epochs": 3, "coset_pool": "max",
            "size": 16, "resize": 18, "split_seed": 0, "skipped_train": 0, "skipped_test": 0,
        }  # fmt: skip
        assert expected.items() <= row.items()
        assert len(row["hue_curve"]) == 37
        assert 0 <= row["original"] <= 100
        # The same images in the same seconds as in the table, those that fill a batch too.
        seconds = [float(line["seconds"]) for line in rows]
        shown = [float(line["images_per_second"]) for line in rows]
        rate = sum(a * b for a, b in zip(shown, seconds, strict=True)) / sum(seconds)
        assert row["images_per_second"] == pytest.approx(rate, abs=0.1)
        assert row["images_per_second"] == pytest.approx(3 * 36 / sum(seconds), rel=0.01)
        names = ["class0", "class1", "class2"]
        assert result["class_names"] == names
        assert load_model(folder / "model.safetensors").class_names == tuple(names)

    def test_a_finished_run_is_not_trained_again(
        self, finished_recipe: TrainingRecipe, finished: Fit, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(fitting, "ImageData", None)
        assert fit(finished_recipe, finished.folder.path, CPU) == finished._replace(continued=3)

    def test_a_finished_run_without_its_network_is_named(
        self, finished_recipe: TrainingRecipe, finished: Fit, tmp_path: Path
    ) -> None:
        shutil.copytree(finished.folder.path, tmp_path, dirs_exist_ok=True)
        model = tmp_path / "model.safetensors"
        os.truncate(model, model.stat().st_size // 2)
        with pytest.raises(CheckpointError, match=r"not a complete .* train it again with --force"):
            fit(finished_recipe, tmp_path, CPU)

    def test_another_recipe_is_refused(self, finished: Fit, toy_recipe: TrainingRecipe) -> None:
        before = finished.folder.recipe.read_text()
        with pytest.raises(ValueError, match=r"another recipe: lr 0\.5 instead of 0\.001, ema 0"):
            fit(dataclasses.replace(toy_recipe, lr=0.5), finished.folder.path, CPU)
        assert finished.folder.recipe.read_text() == before

    def test_folders_of_something_else_are_refused(
        self, toy_recipe: TrainingRecipe, tmp_path: Path
    ) -> None:
        (tmp_path / "thesis.tex").write_text("years of work")
        for overwrite in (False, True):
            with pytest.raises(FileExistsError, match="not the folder of a training run"):
                fit(toy_recipe, tmp_path, CPU, overwrite=overwrite)
        assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
        (tmp_path / "recipe.json").write_text("{")
        with pytest.raises(ValueError, match=r"recipe\.json is not the recipe of a training run"):
            fit(toy_recipe, tmp_path, CPU)

    @pytest.mark.slow
    def test_overwriting_on_request(self, toy_recipe: TrainingRecipe, tmp_path: Path) -> None:
        short = dataclasses.replace(toy_recipe, epochs=1)
        fit(short, tmp_path, CPU)
        (tmp_path / "notes.txt").write_text("mine")
        found = fit(dataclasses.replace(short, seed=1), tmp_path, CPU, overwrite=True)
        assert found is not None
        assert (found.row["seed"], found.continued) == (1, 0)
        assert (tmp_path / "notes.txt").exists()
        assert len(RunFolder(tmp_path).read_metrics()) == 1

    def test_nothing_is_written_for_a_recipe_that_cannot_be(
        self, toy_recipe: TrainingRecipe, tmp_path: Path
    ) -> None:
        with pytest.raises(ValueError, match="no option 'rotation' "):
            fit(dataclasses.replace(toy_recipe, options={"rotation": 3}), tmp_path / "run", CPU)
        with pytest.raises(ValueError, match="unknown dataset"):
            fit(dataclasses.replace(toy_recipe, dataset="flower"), tmp_path / "run", CPU)
        with pytest.raises(FileNotFoundError, match="no folder of images"):
            fit(dataclasses.replace(toy_recipe, dataset="./nowhere"), tmp_path / "run", CPU)
        assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_network_learns_colours_and_is_lost_when_they_shift(
    toy_recipe: TrainingRecipe, tmp_path: Path
) -> None:
    recipe = dataclasses.replace(
        toy_recipe, model="resnet18", options={"width": 4}, size=22, resize=22, epochs=12, lr=0.01
    )
    found = fit(recipe, tmp_path, CPU)
    assert found is not None
    assert found.row["original"] >= 80  # red, green and blue images
    assert found.row["hue_mean"] < 50  # shifted by a third, one class looks like another


@pytest.mark.slow
def test_both_data_paths_learn_the_same(toy_recipe: TrainingRecipe, tmp_path: Path) -> None:
    # They differ by one or two levels, which large steps of a tiny network make grow.
    toy_recipe = dataclasses.replace(toy_recipe, lr=1e-4, epochs=2)
    found = []
    for path in ("resident", "streaming"):
        options = dataclasses.replace(CPU, data_path=path, workers=0)
        fit(toy_recipe, tmp_path / path, options)
        found.append([float(row["loss"]) for row in RunFolder(tmp_path / path).read_metrics()])
    assert found[0][0] == pytest.approx(found[1][0], rel=0.01)
    assert found[0] == pytest.approx(found[1], rel=0.05)


@pytest.mark.slow
def test_imagenet_streams_from_a_tree_of_its_layout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EQUICOLOR_DATA", str(tmp_path))
    for part, count in (("train", 5), ("val", 2)):
        for synset, colour in (("n01440764", "teal"), ("n01443537", "orange")):
            folder = tmp_path / "imagenet" / part / synset
            folder.mkdir(parents=True)
            for number in range(count):
                image = Image.new("RGB", (40 + 5 * number, 38), colour)
                image.save(folder / f"{synset}_{number}.JPEG")
    recipe = dataclasses.replace(
        find_recipe("imagenet/hsv-3+jitter"), size=28, resize=32, epochs=1, batch_size=4,
        precision="float32", options={"rotations": 3, "lifting": "hsv", "width": 2},
    )  # fmt: skip
    options = dataclasses.replace(CPU, data_path="streaming", workers=1)
    found = fit(recipe, tmp_path / "run", options)
    assert found is not None
    assert (found.row["dataset"], found.row["images"]) == ("imagenet", 4)


@pytest.mark.slow
def test_bfloat16(toy_recipe: TrainingRecipe, tmp_path: Path) -> None:
    # Smaller images leave one pixel before the last stride. On CPUs with AVX-512, torch's gradient
    # of a strided bfloat16 convolution of single pixels reads memory that nobody wrote.
    recipe = dataclasses.replace(toy_recipe, size=21, resize=23, epochs=1)
    losses = []
    for precision in ("bfloat16", "float32"):
        fit(dataclasses.replace(recipe, precision=precision), tmp_path / precision, CPU)
        rows = RunFolder(tmp_path / precision).read_metrics()
        losses.append([float(row["loss"]) for row in rows])
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], rel=0.25)
    assert all(value.dtype != torch.bfloat16 for value in weights(tmp_path / "bfloat16").values())


@pytest.mark.slow
def test_grey_networks_are_judged_on_shifted_colours(
    toy_recipe: TrainingRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged = []
    evaluate = fitting.evaluate

    def spy(network, batches, **options):
        judged.append((network, [images for images, _ in batches]))
        return evaluate(network, batches, **options)

    monkeypatch.setattr(fitting, "evaluate", spy)
    found = fit(dataclasses.replace(toy_recipe, gray=True, epochs=1), tmp_path, CPU)
    assert found is not None
    assert found.row["model"] == "ce_resnet18-gray"
    network, batches = judged[0]
    assert isinstance(network, GrayInput)
    # In colour: the hue is shifted first, and then it is grey.
    assert (batches[0].amax(1) - batches[0].amin(1)).max() > 0.1
    # What is saved is what was judged.
    saved, _ = find_model(str(tmp_path / "model.safetensors"))
    grey = batches[0].mean(1, keepdim=True).expand_as(batches[0])
    with torch.no_grad():
        assert torch.equal(saved(batches[0]), network(batches[0]))
        torch.testing.assert_close(saved(grey), saved(batches[0]))
        assert not torch.allclose(saved.network(batches[0]), saved(batches[0]))
    assert saved.class_names == ("class0", "class1", "class2")


@pytest.mark.slow
def test_grey_networks_are_trained_further(toy_recipe: TrainingRecipe, tmp_path: Path) -> None:
    fit(dataclasses.replace(toy_recipe, gray=True, epochs=1), tmp_path / "grey", CPU)
    recipe = dataclasses.replace(
        finetune_recipe(toy_recipe.dataset, tmp_path / "grey"), epochs=1, precision="float32"
    )
    found = fit(recipe, tmp_path / "more", CPU)
    assert found is not None
    assert found.row["model"] == "ce_resnet18-gray"
    network = load_model(tmp_path / "more" / "model.safetensors")
    assert isinstance(network, GrayInput)
    assert not isinstance(network.network, GrayInput)
    assert toy_recipe.origin == (16, 18, "toy", 0, "")
    assert network.origin._replace(training_digest="") == toy_recipe.origin
    assert network.training_digest


@pytest.mark.slow
def test_runs_of_other_class_names_are_not_continued(
    toy_recipe: TrainingRecipe, toy_folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(toy_folder, tmp_path / "data")
    recipe = dataclasses.replace(toy_recipe, dataset=str(tmp_path / "data"), epochs=1)
    fit(recipe, tmp_path / "run", CPU)
    for name in ("result.json", "images.json"):  # older runs have no list
        (tmp_path / "run" / name).unlink()
    for split in ("train", "test"):
        (tmp_path / "data" / split / "class0").rename(tmp_path / "data" / split / "zebra")
    with pytest.raises(CheckpointError, match="belongs to another run: other class names"):
        fit(recipe, tmp_path / "run", CPU)


@pytest.mark.slow
def test_small_images_of_a_folder_are_refused_for_large_shifted_crops(
    toy_recipe: TrainingRecipe, tmp_path: Path
) -> None:
    recipe = dataclasses.replace(toy_recipe, crop="padded", size=31, resize=31)
    for path in ("resident", "streaming"):
        options = dataclasses.replace(CPU, data_path=path, workers=0)
        with pytest.raises(ValueError, match=r"images of at least 23 .* but one is 22 × "):
            fit(recipe, tmp_path / path, options)


@pytest.mark.slow
def test_nothing_is_said_that_nobody_can_mend(
    toy_recipe: TrainingRecipe, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    recipe = dataclasses.replace(toy_recipe, epochs=2)
    fit(recipe, tmp_path, dataclasses.replace(CPU, validate_every=1))
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_progress_without_a_terminal_is_a_line(toy_recipe: TrainingRecipe, tmp_path: Path) -> None:
    options = dataclasses.replace(CPU, cache=tmp_path / "kept")
    recipe = dataclasses.replace(toy_recipe, epochs=2)

    def lines(*folder: str) -> list[str]:
        with (tmp_path / "log").open("w") as file:
            fit(recipe, tmp_path.joinpath(*folder), options, console=Console(file=file))
        return (tmp_path / "log").read_text().splitlines()

    kept, done = lines("run")
    size = sum(path.stat().st_size for path in options.cache.rglob("*") if path.is_file())
    assert kept.startswith(f"decoded images are kept in {options.cache}, {size / 1e6:,.1f} MB by")
    assert done.startswith("epoch 2/2: loss ")
    assert done.endswith("images/s")
    assert len(lines("second")) == 1  # nothing new is kept


@pytest.mark.slow
def test_long_runs_tell_how_long_they_take(
    toy_recipe: TrainingRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every step takes half an hour, by a clock that a step moves."""
    recipe = dataclasses.replace(toy_recipe, options={**toy_recipe.options, "rotations": 3})
    now, step = [0.0], ClassificationTask.training_step

    def slow_step(*arguments: Any) -> Tensor:
        now[0] += 1800
        return step(*arguments)

    monkeypatch.setattr(ClassificationTask, "training_step", slow_step)
    for module in (monitor, progress):
        monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    with (tmp_path / "log").open("w") as file:
        fit(recipe, tmp_path / "run", CPU, console=Console(file=file))
    text = (tmp_path / "log").read_text()
    assert "epoch 1/3: step 2 of 9, about 3.5 h left\n" in text
    assert (
        "warning: at the pace of the first steps, this run takes about 3.5 h on this CPU. It is "
        "shorter with a smaller --size than 16, fewer --epochs than 3, fewer --rotations than 3, "
        "or on a GPU; 'equicolor train DATASET --advise' measures what fits\n"
    ) in text
    assert text.count("warning") == 1
    assert "images/s, about 1.5 h left\n" in text


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("change", [{}, {"ema": 0.9, "clip": 1.0, "precision": "bfloat16"}])
def test_a_gpu_learns_what_a_cpu_learns(
    toy_recipe: TrainingRecipe, change: dict[str, object], tmp_path: Path
) -> None:
    recipe = dataclasses.replace(toy_recipe, epochs=1, **change)
    losses = []
    for device in ("cpu", "cuda"):
        for path in ("resident", "streaming"):
            run = tmp_path / device / path
            fit(recipe, run, RunOptions(device=device, data_path=path, workers=1))
            losses.append(float(RunFolder(run).read_metrics()[0]["loss"]))
    assert losses == pytest.approx([losses[0]] * 4, rel=0.1)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_step_never_waits_for_the_gpu(
    toy_recipe: TrainingRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def on(self, batch, index):
        torch.cuda.set_sync_debug_mode("error" if self.global_step >= 3 else "default")

    def off(self, outputs, batch, index):
        torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(tasks.ClassificationTask, "on_train_batch_start", on)
    monkeypatch.setattr(tasks.ClassificationTask, "on_train_batch_end", off)
    recipe = dataclasses.replace(toy_recipe, ema=0.9, clip=1.0, precision="bfloat16", jitter=0.5)
    try:
        fit(recipe, tmp_path, RunOptions(device="cuda", data_path="resident"))
    finally:
        torch.cuda.set_sync_debug_mode("default")
