"""The stateless random numbers: uniform, independent, and always the same."""

import itertools

import pytest
import torch

from equicolor._random import permutation, uniform

SEEDS = torch.arange(8)


def test_numbers_are_pinned() -> None:
    # Checkpoints and published results depend on these: they must never change.
    found = uniform(torch.tensor([0, 967]), 1, 3, 3)
    expected = torch.tensor(
        [[0.7031832933, 0.9255216122, 0.8133571744], [0.7364538908, 0.6643656492, 0.8857192397]]
    )
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-8)
    assert permutation(torch.tensor([5]), 0, 2, 6).tolist() == [[3, 5, 4, 2, 1, 0]]


def test_range_and_dtype() -> None:
    numbers = uniform(SEEDS, 0, 0, 100_000)
    assert numbers.dtype == torch.float32
    assert numbers.min() >= 0
    assert numbers.max() < 1


def test_moments_and_histogram_are_uniform() -> None:
    numbers = uniform(SEEDS, 2, 17, 50_000).double()
    # Standard errors of 50,000 numbers: 0.0013 for the mean, 0.0003 for the variance.
    assert (numbers.mean(1) - 0.5).abs().max() < 0.006
    assert (numbers.var(1) - 1 / 12).abs().max() < 0.0015
    for row in numbers:
        counts = torch.histc(row, 20, 0, 1)
        chi_squared = float(((counts - 2500) ** 2 / 2500).sum())
        assert chi_squared < 45  # 19 degrees of freedom: 1 in 1,500


@pytest.mark.parametrize("lag", [1, 2, 7, 26])
def test_neighbours_in_a_row_are_independent(lag: int) -> None:
    row = uniform(SEEDS[:1], 0, 0, 100_000)[0].double() - 0.5
    correlation = float((row[:-lag] * row[lag:]).mean() * 12)
    assert abs(correlation) < 0.015


def test_seeds_streams_and_steps_are_independent() -> None:
    keys = itertools.product(range(3), range(3), range(3))
    rows = torch.cat(
        [uniform(torch.tensor([seed]), stream, step, 20_000) for seed, stream, step in keys]
    ).double()
    correlation = torch.corrcoef(rows) - torch.eye(len(rows))
    assert correlation.abs().max() < 0.035  # standard error 0.007, 351 pairs


def test_a_row_does_not_depend_on_its_neighbours_or_its_length() -> None:
    together, alone = uniform(SEEDS, 1, 9, 50), uniform(SEEDS[3:4], 1, 9, 20)
    assert torch.equal(together[3:4, :20], alone)


def test_a_step_may_be_a_tensor() -> None:
    for step in (41, 2**40):
        assert torch.equal(uniform(SEEDS, 0, torch.tensor(step), 5), uniform(SEEDS, 0, step, 5))


def test_global_seed_is_neither_used_nor_changed() -> None:
    torch.manual_seed(1)
    first = uniform(SEEDS, 0, 0, 5)
    expected = torch.rand(3)
    torch.manual_seed(1)
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(uniform(SEEDS, 0, 0, 5), first)


def test_permutations_are_permutations_and_differ() -> None:
    first, second = (permutation(SEEDS, 0, step, 1514) for step in (0, 1))
    everything = torch.arange(1514).expand(8, -1)
    assert torch.equal(first.sort(1).values, everything)
    for other in (second, first.roll(1, 0)):
        # Two random orders agree in one place on average.
        assert (first == other).sum(1).max() < 10


def test_permutations_are_fair() -> None:
    orders = permutation(torch.arange(6000), 0, 0, 3)
    codes = orders @ torch.tensor([9, 3, 1])
    counts = torch.unique(codes, return_counts=True)[1]
    assert len(counts) == 6
    assert (counts - 1000).abs().max() < 120  # standard error 29


@pytest.mark.slow
def test_rows_are_not_windows_of_one_sequence() -> None:
    # As many rows as a short training draws: shifted copies of each other would share pairs.
    rows, size = 3_000, 2_000
    numbers = uniform(torch.zeros(rows, dtype=torch.int64), 2, torch.arange(rows), size)
    levels = (numbers.double() * 2**24).long()
    pairs = (levels[:, :-1] << 24) + levels[:, 1:]
    # Equal pairs are neighbours when sorted, which is quicker than `unique`.
    assert (pairs.flatten().sort().values.diff() == 0).sum() < 10  # a twentieth of one is expected
