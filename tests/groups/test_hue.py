import dataclasses

import pytest
import torch

from equicolor import HueGroup
from equicolor.color import rotate_hue, rotation_matrix

ORDERS = [1, 2, 3, 4, 5, 6, 8, 12]
EXACT = 1e-14


@pytest.mark.parametrize("n", ORDERS)
def test_matrices_form_the_cyclic_group(n):
    group = HueGroup(n)
    for j in range(n):
        for k in range(n):
            product = group.matrix(j) @ group.matrix(k)
            assert (product - group.matrix(j + k)).abs().max() < EXACT
        assert (group.matrix(j).T - group.matrix(-j)).abs().max() < EXACT


@pytest.mark.parametrize("n", ORDERS)
def test_matrices_are_rotations_about_the_grey_axis(n):
    group = HueGroup(n)
    grey = torch.ones(3, dtype=torch.float64)
    for matrix in group.matrices:
        assert (matrix @ matrix.T - torch.eye(3, dtype=torch.float64)).abs().max() < EXACT
        assert torch.linalg.det(matrix).item() == pytest.approx(1, abs=EXACT)
        assert (matrix @ grey - grey).abs().max() < EXACT


@pytest.mark.parametrize("n", ORDERS)
def test_elements_are_distinct(n):
    matrices = HueGroup(n).matrices
    assert matrices.shape == (n, 3, 3)
    distances = torch.cdist(matrices.flatten(1), matrices.flatten(1))
    assert (distances + torch.eye(n) > 0.1).all()


def test_a_third_of_a_turn_is_exactly_the_channel_roll():
    roll = torch.tensor([[0, 0, 1], [1, 0, 0], [0, 1, 0]], dtype=torch.float64)
    assert torch.equal(HueGroup(3).matrix(1), roll)
    assert torch.equal(HueGroup(3).matrix(2), roll.T)
    assert torch.equal(HueGroup(12).matrix(4), roll)


def test_matrices_hold_the_formula_of_the_paper():
    # Half a turn: a = 2/3, b = 0, so 2/3 off the diagonal and -1/3 on it.
    half = HueGroup(2).matrix(1)
    expected = torch.full((3, 3), 2 / 3, dtype=torch.float64) - torch.eye(3, dtype=torch.float64)
    assert (half - expected).abs().max() < EXACT


def test_matrices_are_float64_on_the_cpu_under_any_default_device():
    with torch.device("meta"):
        matrices = HueGroup(4).matrices
    assert (matrices.device.type, matrices.dtype) == ("cpu", torch.float64)
    assert torch.equal(matrices, HueGroup(4).matrices)


@pytest.mark.parametrize("k", [-7, -1, 5, 12])
def test_elements_are_taken_modulo_the_order(k):
    assert torch.equal(HueGroup(5).matrix(k), HueGroup(5).matrix(k % 5))


@pytest.mark.parametrize("n", [2, 3, 5, 12])
def test_matrices_agree_with_rotate_hue(n):
    images = torch.rand(2, 3, 4, 5, dtype=torch.float64)
    for k, matrix in enumerate(HueGroup(n).matrices):
        expected = torch.einsum("ij,bjhw->bihw", matrix, images)
        assert (rotate_hue(images, k / n) - expected).abs().max() < EXACT


def test_rotation_matrix_keeps_leading_dimensions():
    turns = torch.rand(2, 5, dtype=torch.float64)
    matrices = rotation_matrix(turns)
    assert matrices.shape == (2, 5, 3, 3)
    assert torch.equal(matrices[1, 3], rotation_matrix(turns[1, 3]))


def test_group_is_a_value():
    assert HueGroup(3) == HueGroup(order=3) != HueGroup(4)
    assert hash(HueGroup(3)) == hash(HueGroup(3))
    assert repr(HueGroup(3)) == "HueGroup(order=3)"
    with pytest.raises(dataclasses.FrozenInstanceError):
        HueGroup(3).order = 4
