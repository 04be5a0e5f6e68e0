"""Runs: their folder, that they resume exactly, and how they fail."""

import csv
import dataclasses
import json
import os
import pickle
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from PIL import Image
from rich.console import Console

from equicolor.evaluation import GrayInput
from equicolor.models import CheckpointError, load_model
from equicolor.training import fit as fitting
from equicolor.training import task as tasks
from equicolor.training.fit import Fit, RunOptions, fit
from equicolor.training.monitor import DivergedError, Metrics
from equicolor.training.recipes import TrainingRecipe, find_recipe

CPU = RunOptions(device="cpu", checkpoint_every=0)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_model(folder / "model.safetensors").state_dict()


def same(first: Path, second: Path) -> bool:
    one, two = weights(first), weights(second)
    return one.keys() == two.keys() and all(torch.equal(one[key], two[key]) for key in one)


@pytest.fixture(scope="module")
def finished(toy_recipe: TrainingRecipe, tmp_path_factory: pytest.TempPathFactory) -> Fit:
    """An uninterrupted run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EQUICOLOR_CACHE", str(tmp_path_factory.mktemp("cache")))
        folder = tmp_path_factory.mktemp("runs") / "whole"
        found = fit(dataclasses.replace(toy_recipe, ema=0.9), folder, CPU)
    assert found is not None
    return found


def killed(recipe: TrainingRecipe, folder: Path, step: int) -> None:
    """Begin a run in another process, and kill that after so many steps."""
    script = f"""
        import os, signal
        from pathlib import Path
        from equicolor.training import monitor
        from equicolor.training.fit import RunOptions, fit
        from equicolor.training.recipes import TrainingRecipe, find_recipe

        before = monitor.Monitor.on_train_batch_end
        def kill(self, trainer, *rest):
            before(self, trainer, *rest)
            if trainer.global_step == {step}:
                os.kill(os.getpid(), signal.SIGKILL)
        monitor.Monitor.on_train_batch_end = kill
        recipe = TrainingRecipe.from_json({recipe.to_json()!r})
        fit(recipe, {str(folder)!r}, RunOptions(device="cpu", checkpoint_every=0))
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr


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
            "dataset": "toy", "augmentation": "none", "seed": 0, "epochs": 3,
        }  # fmt: skip
        assert expected.items() <= row.items()
        assert len(row["hue_curve"]) == 37
        assert 0 <= row["original"] <= 100
        assert row["images_per_second"] > 0

    def test_a_finished_run_is_not_trained_again(
        self, finished: Fit, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        recipe = TrainingRecipe.from_json(finished.folder.recipe.read_text())
        monkeypatch.setattr(fitting, "PictureData", None)
        assert fit(recipe, finished.folder.path, CPU) == finished._replace(continued=3)

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
        with pytest.raises(ValueError, match=r"recipe\.json cannot be read"):
            fit(toy_recipe, tmp_path, CPU)

    def test_overwriting_on_request(self, toy_recipe: TrainingRecipe, tmp_path: Path) -> None:
        short = dataclasses.replace(toy_recipe, epochs=1)
        fit(short, tmp_path, CPU)
        (tmp_path / "notes.txt").write_text("mine")
        found = fit(dataclasses.replace(short, seed=1), tmp_path, CPU, overwrite=True)
        assert found is not None
        assert (found.row["seed"], found.continued) == (1, 0)
        assert (tmp_path / "notes.txt").exists()
        assert len(Metrics(tmp_path / "metrics.csv").read()) == 1

    def test_nothing_is_written_for_a_recipe_that_cannot_be(
        self, toy_recipe: TrainingRecipe, tmp_path: Path
    ) -> None:
        with pytest.raises(ValueError, match="no option 'rotation' "):
            fit(dataclasses.replace(toy_recipe, options={"rotation": 3}), tmp_path / "run", CPU)
        with pytest.raises(ValueError, match="unknown dataset"):
            fit(dataclasses.replace(toy_recipe, dataset="flower"), tmp_path / "run", CPU)
        with pytest.raises(FileNotFoundError, match="no folder of pictures"):
            fit(dataclasses.replace(toy_recipe, dataset="./nowhere"), tmp_path / "run", CPU)
        assert list(tmp_path.iterdir()) == []


class TestResume:
    @pytest.mark.parametrize("step", [2, 6])
    def test_killed_runs_end_with_equal_weights(
        self, finished: Fit, step: int, tmp_path: Path
    ) -> None:
        recipe = TrainingRecipe.from_json(finished.folder.recipe.read_text())
        killed(recipe, tmp_path, step)
        (tmp_path / "last.ckpt.partial").write_bytes(b"half a checkpoint")
        with (tmp_path / "metrics.csv").open("a") as file:
            file.write("2,6,0.00")  # a row that was being written
        found = fit(recipe, tmp_path, CPU)
        assert found is not None
        assert found.continued == (step - 1) // 3
        assert same(tmp_path, finished.folder.path)
        assert found.row["hue_curve"] == finished.row["hue_curve"]
        columns = [
            [[row[key] for key in ("epoch", "step", "lr", "loss", "accuracy")] for row in rows]
            for rows in (
                Metrics(f / "metrics.csv").read() for f in (tmp_path, finished.folder.path)
            )
        ]
        assert columns[0] == columns[1]

    def test_killed_while_judging(self, finished: Fit, tmp_path: Path) -> None:
        recipe = TrainingRecipe.from_json(finished.folder.recipe.read_text())
        for path in (finished.folder.recipe, finished.folder.checkpoint, finished.folder.metrics):
            (tmp_path / path.name).write_bytes(path.read_bytes())
        found = fit(recipe, tmp_path, CPU)
        assert found is not None
        assert found.continued == 3
        assert same(tmp_path, finished.folder.path)

    def test_an_interrupt_leaves_a_run_that_continues(
        self, finished: Fit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        recipe = TrainingRecipe.from_json(finished.folder.recipe.read_text())
        console = Console(file=(tmp_path / "out").open("w"), width=200)
        step = tasks.ClassificationTask.training_step

        def interrupted(self, batch, index):
            if self.global_step == 4:
                raise KeyboardInterrupt
            return step(self, batch, index)

        handler = signal.getsignal(signal.SIGINT)
        monkeypatch.setattr(tasks.ClassificationTask, "training_step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fit(recipe, tmp_path / "run", CPU, console=console)
        monkeypatch.undo()
        assert signal.getsignal(signal.SIGINT) == handler
        console.file.close()
        assert "The same command continues the run in" in (tmp_path / "out").read_text()
        found = fit(recipe, tmp_path / "run", CPU)
        assert found is not None
        assert found.continued == 1
        assert same(tmp_path / "run", finished.folder.path)

    def test_seldom_checkpoints_change_nothing(
        self, finished: Fit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        recipe = TrainingRecipe.from_json(finished.folder.recipe.read_text())
        fit(recipe, tmp_path, dataclasses.replace(CPU, checkpoint_every=1000, validate_every=2))
        assert same(tmp_path, finished.folder.path)
        tested = [row["test_accuracy"] for row in Metrics(tmp_path / "metrics.csv").read()]
        assert [bool(value) for value in tested] == [False, True, False]


class TestFailure:
    def test_code_in_a_checkpoint_is_refused(
        self, toy_recipe: TrainingRecipe, tmp_path: Path
    ) -> None:
        class Trap:
            def __reduce__(self):
                return os.mkdir, (str(tmp_path / "sprung"),)

        run = tmp_path / "run"
        run.mkdir()
        (run / "recipe.json").write_text(toy_recipe.to_json())
        (run / "last.ckpt").write_bytes(pickle.dumps({"state_dict": Trap()}))
        with pytest.raises(CheckpointError, match="not executed"):
            fit(toy_recipe, run, CPU)
        torch.save({"state_dict": Trap()}, run / "last.ckpt")
        with pytest.raises(CheckpointError, match="not executed"):
            fit(toy_recipe, run, CPU)
        torch.save({"state_dict": torch.zeros(1000)}, run / "last.ckpt")
        (run / "last.ckpt").write_bytes((run / "last.ckpt").read_bytes()[:2000])
        with pytest.raises(CheckpointError, match="damaged"):
            fit(toy_recipe, run, CPU)
        assert not (tmp_path / "sprung").exists()

    def test_a_diverging_loss_stops_and_keeps_the_last_good_state(
        self, finished: Fit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        recipe = TrainingRecipe.from_json(finished.folder.recipe.read_text())
        loss = tasks.ClassificationTask._loss

        def diverging(self, logits, labels):
            value = loss(self, logits, labels)
            return value * float("nan") if self.global_step + 1 >= 5 else value

        monkeypatch.setattr(tasks.ClassificationTask, "_loss", diverging)
        with pytest.raises(DivergedError) as caught:
            fit(recipe, tmp_path, CPU)
        monkeypatch.undo()
        text = str(caught.value)
        assert "no longer finite at step 5 (epoch 2, learning rate 0.000706)" in text
        assert f"{tmp_path / 'last.ckpt'} keeps the state after epoch 1" in text
        found = fit(recipe, tmp_path, CPU)
        assert found is not None
        assert found.continued == 1
        assert same(tmp_path, finished.folder.path)

    def test_diverging_at_once(self, toy_recipe: TrainingRecipe, tmp_path: Path) -> None:
        recipe = dataclasses.replace(toy_recipe, lr=1e30, schedule="constant", optimizer="sgd")
        with pytest.raises(DivergedError, match=r"at step 2 .* it was too early for a checkpoint"):
            fit(recipe, tmp_path, CPU)

    def test_corrupt_pictures_are_named_or_left_out(
        self, toy_recipe: TrainingRecipe, toy_folder: Path, tmp_path: Path
    ) -> None:
        data = tmp_path / "data"
        for path in toy_folder.rglob("*.png"):
            copy = data / path.relative_to(toy_folder)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
        broken = data / "train" / "class1" / "4.png"
        broken.write_bytes(broken.read_bytes()[:90])
        recipe = dataclasses.replace(toy_recipe, dataset=str(data), epochs=1)
        for path in ("resident", "streaming"):
            options = dataclasses.replace(CPU, data_path=path, workers=0)
            with pytest.raises(ValueError, match=r"class1/4\.png"):
                fit(recipe, tmp_path / path, options)
            skipping = dataclasses.replace(options, skip_corrupt=True)
            assert fit(recipe, tmp_path / path, skipping) is not None

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"device": "tpu"}, "device must be one of 'auto', 'cpu', 'cuda'; got 'tpu'"),
            ({"devices": 0}, "devices must be at least 1"),
            ({"strategy": "fsdp"}, "strategy must be one of 'auto', 'ddp'"),
            ({"data_path": "disk"}, "data_path must be one of"),
            ({"validate_every": -1}, "validate_every must be at least 0, got -1"),
        ],
    )
    def test_bad_options(self, options: dict[str, object], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            RunOptions(**options)

    def test_batches_that_cannot_be_shared(
        self, toy_recipe: TrainingRecipe, tmp_path: Path
    ) -> None:
        recipe = dataclasses.replace(toy_recipe, batch_size=13)
        with pytest.raises(ValueError, match="batch_size must be a multiple of 2"):
            fit(recipe, tmp_path / "run", dataclasses.replace(CPU, devices=2))
        assert not (tmp_path / "run").exists()

    @pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
    def test_no_gpu(self) -> None:
        with pytest.raises(ValueError, match="torch sees no CUDA device"):
            RunOptions(device="cuda")


def test_a_network_learns_colours_and_is_lost_when_they_shift(
    toy_recipe: TrainingRecipe, tmp_path: Path
) -> None:
    recipe = dataclasses.replace(
        toy_recipe, model="resnet18", options={"width": 4}, size=22, resize=22, epochs=12, lr=0.01
    )
    found = fit(recipe, tmp_path, CPU)
    assert found is not None
    assert found.row["original"] >= 80  # red, green and blue pictures
    assert found.row["hue_mean"] < 50  # shifted by a third, one class looks like another


def test_both_data_paths_learn_the_same(toy_recipe: TrainingRecipe, tmp_path: Path) -> None:
    found = []
    for path in ("resident", "streaming"):
        options = dataclasses.replace(CPU, data_path=path, workers=0)
        fit(toy_recipe, tmp_path / path, options)
        found.append(
            [float(row["loss"]) for row in Metrics(tmp_path / path / "metrics.csv").read()]
        )
    assert found[0][0] == pytest.approx(found[1][0], rel=0.01)
    assert found[0] == pytest.approx(found[1], rel=0.05)


def test_imagenet_streams_from_a_tree_of_its_layout(tmp_path: Path) -> None:
    for part, count in (("train", 5), ("val", 2)):
        for synset, colour in (("n01440764", "teal"), ("n01443537", "orange")):
            folder = tmp_path / "imagenet" / part / synset
            folder.mkdir(parents=True)
            for number in range(count):
                picture = Image.new("RGB", (40 + 5 * number, 38), colour)
                picture.save(folder / f"{synset}_{number}.JPEG")
    recipe = dataclasses.replace(
        find_recipe("imagenet/hsv-3+jitter"), size=28, resize=32, epochs=1, batch_size=4,
        precision="32", options={"rotations": 3, "lifting": "hsv", "width": 2},
    )  # fmt: skip
    options = dataclasses.replace(CPU, root=tmp_path, data_path="streaming", workers=1)
    found = fit(recipe, tmp_path / "run", options)
    assert found is not None
    assert (found.row["dataset"], found.row["pictures"]) == ("imagenet", 4)


def test_bf16(toy_recipe: TrainingRecipe, finished: Fit, tmp_path: Path) -> None:
    fit(dataclasses.replace(toy_recipe, precision="bf16"), tmp_path, CPU)
    losses = [
        [float(row["loss"]) for row in Metrics(folder / "metrics.csv").read()]
        for folder in (tmp_path, finished.folder.path)
    ]
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], rel=0.15)
    assert all(value.dtype != torch.bfloat16 for value in weights(tmp_path).values())


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


def test_nothing_is_said_that_nobody_can_mend(
    toy_recipe: TrainingRecipe, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    recipe = dataclasses.replace(toy_recipe, epochs=2)
    fit(recipe, tmp_path, dataclasses.replace(CPU, validate_every=1))
    assert capfd.readouterr() == ("", "")


def test_progress_without_a_terminal_is_a_line(toy_recipe: TrainingRecipe, tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as file:
        fit(toy_recipe, tmp_path / "run", CPU, console=Console(file=file, width=200))
    lines = (tmp_path / "log").read_text().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("epoch 3/3: loss ")
    assert "images/s" in lines[0]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("change", [{}, {"ema": 0.9, "clip": 1.0, "precision": "bf16"}])
def test_a_gpu_learns_what_a_cpu_learns(
    toy_recipe: TrainingRecipe, change: dict[str, object], tmp_path: Path
) -> None:
    recipe = dataclasses.replace(toy_recipe, epochs=1, **change)
    losses = []
    for device in ("cpu", "cuda"):
        for path in ("resident", "streaming"):
            run = tmp_path / device / path
            fit(recipe, run, RunOptions(device=device, data_path=path, workers=1))
            losses.append(float(Metrics(run / "metrics.csv").read()[0]["loss"]))
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
    recipe = dataclasses.replace(toy_recipe, ema=0.9, clip=1.0, precision="bf16", jitter=0.5)
    try:
        fit(recipe, tmp_path, RunOptions(device="cuda", data_path="resident"))
    finally:
        torch.cuda.set_sync_debug_mode("default")
