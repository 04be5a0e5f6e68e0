"""What rows have otherwise than the paper."""

from dataclasses import asdict

from equicolor.paper.rows import (
    alike,
    deviations,
    identity,
    in_words,
    merged,
    paper_settings,
    setting,
    titled,
)
from equicolor.training.recipes import recipes


def test_the_recipes_of_the_tables_are_the_papers_way() -> None:
    for name, recipe in recipes().items():
        row = asdict(recipe) | {"dataset": name.partition("/")[0]}
        assert deviations(row) == {}, name


def test_every_deviation_is_named() -> None:
    row = {"dataset": "cifar10", "epochs": 1, "size": 224, "ema": 0.9, "finetuned": "a"}
    found = deviations(row)
    assert in_words(found) == "1 epoch, 224 pixels, ema 0.9, fine-tuned from a"
    paper = paper_settings("cifar10")
    assert in_words(found, instead_of=paper).startswith("1 epoch instead of 200, 224 pixels instea")
    # The paper does not say in which precision it trained.
    assert in_words({"precision": "float32"}, instead_of=paper) == "precision float32"


def test_rows_to_compare_are_the_papers_or_those_of_most() -> None:
    small, short, full = {"size": 64}, {"epochs": 30}, {"epochs": 200}
    assert alike([small, small, full, short]) == [full]
    assert alike([short, small, small]) == [small, small]
    assert alike([]) == []


def test_a_setting_is_known_by_its_field_alone() -> None:
    assert deviations({"dataset": "cifar10", "crop": "padded", "flip": True}) == {}
    other = deviations({"dataset": "cifar10", "crop": "resized", "flip": False})
    assert in_words(other, instead_of=paper_settings("cifar10")) == (
        "crop resized instead of padded, no flip"
    )


def test_a_missing_value_is_the_papers() -> None:
    row = {"dataset": "flowers102", "model": "resnet18", "seed": 0}
    assert identity(row) == identity(row | {"epochs": 200, "crop": "resized", "finetuned": None})
    for change in ({"epochs": 30}, {"seed": 1}, {"flip": False}, {"augmentation": "augmix"}):
        assert identity(row) != identity(row | change)


def test_datasets_outside_the_paper_are_trained_as_its_photographs() -> None:
    sizes = [setting({"dataset": dataset}, "size") for dataset in ("cifar10", "mine")]
    assert sizes == [32, 224]
    assert setting({"dataset": "mine", "size": 64}, "size") == 64


def test_new_rows_replace_old_ones_about_the_same() -> None:
    new, old = [{"seed": 0, "loss": 1.0}], [{"seed": 0, "loss": 2.0}, {"seed": 1}]
    assert merged(new, old) == [new[0], old[1]]


def test_new_rows_keep_what_else_was_measured() -> None:
    old = [{"seed": 0, "loss": 1.0, "seconds": 3.0, "rgb_mean": 5.0}]
    assert merged([{"seed": 0, "loss": 1.0, "seconds": 2.0}], old) == [
        {"seed": 0, "loss": 1.0, "seconds": 2.0, "rgb_mean": 5.0}
    ]


def test_lines_of_titles_end_at_commas() -> None:
    assert titled("ResNet-18", "") == "ResNet-18"
    words = "64 pixels, batch size 32"
    assert titled("ResNet-18", words, width=30) == "ResNet-18, 64 pixels,\nbatch size 32"
