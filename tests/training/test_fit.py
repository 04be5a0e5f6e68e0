"""Runs: their folder, that they resume exactly, and how they fail."""

import csv
import dataclasses
import json
import os
import pickle
import platform
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image
from rich.console import Console

from equicolor._files import LockedError
from equicolor.evaluation import GrayInput
from equicolor.models import CheckpointError, load_model
from equicolor.models.export import find_model
from equicolor.training import fit as fitting
from equicolor.training import task as tasks
from equicolor.training.finetuning import finetune_recipe
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
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        folder = tmp_path_factory.mktemp("runs") / "whole"
        found = fit(dataclasses.replace(toy_recipe, ema=0.9), folder, CPU)
    assert found is not None
    return found


KILLED_AT = (2, 6)  # steps


@pytest.fixture(scope="module")
def killed(finished: Fit, once: Callable[..., Path]) -> dict[int, Path]:
    """Runs that began in processes of their own, each killed after so many steps."""
    root = once("killed", lambda root: _kill(finished, root))
    return {step: root / str(step) for step in KILLED_AT}


def _kill(finished: Fit, root: Path) -> None:
    script = f"""
        import os, signal
        from equicolor.training import monitor
        from equicolor.training.fit import RunOptions, fit
        from equicolor.training.recipes import TrainingRecipe

        before = monitor.Monitor.on_train_batch_end
        recipe = TrainingRecipe.from_json({finished.folder.recipe.read_text()!r})
        for step in {KILLED_AT}:
            def kill(self, trainer, *rest):
                before(self, trainer, *rest)
                if trainer.global_step == step:
                    os.kill(os.getpid(), signal.SIGKILL)
            monitor.Monitor.on_train_batch_end = kill
            child = os.fork()  # which has imported everything
            if not child:
                fit(recipe, f"{root}/{{step}}", RunOptions(device="cpu", checkpoint_every=0))
                os._exit(0)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=300
    )
    assert ended.stdout.split() == [str(-signal.SIGKILL)] * len(KILLED_AT), ended.stderr


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
        # The same pictures in the same seconds as in the table, those that fill a batch too.
        seconds = [float(line["seconds"]) for line in rows]
        shown = [float(line["images_per_second"]) for line in rows]
        rate = sum(a * b for a, b in zip(shown, seconds, strict=True)) / sum(seconds)
        assert row["images_per_second"] == pytest.approx(rate, abs=0.1)
        assert row["images_per_second"] == pytest.approx(3 * 36 / sum(seconds), rel=0.01)
        names = ["class0", "class1", "class2"]
        assert result["class_names"] == names
        assert load_model(folder / "model.safetensors").class_names == tuple(names)

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


HOLD = """
import sys, time
from pathlib import Path
sys.path.insert(0, {src!r})
from equicolor._files import locked
with locked(Path({path!r}), "busy"):
    print("held", flush=True)
    time.sleep(60)
"""


class TestLock:
    def test_two_processes_do_not_train_in_one_folder(
        self, toy_recipe: TrainingRecipe, tmp_path: Path
    ) -> None:
        run = tmp_path / "run"
        run.mkdir()
        source = str(Path(fitting.__file__).parents[2])
        script = HOLD.format(src=source, path=str(run / ".lock"))
        recipe = dataclasses.replace(toy_recipe, epochs=1)
        with subprocess.Popen(
            [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True
        ) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == "held\n"
            for overwrite in (False, True):
                with pytest.raises(LockedError) as caught:
                    fit(recipe, run, CPU, overwrite=overwrite)
            assert str(caught.value) == (
                f"process {other.pid} on {platform.node()} is training in {run}: wait for it, or "
                "choose another folder"
            )
            assert [path.name for path in run.iterdir()] == [".lock"]
            other.kill()
        assert fit(recipe, run, CPU) is not None  # a killed process holds nothing

    def test_what_another_process_did_meanwhile_counts(
        self, toy_recipe: TrainingRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        recipe = dataclasses.replace(toy_recipe, epochs=1)
        fit(recipe, tmp_path / "other", CPU)
        task = fitting._task

        def late(*arguments):
            (tmp_path / "run").mkdir()
            for path in (tmp_path / "other").iterdir():
                if path.is_file():
                    (tmp_path / "run" / path.name).write_bytes(path.read_bytes())
            return task(*arguments)

        monkeypatch.setattr(fitting, "_task", late)
        monkeypatch.setattr(fitting, "_fit", None)
        found = fit(recipe, tmp_path / "run", CPU)
        assert found is not None
        assert found.continued == 1
        (tmp_path / "run" / "result.json").unlink()
        monkeypatch.setattr(fitting, "_task", task)
        with pytest.raises(ValueError, match="another recipe"):
            fit(dataclasses.replace(recipe, seed=1), tmp_path / "run", CPU)


class TestResume:
    @pytest.mark.parametrize("step", KILLED_AT)
    def test_killed_runs_end_with_equal_weights(
        self, finished: Fit, killed: dict[int, Path], step: int
    ) -> None:
        recipe = TrainingRecipe.from_json(finished.folder.recipe.read_text())
        folder = killed[step]
        (folder / "last.ckpt.123456.partial").write_bytes(b"half a checkpoint")
        with (folder / "metrics.csv").open("a") as file:
            file.write("2,6,0.00")  # a row that was being written
        found = fit(recipe, folder, CPU)
        assert found is not None
        assert found.continued == (step - 1) // 3
        assert same(folder, finished.folder.path)
        assert found.row["hue_curve"] == finished.row["hue_curve"]
        columns = [
            [[row[key] for key in ("epoch", "step", "lr", "loss", "accuracy")] for row in rows]
            for rows in (Metrics(f / "metrics.csv").read() for f in (folder, finished.folder.path))
        ]
        assert columns[0] == columns[1]
        assert not list(folder.glob("*.partial"))

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

    def test_damaged_checkpoints_say_what_to_do(self, finished: Fit, tmp_path: Path) -> None:
        recipe = TrainingRecipe.from_json(finished.folder.recipe.read_text())
        last = tmp_path / "last.ckpt"
        for path in (finished.folder.recipe, finished.folder.metrics):
            shutil.copy(path, tmp_path)
        contents = bytearray(finished.folder.checkpoint.read_bytes())
        state = torch.load(finished.folder.checkpoint, weights_only=True)["state_dict"]
        tensor = max(state.values(), key=torch.numel).numpy().tobytes()
        contents[contents.index(tensor) + 1] ^= 0x40
        last.write_bytes(contents)
        torch.load(last, weights_only=True)  # does not look
        remedy = r"delete it to train from the start, or the whole run with --force$"
        with pytest.raises(CheckpointError, match=rf"^{last} .* damaged \(the checksum .*{remedy}"):
            fit(recipe, tmp_path, CPU)
        torch.save([1], last)
        with pytest.raises(CheckpointError, match=rf"^{last} is no checkpoint .*a list: {remedy}"):
            fit(recipe, tmp_path, CPU)
        torch.save({"pytorch-lightning_version": "2.0.0"}, last)
        with pytest.raises(CheckpointError, match=rf"not written by equicolor.*{remedy}"):
            fit(recipe, tmp_path, CPU)
        last.unlink()
        found = fit(recipe, tmp_path, CPU)
        assert found is not None
        assert found.continued == 0
        assert same(tmp_path, finished.folder.path)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"size": 2}, r"ce_resnet18 cannot take images of 2 × 2 pixels \(it was made for 224"),
            (
                {"batch_size": 1},
                "a batch of 1 picture of 16 × 16 pixels is too small for the",
            ),
        ],
    )
    def test_what_cannot_be_trained_leaves_nothing(
        self,
        toy_recipe: TrainingRecipe,
        tmp_path: Path,
        change: dict[str, int],
        message: str,
    ) -> None:
        with pytest.raises(ValueError, match=message):
            fit(dataclasses.replace(toy_recipe, **change), tmp_path / "run", CPU)
        assert not (tmp_path / "run").exists()

    def test_what_could_not_be_saved_is_not_trained(
        self, toy_recipe: TrainingRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "safetensors", None)  # as where it is not installed
        with pytest.raises(ModuleNotFoundError, match=r"saved with safetensors: pip .*\[train\]"):
            fit(toy_recipe, tmp_path / "run", CPU)
        assert not (tmp_path / "run").exists()

    def test_single_pictures_will_do_where_batch_norms_see_pixels(
        self, toy_recipe: TrainingRecipe
    ) -> None:
        for change in ({"size": 96, "resize": 96}, {"augmix": "original", "js": True}):
            recipe = dataclasses.replace(toy_recipe, batch_size=1, **change)
            network = recipe.build(3)
            before = {key: value.clone() for key, value in network.state_dict().items()}
            fitting.check_network(network, recipe, 33, CPU)
            after = network.state_dict()
            assert all(torch.equal(after[key], before[key]) for key in before)

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

    def test_weights_that_are_not_finite_are_not_saved(
        self, finished: Fit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # The last step of the second epoch spoils a weight; every loss so far was finite.
        recipe = TrainingRecipe.from_json(finished.folder.recipe.read_text())
        update = tasks.ClassificationTask.optimizer_step

        def spoiling(self, *arguments, **options):
            update(self, *arguments, **options)
            if self.global_step + 1 == 6:  # not counted yet
                with torch.no_grad():
                    next(self.network.parameters()).view(-1)[0] = float("inf")

        monkeypatch.setattr(tasks.ClassificationTask, "optimizer_step", spoiling)
        with pytest.raises(DivergedError) as caught:
            fit(recipe, tmp_path, CPU)
        monkeypatch.undo()
        text = str(caught.value)
        assert "the weights are no longer finite at step 6 (epoch 2, learning rate" in text
        assert f"{tmp_path / 'last.ckpt'} keeps the state after epoch 1" in text
        assert text.endswith("in another folder or with --force")
        state = torch.load(tmp_path / "last.ckpt", weights_only=True)["state_dict"]
        assert all(value.isfinite().all() for value in state.values())
        assert fit(recipe, tmp_path, CPU) is not None
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
        for broken in ("train/class1/4.png", "test/class2/1.png"):
            (data / broken).write_bytes((data / broken).read_bytes()[:90])
        recipe = dataclasses.replace(toy_recipe, dataset=str(data), epochs=1)
        for path in ("resident", "streaming"):
            options = dataclasses.replace(CPU, data_path=path, workers=0)
            with pytest.raises(ValueError, match=r"class[12]/[14]\.png cannot be decoded"):
                fit(recipe, tmp_path / path, options)
            skipping = dataclasses.replace(options, skip_corrupt=True)
            with (tmp_path / f"{path}.log").open("w") as file:
                found = fit(recipe, tmp_path / path, skipping, console=Console(file=file))
            assert found is not None
            assert (found.row["skipped_train"], found.row["skipped_test"]) == (1, 1)
            assert found.row["pictures"] == 8
            told = (tmp_path / f"{path}.log").read_text().replace("\n", " ")
            for split, name in (("train", "class1/4.png"), ("test", "class2/1.png")):
                start = f"left out 1 corrupt pictures of data ({split}), beginning with"
                assert told.count(start) == 1
                assert name in told.partition(start)[2]

    @pytest.mark.parametrize("path", ["resident", "streaming"])
    def test_corrupt_test_pictures_are_found_before_training(
        self, toy_recipe: TrainingRecipe, toy_folder: Path, path: str, tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        shutil.copytree(toy_folder, tmp_path / "data")
        broken = tmp_path / "data" / "test" / "class0" / "2.png"
        broken.write_bytes(broken.read_bytes()[:-30])  # whose header is whole

        def too_late(self, batch, index):
            raise AssertionError("a step was trained")

        monkeypatch.setattr(tasks.ClassificationTask, "training_step", too_late)
        recipe = dataclasses.replace(toy_recipe, dataset=str(tmp_path / "data"))
        options = dataclasses.replace(CPU, data_path=path, workers=0)
        with pytest.raises(ValueError, match=r"test/class0/2\.png cannot be decoded"):
            fit(recipe, tmp_path / "run", options)

    def test_skipped_pictures_are_counted_over_interruptions(
        self, toy_recipe: TrainingRecipe, toy_folder: Path, tmp_path: Path
    ) -> None:
        shutil.copytree(toy_folder, tmp_path / "data")
        (tmp_path / "data" / "train" / "class0" / "2.png").write_bytes(b"no picture")
        recipe = dataclasses.replace(toy_recipe, dataset=str(tmp_path / "data"), epochs=1)
        options = dataclasses.replace(CPU, data_path="streaming", workers=0, skip_corrupt=True)
        fit(recipe, tmp_path / "run", options)
        (tmp_path / "run" / "result.json").unlink()  # killed while it was judged
        found = fit(recipe, tmp_path / "run", options)
        assert found is not None
        assert (found.continued, found.row["skipped_train"]) == (1, 1)

    @pytest.mark.parametrize(
        ("started", "by"),
        [
            ({"TORCHELASTIC_RUN_ID": "1", "WORLD_SIZE": "4"}, "torchrun"),
            ({"SLURM_STEP_NUM_TASKS": "4", "SLURM_JOB_NAME": "mine"}, "SLURM"),
        ],
    )
    def test_as_many_processes_as_were_started(
        self, started: dict[str, str], by: str, toy_recipe: TrainingRecipe, tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        for name, value in started.items():
            monkeypatch.setenv(name, value)
        message = f"{by} started 4 processes, but --devices 2 times --num-nodes 1 makes 2"
        with pytest.raises(ValueError, match=message):
            fit(toy_recipe, tmp_path / "run", dataclasses.replace(CPU, devices=2))
        assert not (tmp_path / "run").exists()
        for options in ({"devices": 4}, {"devices": 2, "num_nodes": 2}):
            dataclasses.replace(CPU, **options).check_launcher()
        monkeypatch.setenv("SLURM_JOB_NAME", "interactive")
        if by == "SLURM":
            CPU.check_launcher()

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
    # They differ by one or two levels, which large steps of a tiny network make grow.
    toy_recipe = dataclasses.replace(toy_recipe, lr=1e-4)
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
    # What is saved is what was judged.
    saved, _ = find_model(str(tmp_path / "model.safetensors"))
    grey = batches[0].mean(1, keepdim=True).expand_as(batches[0])
    with torch.no_grad():
        assert torch.equal(saved(batches[0]), network(batches[0]))
        torch.testing.assert_close(saved(grey), saved(batches[0]))
        assert not torch.allclose(saved.network(batches[0]), saved(batches[0]))
    assert saved.class_names == ("class0", "class1", "class2")


def test_grey_networks_are_trained_further(toy_recipe: TrainingRecipe, tmp_path: Path) -> None:
    fit(dataclasses.replace(toy_recipe, gray=True, epochs=1), tmp_path / "grey", CPU)
    recipe = dataclasses.replace(
        finetune_recipe(toy_recipe.dataset, tmp_path / "grey"), epochs=1, precision="32"
    )
    found = fit(recipe, tmp_path / "more", CPU)
    assert found is not None
    assert found.row["model"] == "ce_resnet18-gray"
    network = load_model(tmp_path / "more" / "model.safetensors")
    assert isinstance(network, GrayInput)
    assert not isinstance(network.network, GrayInput)
    assert network.origin == toy_recipe.origin == (16, 18, "toy", 0)


def test_runs_of_other_class_names_are_not_continued(
    toy_recipe: TrainingRecipe, toy_folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(toy_folder, tmp_path / "data")
    recipe = dataclasses.replace(toy_recipe, dataset=str(tmp_path / "data"), epochs=1)
    fit(recipe, tmp_path / "run", CPU)
    (tmp_path / "run" / "result.json").unlink()
    for split in ("train", "test"):
        (tmp_path / "data" / split / "class0").rename(tmp_path / "data" / split / "zebra")
    with pytest.raises(CheckpointError, match="belongs to another run: other class names"):
        fit(recipe, tmp_path / "run", CPU)


def test_small_pictures_of_a_folder_are_refused_for_large_shifted_crops(
    toy_recipe: TrainingRecipe, tmp_path: Path
) -> None:
    recipe = dataclasses.replace(toy_recipe, crop="padded", size=31, resize=31)
    for path in ("resident", "streaming"):
        options = dataclasses.replace(CPU, data_path=path, workers=0)
        with pytest.raises(ValueError, match=r"pictures of at least 23 .* but one is 22 × "):
            fit(recipe, tmp_path / path, options)


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
