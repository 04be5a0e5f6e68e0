"""``equicolor train`` as a user sees it."""

import json
from pathlib import Path

import numpy as np
import pytest
import typer
from PIL import Image
from tests.data import trees
from typer.testing import CliRunner, Result

from equicolor.cli.app import _Commands
from equicolor.cli.options import slug
from equicolor.cli.train import train
from equicolor.models import load_model
from equicolor.training.recipes import TrainingRecipe, recipes

app = typer.Typer(cls=_Commands)
app.command()(train)
app.callback()(lambda: None)

TINY = (
    "--model", "ce_resnet18", "--rotations", "2", "--width", "2", "--size", "16", "--epochs", "2",
    "--batch-size", "6", "--device", "cpu",
)  # fmt: skip


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["train", *arguments], prog_name="equicolor")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a folder of class folders, which is split by the package."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    generator = np.random.default_rng(0)
    for label in range(2):
        place = tmp_path / "pets" / f"class{label}"
        place.mkdir(parents=True)
        for index in range(10):
            pixels = generator.integers(0, 256, (20, 24, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(place / f"{index}.png")
    return tmp_path


def recipe_of(result: Result) -> TrainingRecipe:
    """The recipe that a dry run prints."""
    assert result.exit_code == 0, result.stderr
    text, _, _ = result.stdout.partition("\nwould train")
    return TrainingRecipe.from_json(text)


def test_train_ends_with_files_and_the_headline(folder: Path) -> None:
    result = invoke("pets", *TINY, "--jitter", "0.5")
    assert result.exit_code == 0, result.stderr
    (run,) = Path("runs").iterdir()
    name = "pets-ce_resnet18-n2-width2-jitter0.5-epochs2-size16-batch6-float32-seed0-"
    assert run.name.startswith(name)
    wrote, headline = result.stdout.splitlines()
    names = ("model.safetensors", "result.json", "metrics.csv", "last.ckpt")
    assert wrote == "wrote " + ", ".join(str(run / name) for name in names)
    (row,) = json.loads((run / "result.json").read_text())["rows"]
    assert headline == (
        f"{row['original']:.2f} % on the test set of pets, {row['hue_mean']:.2f} % on average over "
        "hue shifts, after 2 epochs"
    )
    assert load_model(run / "model.safetensors").config["rotations"] == 2
    again = invoke("pets", *TINY, "--jitter", "0.5")
    assert again.stdout.splitlines() == [
        f"{run} already holds this run, finished; --force trains it again",
        headline,
    ]
    changed = ("pets", *TINY, "--jitter", "0.5", "--lr", "0.1", "-o", str(run))
    other = invoke(*changed)
    assert (other.exit_code, other.stdout) == (2, "")
    assert "another recipe: lr 0.1 instead of 0.001" in other.stderr
    dry = invoke(*changed, "--force", "--dry-run")
    assert (dry.exit_code, dry.stderr.splitlines()[0]) == (0, f"would delete the run in {run}")
    dry = invoke(*changed, "--dry-run")
    assert recipe_of(dry).lr == 0.1
    assert dry.stderr.startswith(f"would not begin: {run} holds a run of another recipe: lr 0.1")
    dry = invoke("pets", *TINY, "--jitter", "0.5", "--dry-run")
    assert dry.stderr == f"would not begin: {run} already holds this run, finished\n"
    for arguments in ((), ("--dry-run",)):  # a bad option is told first
        bad = invoke("pets", *TINY, "--jitter", "0.5", "--width", "abc", *arguments)
        assert (bad.exit_code, bad.stdout) == (2, "")
        assert "width must be None, 'fast', an int or one int a stage; got 'abc'" in bad.stderr
    forced = invoke(*changed, "--force")
    assert forced.exit_code == 0
    assert TrainingRecipe.from_json((run / "recipe.json").read_text()).lr == 0.1


def test_a_dry_run_says_what_it_would_do_and_writes_nothing(folder: Path) -> None:
    before = sorted(folder.rglob("*"))
    result = invoke("pets", *TINY, "--dry-run")
    assert result.exit_code == 0
    last = result.stdout.splitlines()[-1]
    assert "on 17 images of 2 classes, resident, for 2 epochs of 3 steps on 1 cpu device" in last
    assert "in runs/pets-ce_resnet18-n2-width2-epochs2-size16-batch6-float32-seed0-" in last
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize(
    "options",
    ["--lifting hsv", "--ce-stages 2", "--coset-pool avg", "--recipe baseline --lifting hsv"],
)
def test_a_plain_network_refuses_options_of_equivariant_layers(folder: Path, options: str) -> None:
    result = invoke("pets", *options.split(), "--dry-run")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "needs more than one rotation: add rotations" in result.stderr


def test_options_reach_the_recipe(folder: Path) -> None:
    options = """
        --model ce_resnet18 --rotations 12 --lifting hsv --ce-stages 3 --width 4,8,16,32
        --coset-pool avg --jitter 0.25 --gray --augmix --js --size 112 --split-seed 4 --epochs 7
        --batch-size 9 --optimizer sgd --lr 0.5 --weight-decay 0.125 --schedule cosine
        --label-smoothing 0.1 --clip 2 --ema 0.99 --precision bfloat16 --compile --seed 3 --dry-run
    """
    recipe = recipe_of(invoke("pets", *options.split()))
    assert recipe == TrainingRecipe(
        "ce_resnet18",
        {
            "rotations": 12, "lifting": "hsv", "ce_stages": 3, "width": [4, 8, 16, 32],
            "coset_pool": "avg",
        },
        dataset="pets", split_seed=4, size=112, resize=128, jitter=0.25, gray=True,
        augmix="original", js=True, epochs=7, batch_size=9, optimizer="sgd", lr=0.5,
        weight_decay=0.125, schedule="cosine", label_smoothing=0.1, clip=2.0, ema=0.99,
        precision="bfloat16", compile=True, seed=3,
    )  # fmt: skip


@pytest.mark.slow
def test_operations_of_augmix(folder: Path) -> None:
    for option, expected in (("--augmix", "original"), ("--augmix-full", "full")):
        recipe = recipe_of(invoke("pets", option, "--device", "cpu", "--dry-run"))
        assert recipe.augmix == expected


@pytest.mark.slow
def test_a_folder_called_like_a_dataset(folder: Path) -> None:
    (folder / "pets").rename(folder / "cifar10")
    result = invoke("./cifar10", *TINY, "--epochs", "1")
    assert result.exit_code == 0, result.stderr
    (run,) = (folder / "runs").glob("folder-cifar10-ce_resnet18-n2-*")
    (row,) = json.loads((run / "result.json").read_text())["rows"]
    assert row["dataset"] == "folder:cifar10"


@pytest.mark.slow
def test_the_cache_goes_where_it_is_told(folder: Path) -> None:
    result = invoke("pets", *TINY, "--epochs", "1", "--cache", "elsewhere")
    assert result.exit_code == 0, result.stderr
    assert len(list((folder / "elsewhere").glob("pets-t*/pixels.u8"))) == 2
    assert not (folder / "cache").exists()


def test_a_cache_that_is_a_file_is_refused_at_once(folder: Path) -> None:
    (folder / "mine.py").write_text("kept")
    for words in (["mine.py"], ["mine.py/below", "--dry-run"]):
        result = invoke("pets", *TINY, "--cache", *words)
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.stderr == (
            "equicolor: decoded images are kept in a folder (--cache), but mine.py is a file\n"
        )
    assert not (folder / "runs").exists()


def test_crops_larger_than_padded_images_are_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trees.cifar10(folder / "data")
    monkeypatch.setenv("EQUICOLOR_DATA", str(folder / "data"))
    options = ("--device", "cpu", "--model", "resnet44", "--width", "2", "--dry-run")
    assert invoke("cifar10", *options, "--size", "40").exit_code == 0
    for dry in (options, options[:-1]):
        result = invoke("cifar10", *dry, "--size", "41")
        assert result.exit_code == 2
        assert result.stderr.startswith(
            "equicolor: shifted crops of 41 pixels need images of at least 33 (4 are added on "
            "every side), but one is 32 × 32"
        )
    assert not (folder / "runs").exists()
    recipe = recipe_of(invoke("cifar10", *options, "--crop", "resized", "--size", "40"))
    assert (recipe.crop, recipe.size, recipe.resize > 40) == ("resized", 40, True)


def test_recipes_are_listed_and_used(folder: Path) -> None:
    listed = invoke("stl10", "--list-recipes").stdout.splitlines()
    assert listed == list(recipes("stl10"))
    assert len(invoke("--list-recipes").stdout.splitlines()) == len(recipes())
    options = ("--width", "2", "--epochs", "3", "--device", "cpu", "--dry-run")
    recipe = recipe_of(invoke("./pets", "--recipe", "hsv-6+jitter", *options))
    assert recipe.options == {"rotations": 6, "lifting": "hsv", "width": 2}
    assert (recipe.dataset, recipe.jitter, recipe.epochs) == (str(folder / "pets"), 0.5, 3)
    recipe = recipe_of(invoke("./pets", "--recipe", "rgb-6+jitter-0.2", *options))
    assert recipe.options == {"rotations": 6, "lifting": "rgb", "width": 2}
    assert (recipe.jitter, recipe.augmix) == (0.2, "")
    model = ("--model", "ce_resnet34")
    recipe = recipe_of(invoke("./pets", "--recipe", "hsv-6+jitter", *model, *options))
    assert (recipe.model, recipe.options["rotations"]) == ("ce_resnet34", 6)
    recipe = recipe_of(invoke("./pets", "--recipe", "hsv-12+jitter+augmix", *options))
    assert recipe.options == {"rotations": 12, "lifting": "hsv", "width": 2}
    assert (recipe.jitter, recipe.augmix) == (0.5, "original")
    assert recipe.precision == "float32"


@pytest.mark.slow
def test_corrupt_images_and_long_names(folder: Path) -> None:
    name = "é" * 127  # 254 bytes, as long as a file system takes
    (folder / "pets").rename(folder / name)
    (folder / name / "class0" / "0.png").write_bytes(b"no image")
    command = (name, *TINY, "--epochs", "1", "--device", "cpu")
    result = invoke(*command)
    assert result.exit_code == 2, result.output
    assert result.stderr.splitlines()[-1].endswith(
        "0.png cannot be decoded: it is in no format that Pillow knows; repair or remove it, or "
        "leave corrupt images out with --skip-corrupt"
    )
    result = invoke(*command, "--skip-corrupt")
    assert result.exit_code == 0, result.output
    assert "left out 1 corrupt image of" in result.stderr
    (run,) = (folder / "runs").iterdir()
    assert len(run.name.encode()) < 200
    assert len(slug(str(run), name).encode()) < 200


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "a dataset is needed: a name, a folder, or --recipe DATASET/NETWORK"),
        (["caltech13"], "unknown dataset 'caltech13'; did you mean 'caltech101'? (there is no"),
        (["pets", "--model", "resnet81"], "unknown model 'resnet81'; did you mean"),
        (["pets", "--recipe", "ce-5"], "unknown recipe 'pets/ce-5'; did you mean 'pets/ce-4'"),
        (
            ["pets", "--recipe", "hsv-12+jitter", "--model", "resnet34"],
            "hsv-12+jitter has 12 rotations: take ce_resnet34, or another recipe",
        ),
        (["pets", "--lifting", "hue"], "lifting must be one of 'rgb', 'hsv'; got 'hue'"),
        (["pets", "--model", "z2cnn", "--rotations", "3"], "z2cnn has no option 'rotations'"),
        (["pets", "--epochs", "0"], "epochs must be at least 1, got 0"),
        (["pets", "--size", "0"], "size must be at least 1, got 0"),
        (["pets", "--size", "40000"], "size must be at most 32,768, got 40000"),
        (["pets", "--seed", "-1"], "seed must be at least 0, got -1"),
        (["pets", "--device", "tpu"], "device must be one of 'auto', 'cpu', 'cuda'; got 'tpu'"),
        (["pets", "--js"], "js, the Jensen-Shannon loss, compares views of AugMix: it needs"),
    ],
)
def test_bad_input_is_one_line(folder: Path, arguments: list[str], line: str) -> None:
    result = invoke(*arguments, *(["--device", "cpu"] if "--device" not in arguments else []))
    assert result.exit_code == 2
    assert result.stderr.startswith(f"equicolor: {line}")
    assert len(result.stderr.splitlines()) == 1
    assert not (folder / "runs").exists()


@pytest.mark.slow
def test_fine_tuning_keeps_the_split_and_size_of_the_run(folder: Path) -> None:
    options = ("--width", "2", "--epochs", "1", "--batch-size", "6")
    result = invoke("pets", *options, "--size", "18", "--split-seed", "3", "--device", "cpu",
                    "-o", "s3")  # fmt: skip
    assert result.exit_code == 0, result.stderr
    further = ("pets", "--finetune", "s3", "--device", "cpu", "--dry-run")
    recipe = recipe_of(invoke(*further))
    assert (recipe.split_seed, recipe.size, recipe.resize) == (3, 18, 20)
    (folder / "s3" / "model.safetensors").rename(folder / "copy.safetensors")
    recipe = recipe_of(invoke("pets", "--finetune", "copy.safetensors", *further[3:]))
    assert (recipe.split_seed, recipe.size, recipe.resize) == (3, 18, 20)
    (folder / "copy.safetensors").rename(folder / "s3" / "model.safetensors")
    result = invoke(*further, "--split-seed", "4", "--size", "19")
    recipe = recipe_of(result)
    assert (recipe.split_seed, recipe.size, recipe.resize) == (4, 19, 21)
    assert "test images are training images of" in result.stderr
    refused = "s3 holds the network to fine-tune: choose another folder for the run"
    dry = invoke(*further, "-o", "s3", "--force")
    assert f"would not begin: {refused}\n" in dry.stderr
    for force in ([], ["--force"]):
        result = invoke(*further[:-1], "-o", "s3", *force)
        assert (result.exit_code, result.stderr) == (2, f"equicolor: {refused}\n")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--width", "2", "--size", "4"), "resnet18 cannot take images of 4 × 4 pixels (it was"),
        (("--model", "z2cnn", "--size", "20"), "z2cnn cannot take images of 20 × 20 pixels (it"),
        (("--width", "2", "--size", "16", "--batch-size", "1"), "a batch of 1 image of 16 × 16"),
    ],
)
def test_small_images_and_batches_are_refused_at_once(
    folder: Path, arguments: tuple[str, ...], line: str
) -> None:
    for dry in ((), ("--dry-run",)):
        result = invoke("pets", *arguments, "--device", "cpu", *dry)
        assert result.exit_code == 2
        assert result.stderr.startswith(f"equicolor: {line}")
        assert len(result.stderr.splitlines()) == 1
        assert not (folder / "runs").exists()


def test_a_run_is_not_put_among_its_images(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder / "pets")
    for dry in ((), ("--dry-run",)):
        result = invoke(".", *TINY, *dry)
        assert result.exit_code == 2
        assert result.stderr.startswith("equicolor: runs/pets-ce_resnet18-n2-width2-")
        assert f"is inside {folder / 'pets'}, where it would be taken for a cl" in result.stderr
        assert not Path("runs").exists()
    result = invoke(".", *TINY, "--dry-run", "-o", "../pets-run")
    assert result.exit_code == 0, result.stderr


def test_missing_data_say_how_to_get_them(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EQUICOLOR_DATA", str(folder / "nothing"))
    result = invoke("cifar10", "--device", "cpu")
    assert result.exit_code == 1
    assert result.stderr.startswith("equicolor: CIFAR-10 is not in ")
    assert "equicolor datasets get cifar10" in result.stderr
    assert not (folder / "runs").exists()


def test_help_has_every_option_in_a_panel() -> None:
    result = CliRunner().invoke(app, ["train", "--help"], env={"COLUMNS": "120"})
    assert result.exit_code == 0
    for word in ("Network", "Images", "Training", "Running", "--ce-stages", "--num-nodes"):
        assert word in result.stdout
