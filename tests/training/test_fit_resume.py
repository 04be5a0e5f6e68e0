"""Runs that were killed, interrupted or disturbed by another process, and go on."""

import dataclasses
import multiprocessing
import platform
import shutil
import signal
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
from rich.console import Console
from tests.training.processes import KILLED_AT

from equicolor._files import LockedError, locked
from equicolor.training import fit as fitting
from equicolor.training import task as tasks
from equicolor.training.fit import Fit, RunOptions, fit
from equicolor.training.recipes import TrainingRecipe
from equicolor.training.run_folder import RunFolder

pytestmark = pytest.mark.slow  # runs are trained again and again

CPU = RunOptions(device="cpu", checkpoint_every=0)


@pytest.fixture(scope="module")
def killed(in_processes: Path) -> dict[int, Path]:
    """Runs that began in processes of their own, each killed after so many steps."""
    said = (in_processes / "stdout").read_text().splitlines()
    for step in KILLED_AT:
        assert f"step {step} {-signal.SIGKILL}" in said, (in_processes / "stderr").read_text()
    return {step: in_processes / str(step) for step in KILLED_AT}


def hold(path: Path, ready: Connection) -> None:
    with locked(path, "busy"):
        ready.send("held")
        time.sleep(60)


@pytest.mark.usefixtures("few_shifts")
class TestLock:
    def test_two_processes_do_not_train_in_one_folder(
        self, toy_recipe: TrainingRecipe, tmp_path: Path
    ) -> None:
        run = tmp_path / "run"
        run.mkdir()
        recipe = dataclasses.replace(toy_recipe, epochs=1)
        context = multiprocessing.get_context("fork")
        ready, child_ready = context.Pipe()
        other = context.Process(target=hold, args=(run / ".lock", child_ready))
        other.start()
        assert ready.recv() == "held"
        for overwrite in (False, True):
            with pytest.raises(LockedError) as caught:
                fit(recipe, run, CPU, overwrite=overwrite)
        assert str(caught.value) == (
            f"process {other.pid} on {platform.node()} is training in {run}: wait for it, or "
            "choose another folder"
        )
        assert [path.name for path in run.iterdir()] == [".lock"]
        other.kill()
        other.join()
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
        monkeypatch.setattr(fitting, "train", None)
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
        self, finished: Fit, killed: dict[int, Path], step: int, goes_on: Callable[[Path], Fit]
    ) -> None:
        folder = killed[step]
        (folder / "last.ckpt.123456.partial").write_bytes(b"half a checkpoint")
        with (folder / "metrics.csv").open("a") as file:
            file.write("2,6,0.00")  # a row that was being written
        found = goes_on(folder)
        assert found.continued == (step - 1) // 3
        assert found.row["hue_curve"] == finished.row["hue_curve"]
        columns = [
            [[row[key] for key in ("epoch", "step", "lr", "loss", "accuracy")] for row in rows]
            for rows in (RunFolder(folder).read_metrics(), finished.folder.read_metrics())
        ]
        assert columns[0] == columns[1]
        assert not list(folder.glob("*.partial"))

    @pytest.mark.usefixtures("few_shifts")
    def test_killed_while_judging(
        self, finished: Fit, tmp_path: Path, goes_on: Callable[[Path], Fit]
    ) -> None:
        for path in (finished.folder.recipe, finished.folder.checkpoint, finished.folder.metrics):
            (tmp_path / path.name).write_bytes(path.read_bytes())
        assert goes_on(tmp_path).continued == 3

    @pytest.mark.usefixtures("few_shifts")
    def test_a_run_continues_where_its_images_have_moved(
        self, finished: Fit, finished_recipe: TrainingRecipe, tmp_path: Path
    ) -> None:
        here = tmp_path / "here" / Path(finished_recipe.dataset).name
        shutil.copytree(finished_recipe.dataset, here)
        run = RunFolder(tmp_path / "run")
        run.path.mkdir()
        for path in (finished.folder.checkpoint, finished.folder.images, finished.folder.metrics):
            (run.path / path.name).write_bytes(path.read_bytes())
        elsewhere = str(tmp_path / "gone" / here.name)
        moved = finished_recipe.to_json().replace(finished_recipe.dataset, elsewhere)
        run.recipe.write_text(moved)
        checkpoint = torch.load(run.checkpoint, weights_only=True)
        checkpoint["equicolor"]["recipe"] = moved
        torch.save(checkpoint, run.checkpoint)
        recipe = dataclasses.replace(finished_recipe, dataset=str(here))
        found = fit(recipe, run.path, CPU)
        assert found is not None
        assert found.continued == 3
        assert run.read_recipe().dataset == str(here)
        (tmp_path / "gone" / here.name).mkdir(parents=True)  # two folders are not one that moved
        run.recipe.write_text(moved)
        with pytest.raises(ValueError, match="another recipe: dataset"):
            fit(recipe, run.path, CPU)

    @pytest.mark.usefixtures("few_shifts")
    def test_an_interrupt_leaves_a_run_that_continues(
        self,
        finished_recipe: TrainingRecipe,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        goes_on: Callable[..., Fit],
    ) -> None:
        console = Console(file=(tmp_path / "out").open("w"), width=200)
        step = tasks.ClassificationTask.training_step

        def interrupted(self, batch, index):
            if self.global_step == 4:
                raise KeyboardInterrupt
            return step(self, batch, index)

        handler = signal.getsignal(signal.SIGINT)
        monkeypatch.setattr(tasks.ClassificationTask, "training_step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fit(finished_recipe, tmp_path / "run", CPU, console=console)
        monkeypatch.undo()
        assert signal.getsignal(signal.SIGINT) == handler
        console.file.close()
        said = f"The same command continues the run in {tmp_path / 'run'} after epoch 1\n"
        assert (tmp_path / "out").read_text().endswith(said)
        with (tmp_path / "out").open("w") as file:
            assert goes_on(tmp_path / "run", Console(file=file)).continued == 1
        assert (
            (tmp_path / "out")
            .read_text()
            .startswith(
                f"continuing from epoch 1 of 3, as {tmp_path / 'run' / 'last.ckpt'} left it\n"
            )
        )

    def test_an_interrupt_before_the_first_checkpoint_says_so(
        self, toy_recipe: TrainingRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def interrupted(self, batch, index):
            raise KeyboardInterrupt

        monkeypatch.setattr(tasks.ClassificationTask, "training_step", interrupted)
        with (tmp_path / "out").open("w") as file, pytest.raises(KeyboardInterrupt):
            fit(toy_recipe, tmp_path / "run", CPU, console=Console(file=file, width=200))
        assert "begins the run in" in (tmp_path / "out").read_text()
        assert not (tmp_path / "run" / "last.ckpt").exists()

    @pytest.mark.usefixtures("few_shifts")
    def test_seldom_checkpoints_change_nothing(
        self,
        finished_recipe: TrainingRecipe,
        finished: Fit,
        tmp_path: Path,
        same: Callable[[Path, Path], bool],
    ) -> None:
        fit(
            finished_recipe,
            tmp_path,
            dataclasses.replace(CPU, checkpoint_every=1000, validate_every=2),
        )
        assert same(tmp_path, finished.folder.path)
        tested = [row["test_accuracy"] for row in RunFolder(tmp_path).read_metrics()]
        assert [bool(value) for value in tested] == [False, True, False]
