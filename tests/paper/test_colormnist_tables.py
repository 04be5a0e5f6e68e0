"""Tables, headlines and hue curves of the toy experiments."""

import pytest
import torch
from tests.paper.colormnist_rows import biased_rows, longtailed_rows
from torch import nn

from equicolor.data import Digits, biased_colormnist, longtailed_colormnist
from equicolor.paper import colormnist, colormnist_tables


def test_longtailed_table_stands_beside_the_paper() -> None:
    table = colormnist_tables.longtailed_table(longtailed_rows())
    assert table.columns == ("network", "accuracy", "paper", "seeds")
    assert list(table.rows) == [
        ("Z2CNN", "71.50 ± 0.71", "71.59 ± 0.61", "2"),
        ("Z2CNN, grey input", "24.50 ± 0.71", "24.19 ± 0.53", "2"),
        ("CECNN", "91.50 ± 0.71", "91.35 ± 0.40", "2"),
        ("CECNN, coset pooling", "30.50 ± 0.71", "29.43 ± 0.46", "2"),
        ("Z2CNN + jitter", "28.50 ± 0.71", "–", "2"),
        ("CECNN + weighted loss", "90.50 ± 0.71", "–", "2"),
    ]
    assert "1,000 epochs" in table.title


def test_biased_table_has_a_column_for_each_sigma() -> None:
    table = colormnist_tables.biased_table(biased_rows())
    assert table.columns[1:3] == ("σ = 0°", "σ = 12°")
    assert table.columns[-1] == "σ = 10⁶°"
    assert [row[0] for row in table.rows] == [
        "Z2CNN", "Z2CNN, grey input", "Z2CNN, grey input (paper)", "CECNN",
    ]  # fmt: skip
    assert table.rows[2][1:] == ("89.89", "–", "–", "–", "–", "–", "79.94")
    assert table.rows[0][1] == "90.50 ± 0.71"
    redrawn = [row | {"data_seed": row["seed"]} for row in biased_rows()]
    rows = colormnist_tables.biased_table([*redrawn, *biased_rows()]).rows
    assert [row[0] for row in rows] == [
        *(row[0] for row in table.rows), "Z2CNN (data drawn for every seed)",
        "Z2CNN, grey input (data drawn for every seed)", "CECNN (data drawn for every seed)",
    ]  # fmt: skip
    rows = colormnist_tables.biased_table(redrawn).rows
    assert rows[2] == table.rows[2]  # what the paper has


def test_gains_have_a_table_of_their_own() -> None:
    rows = biased_rows()
    for row in rows:
        row["original"] -= 2.5 * (row["model"] == "cecnn" and row["sigma"] == 12) * row["seed"]
    redrawn = [row | {"data_seed": row["seed"]} for row in biased_rows()]
    gains = colormnist_tables.gains_table([*redrawn, *rows])
    assert gains.columns == colormnist_tables.biased_table([*redrawn, *rows]).columns
    plain, other = gains.rows
    assert plain[:4] == ("CECNN", "+1.00 ± 0.00", "−0.25 ± 1.25", "+1.00 ± 0.00")
    assert other == ("CECNN (data drawn for every seed)", *["+1.00 ± 0.00"] * 7)
    one = [row for row in rows if row["seed"] == 0]
    assert colormnist_tables.gains_table(one).rows == []


def test_headline_of_the_biased_set_counts_where_it_leads() -> None:
    usual = {"augmentation": "none", "weighted": False, "seed": 0}
    rows = [
        usual | {"model": model, "sigma": sigma, "original": accuracy}
        for model, accuracies in (("cecnn", (90.0, 80.0, 70.0)), ("z2cnn", (60.0, 81.0, 69.0)))
        for sigma, accuracy in zip((0.0, 12.0, 24.0), accuracies, strict=True)
    ]
    said = colormnist_tables.headline(rows)
    assert "(mean over σ; ahead at 2 of 3): 10.0 points more" in said
    level = {"cecnn": (96.0, 96.28), "z2cnn": (96.07, 96.21)}  # but for rounding
    redrawn = [
        row | {"data_seed": seed, "seed": seed, "original": level[row["model"]][seed]}
        for row in rows
        for seed in (0, 1)
    ]
    both = colormnist_tables.headline(rows + redrawn)
    assert both.startswith(
        f"{said} CECNN 96.1 % against Z2CNN 96.1 % (mean over σ; ahead at 0 of 3; data drawn "
    )


def test_headline_compares_the_spreads_that_both_have() -> None:
    usual = {"augmentation": "none", "weighted": False, "seed": 0}

    def said(cecnn: dict[float, list[float]], z2cnn: dict[float, list[float]]) -> str:
        rows = [
            usual | {"model": model, "sigma": sigma, "seed": seed, "original": value}
            for model, cells in (("cecnn", cecnn), ("z2cnn", z2cnn))
            for sigma, values in cells.items()
            for seed, value in enumerate(values)
        ]
        return colormnist_tables.headline(rows)

    assert said({0.0: [99.5], 1e6: [94.0]}, {0.0: [99.0]}).startswith(
        "CECNN 99.5 % against Z2CNN 99.0 % (σ = 0°): 0.5 points more"
    )
    assert said({0.0: [99.5]}, {1e6: [94.0]}) == "2 networks trained."
    # Every σ weighs the same, however many seeds it has.
    assert said({0.0: [100.0] * 3, 12.0: [90.0]}, {0.0: [99.0], 12.0: [91.0]}).startswith(
        "CECNN 95.0 % against Z2CNN 95.0 % (mean over σ; ahead at 1 of 2): 0.0 points"
    )


def test_columns_of_different_sigma_have_different_names() -> None:
    sigmas = (12.0, 12.0000001, 1e5, 2e5, 1e6, 1e7)
    rows = [row | {"sigma": sigma} for row in biased_rows()[:1] for sigma in sigmas]
    columns = colormnist_tables.biased_table(rows).columns
    assert columns[1:] == (
        "σ = 12°", "σ = 12.0000001°", "σ = 10⁵°", "σ = 200000°", "σ = 10⁶°", "σ = 10⁷°",
    )  # fmt: skip


def test_headline_compares_the_two() -> None:
    said = colormnist_tables.headline(longtailed_rows())
    assert said.startswith("CECNN 91.5 % against Z2CNN 71.5 %: 20.0 points more")
    alone = [row for row in longtailed_rows() if row["model"] == "cecnn"]
    assert colormnist_tables.headline(alone) == "4 networks trained."


def test_rows_trained_otherwise_have_lines_of_their_own() -> None:
    row = {"model": "cecnn", "augmentation": "none", "weighted": False, "sigma": 0.0}
    row |= {"epochs": 1500, "digits": "MNIST, full", "original": 99.0}
    table = colormnist_tables.biased_table([row, row | {"data_seed": 0, "original": 50.0}])
    assert list(table.rows) == [
        ("CECNN", "99.00"), ("CECNN (data drawn for every seed)", "50.00"),
    ]  # fmt: skip
    table = colormnist_tables.longtailed_table([row, row | {"epochs": 1}])
    assert [line[0] for line in table.rows] == ["CECNN (1,500 epochs)", "CECNN (1 epoch)"]


# --- hue curves -------------------------------------------------------------------------------


class ColorReader(nn.Module):
    """Knows the digit of nothing and the colour of everything: class = brightest channel."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return nn.functional.one_hot(images.amax((2, 3)).argmax(1), 30).float()


def test_hue_curve_counts_the_digit_alone(digits: Digits) -> None:
    data = longtailed_colormnist(digits, test_per_class=3)
    # It names zeros in any colour, so it is right for zeros alone, whatever the hue.
    curve = colormnist.hue_curve(ColorReader(), data, per_class=2)
    assert curve.tolist() == pytest.approx([10.0] * 37)


def test_hue_curve_shifts_the_hue(digits: Digits) -> None:
    data = biased_colormnist(0.0, digits, test_size=200)

    class RedReader(nn.Module):
        """Calls red things 0 and others 4."""

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            other = images.amax((2, 3)).argmax(1) != 0
            return nn.functional.one_hot(4 * other.long(), 10).float()

    curve = colormnist.hue_curve(RedReader(), data, per_class=5).tolist()
    # Zeros are red, fours are green. A third of a turn makes fours blue; back, they are red.
    assert [curve[18], curve[30], curve[6]] == pytest.approx([20.0, 10.0, 0.0])


def test_best_known_colours_have_the_most_images(digits: Digits) -> None:
    data = longtailed_colormnist(digits, test_per_class=1)
    best = colormnist.best_known(data)
    assert [index // 3 for index in best] == list(range(10))
    counts = data.class_counts().view(10, 3)
    assert data.class_counts()[best].tolist() == counts.amax(1).tolist()
