"""The conversion experiment from a trained network to its rows."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from equicolor.models import load_model, save_model, z2cnn
from equicolor.paper import conversion
from equicolor.paper.conversion import hue_figure, run
from equicolor.paper.experiment import Context, Job, Outcome
from equicolor.training.fit import RunOptions, fit
from equicolor.training.recipes import TrainingRecipe
from equicolor.training.run_folder import origin_of, recipe_of_run


@pytest.fixture
def pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Noise in three colours, which are the classes."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    rng = np.random.default_rng(0)
    colours = {"red": (200, 60, 50), "green": (50, 190, 70), "blue": (60, 70, 210)}
    for name, colour in colours.items():
        for split, count in (("train", 8), ("test", 3)):
            folder = tmp_path / "pictures" / split / name
            folder.mkdir(parents=True)
            for index in range(count):
                pixels = np.array(colour) + rng.normal(0, 20, (30, 30, 3))
                Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{index}.png")
    return tmp_path / "pictures"


@pytest.mark.slow
def test_rows_before_after_and_fine_tuned(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversion, "_POOLS", ("max",))
    recipe = TrainingRecipe(
        "z2cnn", {"width": 8, "dropout": 0.0}, dataset=str(pictures), size=28, resize=32,
        epochs=12, batch_size=8, lr=3e-3, precision="float32",
    )  # fmt: skip
    options = RunOptions(device="cpu", data_path="streaming", workers=0)
    fit(recipe, tmp_path / "run", options)
    settings = {"rotations": 3, "lifting": "hsv", "finetune_epochs": 1}
    job = Job("mine", "conversion", run, settings, about={"dataset": str(pictures)})
    context = Context(tmp_path / "out", "cpu", before=(Outcome([], tmp_path / "run"),))
    found = run(job, context)
    before, converted, tuned, plain, jittered = found
    assert [row["rotations"] for row in found] == [1, 3, 3, 1, 1]
    assert [row["stage"] for row in found] == [
        "before conversion", "converted, max over 3 hues",
        "converted and fine-tuned for 1 epoch, max", "plain, fine-tuned for 1 epoch",
        "plain, fine-tuned with jitter for 1 epoch",
    ]  # fmt: skip
    assert plain["augmentation"] == "none"
    assert jittered["augmentation"] == "jitter 0.5"
    # colours are the classes: the plain network knows them, an invariant one cannot
    assert before["original"] > 60
    assert before["hue_mean"] < before["original"] - 15
    for row in (converted, tuned):
        curve = row["hue_curve"]
        assert len({curve[0], curve[12], curve[24], curve[36]}) == 1  # shifts by 120 degrees
        assert row["coset_pool"] == "max"
    assert load_model(tmp_path / "out" / "finetuned-max" / "model.safetensors").rotations == 3
    # the fine-tune goes on as the run trained, and so does whoever finds the converted network
    before, after = (recipe_of_run(tmp_path / path) for path in ("run", "out/finetuned-max"))
    assert after is not None
    kept = ("split_seed", "size", "crop", "resize", "flip", "batch_size", "seed")
    assert [getattr(after, name) for name in kept] == [getattr(before, name) for name in kept]
    origin = origin_of(tmp_path / "out" / "converted-max.safetensors")
    assert origin._replace(training_digest="") == recipe.origin
    assert origin.training_digest
    # a second time finds the fine-tuned run finished
    again = run(job, context)
    assert again[2]["original"] == tuned["original"]
    # but not with another network under the same path
    save_model(z2cnn(3, width=8, dropout=0.0), tmp_path / "run" / "model.safetensors")
    with pytest.raises(ValueError, match=r"another recipe: finetune_digest \w+ instead of \w+"):
        run(job, context)


def test_curves_that_coincide_can_be_told_apart() -> None:
    stages = [{"dataset": "mine", "stage": str(n), "hue_curve": [50.0] * 37} for n in range(7)]
    figure = hue_figure(stages, "mine")
    assert figure is not None
    lines = figure.axes[0].get_lines()
    assert len({line.get_color() for line in lines}) == 7
    assert len({line.get_marker() for line in lines}) == 7
    assert len({line.get_markevery() for line in lines}) == 7
    for first, second in itertools.pairwise(lines):
        assert first.get_linestyle() != second.get_linestyle()
