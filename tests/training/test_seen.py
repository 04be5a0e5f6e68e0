"""What became of the training images: runs refuse to go on, judges warn."""

import dataclasses
import os
import shutil
from pathlib import Path

import pytest
from rich.console import Console
from tests.data import trees

from equicolor.data.datasets import load_dataset
from equicolor.data.images import list_images
from equicolor.evaluation.diagnose import load_subject
from equicolor.models import save_model
from equicolor.results import write_results
from equicolor.training.finetuning import finetune_recipe, finetune_remarks, finetune_seen
from equicolor.training.fit import RunOptions, fit
from equicolor.training.recipes import TrainingRecipe
from equicolor.training.run_folder import RunFolder


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    trees.folder(tmp_path / "pets", {"cat": 20, "dog": 20})
    return tmp_path / "pets"


@pytest.fixture
def recipe(pets: Path) -> TrainingRecipe:
    return TrainingRecipe("z2cnn", {"width": 2}, dataset=str(pets), size=28, precision="float32")


@pytest.fixture
def run(recipe: TrainingRecipe, tmp_path: Path) -> Path:
    return trained(recipe, tmp_path / "run")


def trained(recipe: TrainingRecipe, path: Path) -> Path:
    """What a training leaves behind."""
    train = load_dataset(recipe.dataset, "train", seed=recipe.split_seed)
    folder, images = RunFolder(path), list_images(train)
    network = recipe.build(2)
    network.class_names = ("cat", "dog")
    network.origin = recipe.origin._replace(training_digest=images.digest)
    save_model(network, folder.model)
    folder.begin(recipe, images.files)
    return folder.path


def trained_and_tested(pets: Path) -> tuple[Path, Path]:
    train, test = (load_dataset(pets, split).files[0].path for split in ("train", "test"))
    return train, test


def warnings_of(run: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What evaluate, inspect and convert say; fine-tunes say the same."""
    pets = run.parent / "pets"
    load_subject(run, pets)
    said = capsys.readouterr().err
    recipe = finetune_recipe(str(pets), run)
    remarks = finetune_remarks(recipe, ("cat", "dog"), finetune_seen(recipe))
    assert all(remark in said for remark in remarks)
    assert said.count("warning") == len(remarks)
    return said


def test_unchanged_and_added_images_need_no_warning(
    run: Path, pets: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "warning" not in warnings_of(run, capsys)
    for name in ("cat", "dog"):
        trees.write(pets / name / "0000.png", 1)
    assert "warning" not in warnings_of(run, capsys)
    # Without its run a network knows a digest alone.
    alone = (run / "model.safetensors").rename(run.parent / "alone.safetensors")
    assert f"are not those that {alone} was trained on" in warnings_of(alone, capsys)


def test_training_images_that_are_tested_are_named(
    run: Path, pets: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = load_dataset(pets, "test", seed=1)
    before = list_images(load_dataset(pets, "train")).files
    seen = [name for name in list_images(other).files if name in before]
    load_subject(run, split_seed=1)
    warning = f"warning: {len(seen)} of {len(other)} test images are training images of {run}: "
    assert warning + seen[0] in capsys.readouterr().err
    load_subject(run, split="train")  # as asked for
    assert "warning" not in capsys.readouterr().err


def test_renamed_and_replaced_training_images_are_named(
    run: Path, pets: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = trained_and_tested(pets)[0]
    whole = path.read_bytes()
    path.write_bytes(whole + b"\0")
    said = f"1 of 32 training images of {run} were renamed, replaced or removed since: cat/0.jpg."
    assert said in warnings_of(run, capsys)
    path.write_bytes(whole)
    assert "warning" not in warnings_of(run, capsys)
    path.rename(path.with_name("other.jpg"))
    assert said in warnings_of(run, capsys)


def test_images_of_other_sizes_are_other_images(run: Path, tmp_path: Path, capsys) -> None:
    trees.folder(tmp_path / "animals", {"cat": 20, "dog": 20})
    for path in (tmp_path / "animals").glob("*/*"):
        path.write_bytes(path.read_bytes() + b"\0")
    for seed in (None, 1):
        load_subject(run, tmp_path / "animals", split_seed=seed)
    assert "warning" not in capsys.readouterr().err


@pytest.mark.parametrize("alone", [False, True])
def test_moved_images_are_known(
    alone: bool, pets: Path, recipe: TrainingRecipe, tmp_path: Path
) -> None:
    run = trained(dataclasses.replace(recipe, split_seed=3), tmp_path / "run3")
    before = list_images(load_dataset(pets, "train", seed=3)).files
    moved = tmp_path / "moved"
    shutil.copytree(pets, moved)
    if alone:
        run = (run / "model.safetensors").rename(tmp_path / "alone.safetensors")
    facts = load_subject(run, moved).facts
    assert facts["split_seed"] == 3
    assert "warnings" not in facts
    seen = [name for name in list_images(load_dataset(moved, "test")).files if name in before]
    facts = load_subject(run, moved, split_seed=0).facts
    assert facts["seen_images"] == len(seen) > 0
    assert f"training images of {run}: {seen[0]}" in facts["warnings"][0]
    fine = finetune_recipe(str(moved), run)
    assert fine.split_seed == 3
    assert finetune_seen(fine).names == ()
    assert finetune_seen(dataclasses.replace(fine, split_seed=0)).names == tuple(seen)


def test_a_network_that_was_replaced_says_nothing_of_what_came_of_it(
    run: Path, pets: Path, recipe: TrainingRecipe, capsys: pytest.CaptureFixture[str]
) -> None:
    fine = trained(finetune_recipe(str(pets), run), run.parent / "fine")
    # It is replaced by a network that began with the fine-tuned one.
    (run / "recipe.json").write_text(finetune_recipe(str(pets), fine).to_json())
    save_model(dataclasses.replace(recipe, seed=1).build(2), run / "model.safetensors")
    for path in (run, fine):
        assert "warning" not in warnings_of(path, capsys)
    (run / "model.safetensors").unlink()  # as while it is trained again
    assert "warning" not in warnings_of(fine, capsys)


def test_a_class_more_does_not_hide_moved_images(
    pets: Path, recipe: TrainingRecipe, tmp_path: Path
) -> None:
    run = trained(dataclasses.replace(recipe, split_seed=3), tmp_path / "run3")
    trees.folder(pets, {"eel": 5})
    moved = pets.rename(tmp_path / "moved")
    assert finetune_seen(finetune_recipe(str(moved), run)).names


@pytest.mark.slow
def test_fine_tunes_remember_what_their_network_was_trained_on(run: Path, pets: Path) -> None:
    fine = dataclasses.replace(finetune_recipe(str(pets), run), split_seed=1, epochs=1)
    seen = finetune_seen(fine)
    assert seen.names
    finished = fit(fine, run.parent / "fine", RunOptions(device="cpu", workers=0))
    assert finished is not None
    assert finished.row | seen.facts() == finished.row
    assert load_subject(run.parent / "fine").facts["warnings"] == [*seen.remarks]


@pytest.mark.parametrize("change", ["add", "remove", "rename", "replace"])
def test_runs_do_not_go_on_with_other_training_images(
    run: Path, pets: Path, recipe: TrainingRecipe, change: str
) -> None:
    (run / "last.ckpt").write_bytes(b"never read")
    path = trained_and_tested(pets)[0]
    new = path.with_name("0001.png")
    if change == "add":
        trees.write(new, 1)
    elif change == "remove":
        path.unlink()
    elif change == "rename":
        path.rename(new)
    else:
        path.write_bytes(path.read_bytes() + b"\0")
    said = {
        "add": r"33 now, 32 when it began\): 1 file is new \(cat/0001.png\)\. Restore",
        "remove": r"31 now, 32 when it began\): 1 file is gone \(cat/0.jpg\)\. Restore",
        "rename": r"32 now, 32 .*: 1 file is new \(cat/0001.png\), 1 file is gone \(cat/0.jpg\)",
        "replace": r"32 now, 32 when it began\): 1 file has another size \(cat/0.jpg\)\. Restore",
    }
    with pytest.raises(ValueError, match=said[change]):
        fit(recipe, run, RunOptions(device="cpu"))


def test_a_finished_run_tells_that_its_training_images_changed(
    run: Path, pets: Path, recipe: TrainingRecipe
) -> None:
    row = {"dataset": "pets", "original": 50.0, "hue_mean": 40.0, "epochs": 1}
    write_results(run / "result.json", [row], device="cpu")

    def said() -> str:
        with (run / "said").open("w") as file:
            found = fit(recipe, run, RunOptions(device="cpu"), console=Console(file=file))
        assert found is not None
        assert found.row["original"] == 50
        return (run / "said").read_text()

    assert said() == ""
    path = trained_and_tested(pets)[0]
    path.write_bytes(path.read_bytes() + b"\0")
    trees.write(path.with_name("0001.png"), 1)
    assert said() == (
        f"warning: the training images of {run} have changed since it began: 1 file is new "
        "(cat/0001.png), 1 file has another size (cat/0.jpg). The result is that of the old "
        "images; --force trains it anew\n"
    )
    pets.rename(pets.with_name("moved"))
    assert "cannot be compared with those it began with: no folder" in said()


def test_training_images_that_were_written_again_are_named(run: Path, pets: Path) -> None:
    """Their sizes are the same: only the time tells."""
    folder, train = RunFolder(run), load_dataset(pets, "train")
    path = trained_and_tested(pets)[0]
    later = folder.images.stat().st_mtime + 100
    assert folder.newer_images(train) == []
    os.utime(path, (later, later))
    assert folder.newer_images(train) == []  # nothing to continue
    folder.checkpoint.touch()
    os.utime(folder.images, (later - 50, later - 50))  # whatever the clock of the disk
    assert folder.newer_images(train) == [f"cat/{path.name}"]


def test_test_images_may_change(run: Path, pets: Path) -> None:
    trained_and_tested(pets)[1].unlink()
    (run / "last.ckpt").touch()
    RunFolder(run).check_images(list_images(load_dataset(pets, "train")).files)


def test_what_was_never_saved_begins_with_the_images_there_are(
    run: Path, pets: Path, recipe: TrainingRecipe
) -> None:
    trained_and_tested(pets)[0].unlink()
    images = list_images(load_dataset(pets, "train")).files
    folder = RunFolder(run)
    folder.check_images(images)
    folder.begin(recipe, images)
    assert folder.read_images() == images


@pytest.mark.slow
@pytest.mark.parametrize(
    "contents",
    [b"", b"[1]", b'{"a": "b"}', b"\0", b"\x80\x04.", b"[" * 100_000, b'{"rows": []}',
     b'{"rows": [{}]}', b'{"rows": [{"original": "high"}]}'],
    ids=range(9),
)  # fmt: skip
@pytest.mark.parametrize("name", ["images.json", "recipe.json", "result.json"])
def test_damaged_files_are_named(
    run: Path, recipe: TrainingRecipe, name: str, contents: bytes
) -> None:
    """One line, not a traceback: an error that the command line expects."""
    (run / "last.ckpt").write_bytes(b"never read")
    (run / name).write_bytes(contents)
    with pytest.raises(ValueError, match=name):
        fit(recipe, run, RunOptions(device="cpu"))


def test_damaged_rows_of_metrics_do_not_count(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    row = {"step": 7, "lr": 0.1, "loss": 0.5, "accuracy": 50.0, "test_loss": "",
           "test_accuracy": "", "images_per_second": 80.5, "seconds": 0.25}  # fmt: skip
    folder.append_metrics([{"epoch": number, **row} for number in (1, 2, 3)])
    whole = folder.metrics.read_bytes()
    for damaged, left in (
        (whole.replace(b"2,7", b"2\xff,7"), ["1", "3"]),
        (whole.replace(b"2,7", b"2,,7"), ["1", "3"]),
        (whole.replace(b"2,7", b"2,"), ["1", "3"]),
        (whole.replace(b"3,7,0.1,0.5", b"3,7,0.1,0."), ["1", "2", "3"]),
        (whole[: whole.rindex(b"0.5")], ["1", "2"]),
        (whole.replace(b"seconds", b"minutes"), []),
        (b"\0" * 9, []),
    ):
        folder.metrics.write_bytes(damaged)
        assert [row["epoch"] for row in folder.read_metrics()] == left
        folder.cut_metrics(9)
        assert [row["epoch"] for row in folder.read_metrics()] == left
        folder.cut_metrics(1)
        assert [row["epoch"] for row in folder.read_metrics()] == left[:1]


def test_pixels_have_a_digest_alone(tmp_path: Path) -> None:
    trees.stl10(tmp_path)
    train = load_dataset("stl10", "train", root=tmp_path)
    before = list_images(train)
    assert before.files == {}
    train.pixels[0, 0, 0, 0] += 1
    assert list_images(train).digest != before.digest


@pytest.mark.parametrize("tars", [False, True])
def test_every_layout_can_be_listed(tars: bool, tmp_path: Path) -> None:
    trees.flowers102(tmp_path, tars=tars)
    files = list_images(load_dataset("flowers102", "train", root=tmp_path)).files
    assert len(files) == 6
    assert all(name.startswith("flowers-102/jpg") and size > 0 for name, size in files.items())


def test_a_test_part_alone_is_judged(
    run: Path, pets: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = pets.parent / "alone"
    trees.folder(alone / "test", {"cat": 2, "dog": 2})
    assert len(load_subject(run, alone).images) == 4
    assert "warning" not in capsys.readouterr().err
