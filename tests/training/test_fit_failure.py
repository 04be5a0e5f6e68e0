"""What stops a run, what is said, and what is left of it."""

import dataclasses
import math
import os
import pickle
import random
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from rich.console import Console
from tests import hostile

from equicolor.models import CheckpointError
from equicolor.training import fit as fitting
from equicolor.training import task as tasks
from equicolor.training.fit import Fit, RunOptions, fit
from equicolor.training.image_data import ImageData
from equicolor.training.monitor import DivergedError
from equicolor.training.recipes import TrainingRecipe
from equicolor.training.run_folder import RunFolder

# Runs are trained again and again.
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("few_shifts")]

CPU = RunOptions(device="cpu", checkpoint_every=0)


def try_checkpoints(
    recipe: TrainingRecipe, finished: Fit, count: int, seed: int, folder: Path
) -> Counter[str]:
    """Change the state of a run, or take something else for it, and go on from that."""
    for path in (finished.folder.recipe, finished.folder.metrics):
        shutil.copy(path, folder)
    state = torch.load(finished.folder.checkpoint, weights_only=True)
    state["epoch"] = 1  # or there would be nothing to train

    def attempt(chance: random.Random) -> None:
        new = hostile.changed(state, chance, folder / "evil.pth")
        torch.save({"state": 1} if chance.random() < 0.1 else new, folder / "last.ckpt")
        (folder / "result.json").unlink(missing_ok=True)
        fit(recipe, folder, CPU)

    return hostile.outcomes(count, seed, attempt)


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
        with pytest.raises(CheckpointError, match="objects that were not loaded"):
            fit(toy_recipe, run, CPU)
        torch.save({"state_dict": Trap()}, run / "last.ckpt")
        with pytest.raises(CheckpointError, match="objects that were not loaded"):
            fit(toy_recipe, run, CPU)
        torch.save({"state_dict": torch.zeros(1000)}, run / "last.ckpt")
        (run / "last.ckpt").write_bytes((run / "last.ckpt").read_bytes()[:2000])
        with pytest.raises(CheckpointError, match="damaged"):
            fit(toy_recipe, run, CPU)
        assert not (tmp_path / "sprung").exists()

    def test_changed_checkpoints(
        self, finished_recipe: TrainingRecipe, finished: Fit, tmp_path: Path
    ) -> None:
        counted = try_checkpoints(finished_recipe, finished, 6, 0, tmp_path)
        assert counted["refused: CheckpointError"] > 2

    def test_damaged_checkpoints_say_what_to_do(
        self,
        finished_recipe: TrainingRecipe,
        finished: Fit,
        tmp_path: Path,
        goes_on: Callable[[Path], Fit],
    ) -> None:
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
            fit(finished_recipe, tmp_path, CPU)
        torch.save([1], last)
        with pytest.raises(CheckpointError, match=rf"^{last} is no checkpoint .*a list: {remedy}"):
            fit(finished_recipe, tmp_path, CPU)
        torch.save({"pytorch-lightning_version": "2.0.0"}, last)
        with pytest.raises(CheckpointError, match=rf"not written by equicolor.*{remedy}"):
            fit(finished_recipe, tmp_path, CPU)
        last.unlink()
        assert goes_on(tmp_path).continued == 0

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"size": 2}, r"ce_resnet18 cannot take images of 2 × 2 pixels \(it was made for 224"),
            (
                {"batch_size": 1},
                "a batch of 1 image of 16 × 16 pixels is too small for the",
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
        with pytest.raises(ModuleNotFoundError, match=r"saved with safetensors: .*\[train\]"):
            fit(toy_recipe, tmp_path / "run", CPU)
        assert not (tmp_path / "run").exists()

    def test_single_images_will_do_where_batch_norms_see_pixels(
        self, toy_recipe: TrainingRecipe
    ) -> None:
        for change in ({"size": 96, "resize": 96}, {"augmix": "original", "js": True}):
            recipe = dataclasses.replace(toy_recipe, batch_size=1, **change)
            untried = recipe.build(3).state_dict()
            tried = fitting.build_network(ImageData(recipe, CPU))
            assert all(torch.equal(tried.state_dict()[key], untried[key]) for key in untried)

    def test_a_diverging_loss_stops_and_keeps_the_last_good_state(
        self,
        finished_recipe: TrainingRecipe,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        goes_on: Callable[[Path], Fit],
    ) -> None:
        loss = tasks.ClassificationTask._loss

        def diverging(self, logits, labels):
            value = loss(self, logits, labels)
            return value * float("nan") if self.global_step + 1 >= 5 else value

        monkeypatch.setattr(tasks.ClassificationTask, "_loss", diverging)
        with pytest.raises(DivergedError) as caught:
            fit(finished_recipe, tmp_path, CPU)
        monkeypatch.undo()
        text = str(caught.value)
        assert "no longer finite at step 5 (epoch 2, learning rate 0.000706)" in text
        assert f"{tmp_path / 'last.ckpt'} keeps the state after epoch 1" in text
        assert goes_on(tmp_path).continued == 1

    def test_weights_that_are_not_finite_are_not_saved(
        self,
        finished_recipe: TrainingRecipe,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        goes_on: Callable[[Path], Fit],
    ) -> None:
        # The last step of the second epoch spoils a weight; every loss so far was finite.
        update = tasks.ClassificationTask.optimizer_step

        def spoiling(self, *arguments, **options):
            update(self, *arguments, **options)
            if self.global_step + 1 == 6:  # not counted yet
                with torch.no_grad():
                    next(self.network.parameters()).view(-1)[0] = float("inf")

        monkeypatch.setattr(tasks.ClassificationTask, "optimizer_step", spoiling)
        with pytest.raises(DivergedError) as caught:
            fit(finished_recipe, tmp_path, CPU)
        monkeypatch.undo()
        text = str(caught.value)
        assert "the weights are no longer finite at step 6 (epoch 2, learning rate" in text
        assert f"{tmp_path / 'last.ckpt'} keeps the state after epoch 1" in text
        assert text.endswith("in another folder or with --force")
        state = torch.load(tmp_path / "last.ckpt", weights_only=True)["state_dict"]
        assert all(value.isfinite().all() for value in state.values())
        goes_on(tmp_path)

    def test_diverging_at_once(self, toy_recipe: TrainingRecipe, tmp_path: Path) -> None:
        recipe = dataclasses.replace(toy_recipe, lr=1e30, schedule="constant", optimizer="sgd")
        with pytest.raises(DivergedError, match=r"at step 2 .* it was too early for a checkpoint"):
            fit(recipe, tmp_path, CPU)

    def test_corrupt_images_are_named_or_left_out(
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
            assert not (tmp_path / path).exists()  # the run never began
            skipping = dataclasses.replace(options, skip_corrupt=True)
            with (tmp_path / f"{path}.log").open("w") as file:
                found = fit(recipe, tmp_path / path, skipping, console=Console(file=file))
            assert found is not None
            assert (found.row["skipped_train"], found.row["skipped_test"]) == (1, 1)
            assert found.row["images"] == 8
            told = (tmp_path / f"{path}.log").read_text().replace("\n", " ")
            for split, name in (("train", "class1/4.png"), ("test", "class2/1.png")):
                start = f"left out 1 corrupt image of data ({split}), the first because"
                assert told.count(start) == 1
                assert name in told.partition(start)[2]

    @pytest.mark.parametrize("path", ["resident", "streaming"])
    def test_corrupt_test_images_are_found_before_training(
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
        run = tmp_path / "run"
        with pytest.raises(ValueError, match=r"test/class0/2\.png cannot be decoded"):
            fit(recipe, run, options)
        assert not run.exists()
        run.mkdir()  # by the user: it stays, and so does a run that was there
        for _ in range(2):
            with pytest.raises(ValueError, match=r"test/class0/2\.png cannot be decoded"):
                fit(recipe, run, options)
            names = {path.name for path in run.iterdir()}
            assert names == {".lock", "recipe.json", "images.json"}

    def test_a_run_is_not_deleted_for_images_that_cannot_be_trained_on(
        self, finished: Fit, toy_recipe: TrainingRecipe, toy_folder: Path, tmp_path: Path
    ) -> None:
        shutil.copytree(toy_folder, tmp_path / "data")
        shutil.copytree(finished.folder.path, tmp_path / "run")
        (tmp_path / "data" / "train" / "class0" / "2.png").write_bytes(b"no image")
        recipe = dataclasses.replace(toy_recipe, dataset=str(tmp_path / "data"))
        with pytest.raises(ValueError, match=r"train/class0/2\.png cannot be decoded"):
            fit(recipe, tmp_path / "run", CPU, overwrite=True)
        for name in ("recipe.json", "last.ckpt", "model.safetensors", "result.json"):
            kept = (tmp_path / "run" / name).read_bytes()
            assert kept == (finished.folder.path / name).read_bytes()

    def test_rows_that_were_cut_short_are_left_out(self, tmp_path: Path) -> None:
        folder = RunFolder(tmp_path)
        row = "1,3,0.001,0.9,50.0,,,80.5,0.25\n"
        header = "epoch,step,lr,loss,accuracy,test_loss,test_accuracy,images_per_second,seconds\n"
        for length in range(1, len(row) - 4):  # up to the comma before the seconds
            folder.metrics.write_text(header + row + row[:length])
            assert [each["seconds"] for each in folder.read_metrics()] == ["0.25"]

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="no disk that is always full")
    def test_a_full_disk_names_the_table(self, tmp_path: Path) -> None:
        folder = RunFolder(tmp_path)
        folder.metrics.symlink_to("/dev/full")
        with pytest.raises(OSError, match=r"No space left on device: '.*metrics\.csv'"):
            folder.append_metrics([{"epoch": 1}])

    def test_skipped_images_are_counted_over_interruptions(
        self, toy_recipe: TrainingRecipe, toy_folder: Path, tmp_path: Path
    ) -> None:
        shutil.copytree(toy_folder, tmp_path / "data")
        (tmp_path / "data" / "train" / "class0" / "2.png").write_bytes(b"no image")
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

    def test_other_computers_need_a_launcher(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("TORCHELASTIC_RUN_ID", "SLURM_STEP_NUM_TASKS", "MASTER_ADDR"):
            monkeypatch.delenv(name, raising=False)
        alone = dataclasses.replace(CPU, num_nodes=2)
        with pytest.raises(ValueError, match="--num-nodes 2 waits for processes on other comput"):
            alone.check_launcher()
        monkeypatch.setenv("MASTER_ADDR", "10.0.0.1")  # started by hand, as Lightning allows
        alone.check_launcher()

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"device": "tpu"}, "device must be one of 'auto', 'cpu', 'cuda'; got 'tpu'"),
            ({"devices": 0}, "devices must be at least 1"),
            ({"strategy": "fsdp"}, "strategy must be one of 'auto', 'ddp'"),
            ({"data_path": "disk"}, "data_path must be one of"),
            ({"validate_every": -1}, "validate_every must be at least 0, got -1"),
            ({"checkpoint_every": math.nan}, "checkpoint_every must be .*, got nan"),
            ({"workers": 10**9}, "workers must be at most 1,024, got 1000000000"),
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
