"""Tables 1 and 3 from made-up rows, beside the paper's numbers."""

from typing import Any

import pytest

from equicolor.paper.classification import (
    gains_table,
    headline,
    paper_numbers,
    show,
    table1,
    table3,
)
from equicolor.paper.rows import Findings
from equicolor.paper.variants import Variant, by_variant, datasets_of
from equicolor.training.recipes import recipes

PLAIN = {"rotations": 1, "lifting": None, "ce_stages": 0}
CE = {"rotations": 3, "lifting": "rgb", "ce_stages": 4}
HSV = {"rotations": 12, "lifting": "hsv", "ce_stages": 4}


def row(model: str, seed: int = 0, **facts: Any) -> dict[str, Any]:
    options = HSV if "hsv" in model else CE if "ce_" in model else PLAIN
    return {
        "model": model.removesuffix("-hsv"),
        **options,
        "dataset": "flowers102",
        "augmentation": "none",
        "seed": seed,
        "epochs": 200,
        "original": 60.0 + seed,
        "hue_mean": 20.0 + seed,
        **facts,
    }


@pytest.fixture
def rows() -> list[dict[str, Any]]:
    """Two seeds of some of the paper's networks and of ours, in no particular order."""
    made = []
    for seed in (0, 1):
        made += [
            row("ce_resnet18-hsv", seed, original=70.0 + seed, hue_mean=69.0 + seed),
            row("ce_resnet18-hsv", seed, augmentation="jitter 0.5", original=75.0, hue_mean=74.0),
            row("resnet18-gray", seed),
            row("ce_resnet18", seed),
            row("resnet18", seed, augmentation="jitter 0.5"),
            row("resnet18", seed),
            row("ce_resnet18", seed, ce_stages=2),
        ]
    made.append(row("ciconv_resnet18", original=68.0, hue_mean=59.0))
    made.append(row("ce_resnet18-hsv", augmentation="augmix", original=78.0, hue_mean=77.0))
    return made


def cells(table, name: str) -> tuple[str, ...]:
    found = [tuple(line) for line in table.rows if line[0] == name]
    assert len(found) == 1, [line[0] for line in table.rows]
    return found[0]


# --- the paper's numbers -----------------------------------------------------------------------


def test_published_numbers_are_those_of_the_paper() -> None:
    numbers = paper_numbers()
    assert len(numbers) == 212
    plain, jitter = Variant("baseline", "resnet18", 1, "", 0, "none"), "jitter 0.5"
    ce = Variant("ce", "resnet18", 3, "rgb", 4, "augmix")
    for dataset, variant, test_set, shown in (
        ("flowers102", plain, "original", "66.79 ± 0.89"),
        ("cifar10", Variant("ce", "resnet44", 3, "rgb", 3, "none"), "hue_mean", "90.90 ± 0.25"),
        ("oxford_pet", Variant("ciconv", *plain[1:5], jitter), "hue_mean", "63.93 ± 0.42"),
        ("stanford_cars", ce, "original", "80.81 ± 0.27"),
        ("imagenet", ce._replace(ce_stages=1, augmentation="none"), "original", "70.05"),
    ):
        assert numbers[dataset, variant, test_set] == shown
    networks = {variant.network for place, variant, _ in numbers if place.startswith("cifar")}
    assert networks == {"resnet44"}


def test_every_recipe_of_the_paper_finds_its_numbers() -> None:
    """Rows as training writes them, for every cell the paper has."""
    made = []
    for name, recipe in recipes().items():
        if recipe.gray or recipe.options.get("lifting") == "hsv":
            continue
        options = dict(recipe.options)
        stages = options.get("ce_stages", 0)
        rotations = options.get("rotations", 1)
        made.append(
            {
                "model": recipe.model, "rotations": rotations, "ce_stages": stages,
                "lifting": "rgb" if rotations > 1 else None, "dataset": name.partition("/")[0],
                "augmentation": recipe.augmentation_name, "seed": 0, "epochs": recipe.epochs,
            }
        )  # fmt: skip
    found = {
        (dataset, variant)
        for dataset in datasets_of(made)
        for variant in by_variant([line for line in made if line["dataset"] == dataset])
    }
    assert {(dataset, variant) for dataset, variant, _ in paper_numbers()} <= found


# --- tables ------------------------------------------------------------------------------------


def test_table1_in_the_papers_order_and_ours_after_it(rows) -> None:
    table = table1(rows, "flowers102")
    assert [line[0] for line in table.rows] == [
        "ResNet-18",
        "CIConv-W ResNet-18",
        "CE-ResNet-18-2",
        "CE-ResNet-18",
        "CE-ResNet-18 (HSV, n = 12)",
        "ResNet-18 (grey input)",
        "ResNet-18 + jitter",
        "CIConv-W ResNet-18 + jitter",
        "CE-ResNet-18-2 + jitter",
        "CE-ResNet-18 + jitter",
        "CE-ResNet-18 (HSV, n = 12) + jitter",
        "ResNet-18 + AugMix",
        "CE-ResNet-18 + AugMix",
        "CE-ResNet-18 (HSV, n = 12) + AugMix",
    ]
    assert cells(table, "ResNet-18")[1:] == (
        "66.79 ± 0.89", "60.50 ± 0.71", "13.41 ± 0.34", "20.50 ± 0.71", "2",
    )  # fmt: skip
    assert cells(table, "CE-ResNet-18 (HSV, n = 12)")[1:] == (
        "–", "70.50 ± 0.71", "–", "69.50 ± 0.71", "2",
    )  # fmt: skip
    assert cells(table, "CIConv-W ResNet-18 + jitter")[1:] == (
        "75.05 ± 0.39", "–", "75.66 ± 0.27", "–", "–",
    )  # fmt: skip
    assert table.title == "Table 1, Flowers-102: accuracy in percent"


def test_table3_has_every_number_of_stages(rows) -> None:
    table = table3([*rows, row("ce_resnet18-hsv", ce_stages=1)], "flowers102")
    stages = [line[1] for line in table.rows if line[0].startswith("CE-") and "+" not in line[0]]
    assert stages == ["1", "2", "3", "4", "1", "4"]
    assert cells(table, "CE-ResNet-18-3")[2:] == ("69.42 ± 0.58", "–", "33.76 ± 0.38", "–", "–")
    assert cells(table, "CE-ResNet-18-1 (HSV, n = 12)")[3] == "60.00"
    assert not any("grey" in line[0] for line in table.rows)


def test_cifar_has_three_stages() -> None:
    rows = [row("ce_resnet44", dataset="cifar10", ce_stages=3, epochs=30)]
    table = table3(rows, "cifar10")
    assert cells(table, "CE-ResNet-44")[1:4] == ("3", "93.71 ± 0.26", "60.00")
    assert not any(line[1] == "4" for line in table.rows)
    assert table.title.endswith("accuracy in percent; ours: 30 epochs instead of 200")


def test_datasets_outside_the_paper(rows) -> None:
    rows = [dict(line, dataset="my-pictures") for line in rows]
    table = table1(rows, "my-pictures")
    assert table.columns == ("network", "original, ours", "hue-shifted, ours", "seeds")
    assert "original, paper" in table1(rows, "flowers102").columns
    assert len(table.rows) == 9


def test_runs_that_differ_are_not_averaged() -> None:
    rows = [row("resnet18", seed) for seed in range(3)]
    rows += [row("resnet18", 0, epochs=30), row("resnet18", 1, ema=0.999, original=70.0)]
    groups = by_variant(rows)
    assert {variant.name: len(group) for variant, group in groups.items()} == {
        "ResNet-18": 3,
        "ResNet-18 (30 epochs)": 1,
        "ResNet-18 (ema 0.999)": 1,
    }


REDUCED = [row("resnet18", seed, size=64) for seed in range(2)]


def test_a_full_run_keeps_the_papers_number_among_reduced_ones() -> None:
    table = table1([*REDUCED, row("resnet18", original=66.0)], "flowers102")
    assert cells(table, "ResNet-18")[1:3] == ("66.79 ± 0.89", "66.00")
    assert cells(table, "ResNet-18 (64 pixels)")[1:3] == ("–", "60.50 ± 0.71")
    assert table.title == "Table 1, Flowers-102: accuracy in percent"


def test_a_setting_that_all_runs_share_is_in_the_title() -> None:
    rows = [*REDUCED, row("ce_resnet18", size=64, lr=0.1), row("resnet18", size=64, epochs=30)]
    table = table3(rows, "flowers102")
    assert table.title.endswith("accuracy in percent; ours: 64 pixels instead of 224")
    assert cells(table, "ResNet-18")[2:4] == ("66.79 ± 0.89", "60.50 ± 0.71")
    # What only some have is in their lines, which then have no number of the paper.
    assert cells(table, "ResNet-18 (30 epochs)")[2] == "–"
    assert cells(table, "CE-ResNet-18 (lr 0.1)")[2] == "–"
    assert cells(table, "CE-ResNet-18")[3] == "–"
    assert "(64 pixels instead of 224)" in headline(rows, "flowers102")
    # The paper's size is the dataset's own.
    cifar = [row("resnet44", dataset="cifar10", size=32)]
    assert table1(cifar, "cifar10").title.endswith("accuracy in percent")


def test_widths_are_compared_with_those_of_the_paper() -> None:
    narrow = [row("ce_resnet18", seed, width=7) for seed in range(2)]
    table = table1([*narrow, row("ce_resnet18", width=55)], "flowers102")
    assert cells(table, "CE-ResNet-18")[1:3] == ("68.18 ± 0.45", "60.00")
    assert cells(table, "CE-ResNet-18 (width 7)")[1] == "–"
    # In common they can only have that they are not the paper's.
    table = table1([*narrow, row("resnet18", width=8)], "flowers102")
    assert cells(table, "CE-ResNet-18")[2] == "60.50 ± 0.71"
    assert table.title.endswith("ours: other widths")


def test_grey_input_and_fine_tuning_are_not_averaged_with_others() -> None:
    rows = [
        row("ce_resnet18", 0), row("ce_resnet18-gray", 1), row("ciconv_resnet18", 0),
        row("ciconv_resnet18-gray", 1), row("ce_resnet18", 2, finetuned="first"),
    ]  # fmt: skip
    found = {variant.name: [line["seed"] for line in group]
             for variant, group in by_variant(rows).items()}  # fmt: skip
    assert found == {
        "CE-ResNet-18": [0],
        "CE-ResNet-18 (grey input)": [1],
        "CE-ResNet-18 (fine-tuned from first)": [2],
        "CIConv-W ResNet-18": [0],
        "CIConv-W ResNet-18 (grey input)": [1],
    }
    assert cells(table3(rows, "flowers102"), "CE-ResNet-18 (grey input)")[2] == "–"


def test_a_seed_twice_is_refused() -> None:
    with pytest.raises(ValueError, match=r"2 rows of ResNet-18 have the same seed, 1"):
        by_variant([row("resnet18", 1), row("resnet18", 1)])


@pytest.mark.parametrize(
    ("facts", "name"),
    [
        ({"augmentation": "jitter 0.1"}, "ResNet-18 + jitter 0.1"),
        ({"augmentation": "augmix + js"}, "ResNet-18 + AugMix + JS loss"),
        ({"augmentation": "jitter 0.5 + augmix"}, "ResNet-18 + jitter + AugMix"),
        ({"model": "resnet50"}, "ResNet-50"),
        (
            {"model": "ce_resnet18-gray", "rotations": 6, "lifting": "hsv", "ce_stages": 4},
            "CE-ResNet-18 (HSV, n = 6, grey input)",
        ),
        ({"model": "timm:vit_small"}, "timm:vit_small"),
        ({"rotations": 6, "lifting": "rgb", "ce_stages": 4}, "CE-ResNet-18 (RGB, n = 6)"),
        ({"rotations": 6, "lifting": "hsv", "ce_stages": None}, "CE-ResNet-18 (HSV, n = 6)"),
        ({"rotations": 3, "lifting": "hsv", "ce_stages": 2}, "CE-ResNet-18-2 (HSV, n = 3)"),
    ],
)
def test_names(facts: dict[str, Any], name: str) -> None:
    (variant,) = by_variant([row("resnet18") | facts])
    assert variant.name == name


def test_rows_without_a_sweep_have_a_dash() -> None:
    line = row("resnet18")
    del line["hue_mean"]
    assert cells(table1([line], "flowers102"), "ResNet-18")[2:] == (
        "60.00",
        "13.41 ± 0.34",
        "–",
        "1",
    )


# --- words and files ---------------------------------------------------------------------------


def test_headline_names_the_most_robust(rows) -> None:
    text = headline(rows, "flowers102")
    assert text.startswith(
        "Flowers-102: CE-ResNet-18 (HSV, n = 12) reaches 70.5 % and 69.5 % when hues are shifted "
        "(without augmentation; the paper's highest are 69.4 and 59.0). "
        "CE-ResNet-18 (HSV, n = 12) + AugMix reaches 78.0 % and 77.0 % when hues are shifted "
        "(with AugMix; the paper's highest are 78.1 and 41.4). "
    )
    assert text.endswith("(with colour augmentation; the paper's highest are 75.0 and 75.7).")
    lonely = [row("resnet18", hue_mean=None)]
    assert headline(lonely, "flowers102") == (
        "Flowers-102: 1 network, none of them swept over hues."
    )


def test_every_dataset_has_its_sections(rows) -> None:
    rows = [*rows, row("resnet44", dataset="cifar10"), row("resnet18", dataset="mine")]
    shown = show(Findings({"classification": rows}))
    assert [section.title for section in shown] == [
        "CIFAR-10", "CIFAR-10: all networks",
        "Flowers-102", "Flowers-102: all networks", "Flowers-102: compared seed by seed",
        "mine", "mine: all networks",
    ]  # fmt: skip
    tables = [section.table.title[:7] for section in shown if "seed" not in section.title]
    assert tables == ["Table 1", "Table 3"] * 3
    assert show(Findings({})) == []


def test_networks_are_compared_with_the_plain_one_of_their_seed(rows: list[dict[str, Any]]) -> None:
    for plain in rows:  # the second seed is luckier on the originals, for all networks
        if plain["model"] == "resnet18" and plain["augmentation"] == "none":
            plain["original"] += 5.0 * plain["seed"]
    rows.append(row("ce_resnet18-hsv", 2, original=99.0))  # no plain network of that seed
    table = gains_table(rows, "flowers102")
    assert cells(table, "CE-ResNet-18 (HSV, n = 12)")[1:] == ("+7.50 ± 2.50", "+49.00 ± 0.00", "2")
    # With jitter both networks are compared with the plain one with jitter.
    jittered = cells(table, "CE-ResNet-18 (HSV, n = 12) + jitter")
    assert jittered[1:] == ("+14.50 ± 0.50", "+53.50 ± 0.50", "2")
    names = {line[0] for line in table.rows}
    assert not names & {"ResNet-18", "ResNet-18 + jitter", "CIConv-W ResNet-18"}
    assert "ResNet-18 (grey input)" in names
    assert gains_table(rows[:1], "flowers102").rows == []


def test_rows_that_were_not_swept_have_no_shifted_difference() -> None:
    made = [row(model, seed) for model in ("resnet18", "ce_resnet18") for seed in (0, 1)]
    made[2]["hue_mean"] = None
    del made[3]["hue_mean"]
    (line,) = gains_table(made, "flowers102").rows
    assert line == ("CE-ResNet-18", "+0.00 ± 0.00", "–", "2")
