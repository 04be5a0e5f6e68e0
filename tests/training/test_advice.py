"""What is measured of images, what is proposed, and that the proposals are commands."""

import dataclasses
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.other_values import other_value
from torch.utils.flop_counter import FlopCounterMode
from typer.main import get_command
from typer.testing import CliRunner, Result

from equicolor.cli.app import app
from equicolor.data import ImageSet, biased_colormnist, decode, load_mnist, longtailed_colormnist
from equicolor.data.colormnist import ColorMNIST
from equicolor.data.datasets import load_dataset
from equicolor.data.hue_statistics import HueStatistics, hue_statistics
from equicolor.models import Network
from equicolor.training import advice
from equicolor.training import fit as fitting
from equicolor.training.image_data import ImageData
from equicolor.training.recipes import TrainingRecipe, default_recipe, recipes


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["train", *arguments], prog_name="equicolor")


def measured(data: ColorMNIST, count: int = 400) -> HueStatistics:
    """Of the first digits, which are in random order."""
    pixels = (255 * data.train.images[:count]).round().byte()
    labels = data.train.labels[:count]
    return hue_statistics(decode(ImageSet("toy", "train", labels, data.class_names, pixels=pixels)))


class TestHueStatistics:
    @pytest.mark.parametrize(
        ("sigma", "tells", "decides"), [(0.0, True, True), (36.0, True, False), (1e6, False, False)]
    )
    def test_hues_of_biased_digits(self, sigma: float, tells: bool, decides: bool) -> None:
        hues = measured(biased_colormnist(sigma, load_mnist(embedded=True)))
        assert (hues.images, hues.classes, hues.chance) == (400, 10, 10)
        assert 10 < hues.without_hue < 40  # however the hues are drawn
        assert (advice._hues_help(hues), advice._hues_decide(hues)) == (tells, decides)

    def test_what_a_hue_shift_leaves_does_not_depend_on_it(self) -> None:
        """A third of a turn permutes the channels, and the bins of the histogram."""
        data = biased_colormnist(12.0, load_mnist(embedded=True))
        first = measured(data, 200)
        images = data.train.images.roll(1, dims=1)
        turned = measured(dataclasses.replace(data, train=data.train._replace(images=images)), 200)
        assert turned.without_hue == pytest.approx(first.without_hue, abs=1)
        assert turned.with_hue == pytest.approx(first.with_hue, abs=1)

    def test_rare_classes_count_like_others(self) -> None:
        data = longtailed_colormnist(load_mnist(embedded=True))
        assert len(data.class_counts().unique()) > 5
        hues = measured(data, 1000)
        assert 0 <= hues.without_hue < hues.with_hue < 50
        assert hues.error < 5

    def test_one_image_a_class(self) -> None:
        pixels = torch.zeros(3, 3, 8, 8, dtype=torch.uint8)
        toy = ImageSet("toy", "train", torch.arange(3), ("a", "b", "c"), pixels=pixels)
        assert hue_statistics(decode(toy))[2:] == (0, 0, 0)


def hues(without: float, together: float, error: float = 1.0) -> HueStatistics:
    return HueStatistics(1000, 10, without, together, error)


PLAIN = TrainingRecipe()
EXACT = {"rotations": 12, "lifting": "hsv"}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (hues(30, 31), ["resnet18 jitter", "ce_resnet18 exact", "resnet18"]),
        (hues(30, 50), ["ce_resnet18 exact augmix", "ciconv_resnet18 jitter", "resnet18"]),
        (hues(30, 50, error=9), ["ce_resnet18 exact augmix", "ciconv_resnet18 jitter", "resnet18"]),
        (hues(30, 50, error=11), ["resnet18 jitter", "ce_resnet18 exact", "resnet18"]),
        (hues(0, 0, error=0), ["resnet18 jitter", "ce_resnet18 exact", "resnet18"]),
        (
            hues(30, 90),
            ["resnet18", "ce_resnet18 exact flat", "ce_resnet18 exact augmix",
             "ciconv_resnet18 jitter"],
        ),
    ],
)  # fmt: skip
def test_proposals_follow_what_the_hues_tell(found: HueStatistics, expected: list[str]) -> None:
    proposed = []
    for _, _, recipe in advice._cases(PLAIN, found):
        words = [recipe.model]
        words += ["exact"] * (recipe.options.items() >= EXACT.items())
        words += ["flat"] * ("coset_pool" in recipe.options)
        words += ["jitter"] * (recipe.jitter == 0.5) + ["augmix"] * bool(recipe.augmix)
        proposed.append(" ".join(words))
        with torch.device("meta"):
            recipe.build(10)
    assert proposed == expected


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (hues(30, 90), "nearly give the class away"),
        (hues(30, 50), "help to tell the classes apart"),
        (hues(30, 33, error=4), "no sign .* a gain of less than 8 points would not show"),
        (hues(30, 90)._replace(images=49), "49 images of 10 classes are too few"),
    ],
)
def test_the_finding_says_what_so_many_images_can_show(found: HueStatistics, said: str) -> None:
    assert re.search(said, advice._finding(found))
    assert advice._hues_help(found) == (found.images >= 50 and found.gain > 10)


@pytest.mark.parametrize(
    ("side", "model", "size"),
    [(500, "resnet18", 224), (120, "resnet18", 96), (50, "resnet18", 64), (32, "resnet44", 32)],
)
def test_images_are_not_enlarged_much(side: int, model: str, size: int, tmp_path: Path) -> None:
    for label in "ab":
        (tmp_path / label).mkdir()
        Image.new("RGB", (8, 8)).save(tmp_path / label / "0.png")
    recipe = advice._plain_recipe(str(tmp_path), side)
    assert (recipe.model, recipe.size) == (model, size)
    assert advice._plain_recipe("cifar10", 32) == default_recipe("cifar10")


@pytest.mark.parametrize("seconds", [1e-6, 0.01, 10.0])
def test_a_cpu_gets_what_it_can_do_in_time(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """By so many seconds for an image of 224 pixels; 2,000 images to train on, 100 to judge on."""

    def measure(recipe: TrainingRecipe, *_: object) -> float:
        return seconds * (recipe.size / 224) ** 2

    monkeypatch.setattr(advice, "measure_seconds", measure)
    decoded = decode(ImageSet("t", "train", torch.zeros(1, dtype=torch.long), ("a",),
                              pixels=torch.zeros(1, 3, 8, 8, dtype=torch.uint8)))  # fmt: skip
    cpu, taken = advice._affordable(PLAIN, decoded, torch.device("cpu"), 2000, 100)
    expected = {1e-6: (224, 200), 0.01: (224, 200), 10.0: (64, 50)}[seconds]
    assert (cpu.size, cpu.epochs) == expected
    image = measure(cpu)
    assert taken == pytest.approx(image * 2000 * cpu.epochs + image * 100 * 37 / 3)
    proposal = advice.Proposal("", "", cpu, taken, PLAIN)
    assert proposal.shortened == (seconds == 10)
    assert proposal.remedy == (" To train faster, use a GPU." if seconds == 10 else "")
    exact = proposal._replace(recipe=dataclasses.replace(cpu, model="ce_resnet18", options=EXACT))
    assert ("fewer --rotations" in exact.remedy) == (seconds == 10)
    gpu, _ = advice._affordable(PLAIN, decoded, torch.device("cuda"), 2000, 100)
    assert gpu == PLAIN


def test_a_gpu_does_not_enlarge_small_images(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images of 100 pixels are trained at 96; without ``--size`` it would be 224."""
    monkeypatch.setattr(advice, "measure_seconds", lambda *_: 100.0)
    monkeypatch.setattr(advice, "_median_side", lambda _: 100)
    said = invoke("my fruit", "--advise", "--device", "cpu")
    assert said.exit_code == 0, said.stderr
    lines = said.stdout.splitlines()
    commands = [line for line in lines if line.startswith("  equicolor train ")]
    few = " --batch-size 64"
    assert all(line.endswith(f" --size 64 --epochs 50{few}") for line in commands)
    on_gpu = [line for line in lines if line.startswith("  On a GPU: equicolor train ")]
    assert len(on_gpu) == len(commands) == 4
    assert all(line.endswith(f" --size 96{few}") for line in on_gpu)
    assert "leave --size" not in said.stdout
    monkeypatch.setattr(advice, "_FEW_IMAGES", 1)
    said = invoke("my fruit", "--advise", "--device", "cpu")
    assert "--batch-size" not in said.stdout


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: ``my fruit`` holds red and green images, told apart by hue alone."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    generator = np.random.default_rng(0)
    for channel, name in enumerate(("red", "green")):
        place = tmp_path / "my fruit" / name
        place.mkdir(parents=True)
        for index in range(20):
            pixels = generator.integers(0, 90, (40, 44, 3)).astype(np.uint8)
            pixels[..., channel] += 120
            Image.fromarray(pixels).save(place / f"{index}.png")
    return tmp_path


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dry runs try narrow networks: full ones take seconds for an image."""
    build = fitting.build_network

    def build_narrow(data: ImageData) -> Network:
        options = {**data.recipe.options, "width": 2}
        return build(ImageData(dataclasses.replace(data.recipe, options=options), data.options))

    monkeypatch.setattr(fitting, "build_network", build_narrow)


@pytest.mark.slow
@pytest.mark.usefixtures("narrow")
def test_advice_from_the_command(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measure = advice.measure_seconds

    def measure_narrow(recipe: TrainingRecipe, *arguments: Any) -> float:
        narrow = dataclasses.replace(recipe, options={**recipe.options, "width": 2})
        return measure(narrow, *arguments)

    monkeypatch.setattr(advice, "measure_seconds", measure_narrow)
    monkeypatch.setattr(advice, "_cpu_batch", lambda size: 4)
    before = sorted(folder.rglob("*"))
    said = invoke("my fruit", "--advise", "--device", "cpu")
    assert said.exit_code == 0, said.stderr
    assert sorted(folder.rglob("*")) == before  # nothing was written
    lines = said.stdout.splitlines()
    assert lines[0].startswith("my fruit: ")
    assert "2 classes" in lines[0]
    assert "short sides of 40 pixels" in lines[0]
    assert "guessing gets 50.0 %" in said.stdout
    assert "themselves:         100.0 %" in said.stdout
    assert "nearly give the class away" in said.stdout
    assert said.stdout.count("Training and testing take about ") == 4
    commands = [shlex.split(line) for line in lines if line.startswith("  equicolor train ")]
    assert len(commands) == 4
    assert "--coset-pool none" in " ".join(commands[1])
    for words in commands:  # each is a command that would begin
        dry = invoke(*words[2:], "--device", "cpu", "--dry-run")
        assert dry.exit_code == 0, dry.stderr
        assert "would train" in dry.stdout
        assert "withstands" not in dry.stderr  # the advice is not the weakest choice


@pytest.mark.slow
@pytest.mark.usefixtures("narrow")
def test_commands_train_the_recipes_that_are_proposed(folder: Path) -> None:
    place = str(folder / "my fruit")
    for side, with_hue in ((300, 31), (96, 50), (40, 90)):
        plain = advice._plain_recipe(place, side)
        plain = dataclasses.replace(plain, precision="float32", split_seed=1234567, epochs=50)
        for _, _, recipe in advice._cases(plain, hues(30, with_hue)):
            words = shlex.split(advice.command(recipe))[2:]
            dry = invoke(*words, "--device", "cpu", "--dry-run")
            text = dry.stdout.partition("\nwould train")[0]
            assert TrainingRecipe.from_json(text) == recipe


def test_advice_refuses_what_it_would_ignore(folder: Path) -> None:
    command = get_command(app).commands["train"]  # type: ignore[attr-defined]
    refused = []
    for parameter in command.params:
        if parameter.name in ("help", "dataset", "advise", "device", "split_seed", "skip_corrupt"):
            continue
        words = [parameter.opts[0]]
        if parameter.is_flag:
            words = [(parameter.secondary_opts or parameter.opts)[0]]
            if parameter.default in (None, False):
                words = [parameter.opts[0]]
        else:
            words.append(_value(parameter.name))
        said = invoke("my fruit", "--advise", *words)
        assert (said.exit_code, said.stdout) == (2, ""), words
        assert f"got --{parameter.name.replace('_', '-')}" in said.stderr, words
        refused.append(parameter.name)
    assert len(refused) > 35
    alone = invoke("--advise")
    assert alone.exit_code == 2
    assert alone.stderr.startswith("equicolor: --advise needs a dataset: ")


def _value(name: str) -> str:
    """Another value than the default; nothing checks it before it is refused."""
    if name in {field.name for field in dataclasses.fields(TrainingRecipe)} - {"model", "finetune"}:
        return str(other_value(name))
    numbers = ("rotations", "ce_stages", "devices", "num_nodes", "workers", "validate_every",
               "checkpoint_every")  # fmt: skip
    return "7" if name in numbers else "hsv"


def test_corrupt_images_are_told_or_left_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (folder / "my fruit" / "red").glob("1*.png"):
        path.write_bytes(b"no image")
    said = invoke("my fruit", "--advise", "--device", "cpu")
    assert said.exit_code == 2
    assert "leave corrupt images out with --skip-corrupt" in said.stderr
    monkeypatch.setattr(advice, "measure_seconds", lambda *_: 1e-3)
    said = invoke("my fruit", "--advise", "--device", "cpu", "--skip-corrupt")
    assert said.exit_code == 0, said.stderr
    assert "Left out 11 corrupt images of 40 that were read, the first because " in said.stdout
    commands = [line for line in said.stdout.splitlines() if "equicolor train " in line]
    assert len(commands) >= 3
    assert all(line.endswith(" --skip-corrupt") for line in commands)


def test_corrupt_test_images_are_told_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run would stop on them."""
    monkeypatch.setattr(advice, "measure_seconds", lambda *_: 1e-3)
    said = invoke("my fruit", "--advise", "--device", "cpu")
    assert "Left out" not in said.stdout
    assert "--skip-corrupt" not in said.stdout
    load_dataset("my fruit", "test").files[0].path.write_bytes(b"no image")
    said = invoke("my fruit", "--advise", "--device", "cpu")
    assert said.exit_code == 2
    assert "leave corrupt images out with --skip-corrupt" in said.stderr


def test_a_measured_step_is_one_of_the_recipe(folder: Path) -> None:
    plain = TrainingRecipe(
        "resnet18", {"width": 2}, dataset=str(folder / "my fruit"), size=16, resize=18,
        augmix="original", precision="float32",
    )  # fmt: skip
    pixels = torch.zeros(6, 3, 20, 20, dtype=torch.uint8)
    toy = ImageSet("toy", "train", torch.arange(6) % 2, ("a", "b"), pixels=pixels)
    wide = dataclasses.replace(plain, options={"width": 32}, size=64, resize=73)
    operations = []
    for recipe in (plain, wide):
        with FlopCounterMode(display=False) as counter:
            assert advice.measure_seconds(recipe, decode(toy)) > 0
        operations.append(counter.get_total_flops())
    # Sixteen times the channels in and out and sixteen times the pixels, but for three colours.
    assert 0 < 100 * operations[0] < operations[1]


@pytest.mark.parametrize(
    ("options", "better"),
    [
        (
            "--model ce_resnet18",
            "ce_resnet18 takes 3 rotations and rgb lifting, as in the paper; --rotations 12 "
            "--lifting hsv withstands hue shifts better",
        ),
        (
            "--model ce_resnet18 --lifting hsv",
            "ce_resnet18 takes 3 rotations, as in the paper; --rotations 12 withstands hue shifts "
            "better",
        ),
        ("--model ce_resnet18 --rotations 3", ""),
        ("--recipe ce-4", ""),
        ("--model resnet18", ""),
    ],
)
def test_the_weakest_choice_is_not_taken_without_a_word(
    folder: Path, options: str, better: str
) -> None:
    said = invoke("my fruit", *options.split(), "--size", "32", "--device", "cpu", "--dry-run")
    assert said.exit_code == 0
    assert (better in said.stderr) if better else (said.stderr == "")
    recipe = TrainingRecipe.from_json(said.stdout.partition("\nwould train")[0])
    assert "lifting" in recipe.options or recipe.options.get("rotations", 3) == 3
    if options == "--model ce_resnet18":  # the identity of a run is what it was
        assert recipe.options == {}
    assert set(recipes("flowers102")) >= {"flowers102/ce-4", "flowers102/hsv-12"}
