"""Whole networks are equivariant to the action they are built for, and to no other."""

import pytest
import torch
from torch import nn

from equicolor.nn import CELiftConv2d, CosetFlatten
from equicolor.testing import equivariance_error

ORDERS = [2, 3, 4, 5, 6, 8, 12]
EXACT = 1e-10

# Each head with the algorithms of the separable and the full layer.
HEADS = {
    "features": ("cyclic", "dense"),
    "max": ("dense", "cyclic"),
    "avg": ("auto", "auto"),
}
each_action = pytest.mark.parametrize("action", ["rgb", "hsv"])
each_head = pytest.mark.parametrize(("head", "algorithms"), HEADS.items(), ids=list(HEADS))
each_mode = pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])


@pytest.fixture
def images():
    return torch.rand(2, 3, 12, 12, dtype=torch.float64)


@pytest.mark.parametrize(
    ("n", "training"),  # the statistics of a batch do not depend on n
    [*((n, False) for n in ORDERS), (2, True), (5, True)],
)
@each_head
@each_action
def test_network_is_exact_for_its_own_action(
    n, action, head, algorithms, training, make_network, images
):
    # Made in float32 and converted: the group constants must not keep the float32 rounding.
    network = make_network(n, action, algorithms=algorithms, head=head).double().train(training)
    assert equivariance_error(network, images, n, action) <= EXACT


@each_mode
@pytest.mark.parametrize("head", ["features", "max"])
@pytest.mark.parametrize(("lifting", "action"), [("rgb", "hsv"), ("hsv", "rgb")])
def test_network_is_not_equivariant_to_the_other_action(
    lifting, action, head, training, make_network, images
):
    network = make_network(5, lifting, head=head).double().train(training)
    assert equivariance_error(network, images, 5, action) > 1e-3


@pytest.mark.parametrize("lifting", ["rgb", "hsv"])
@each_action
def test_both_actions_coincide_for_three_rotations(action, lifting, make_network, images):
    network = make_network(3, lifting).double()
    assert equivariance_error(network, images, 3, action) <= EXACT


def test_both_liftings_coincide_for_three_rotations(images):
    rgb, hsv = (CELiftConv2d(3, 4, 3, lifting=lifting).double() for lifting in ("rgb", "hsv"))
    hsv.load_state_dict(rgb.state_dict())
    assert (rgb(images) - hsv(images)).abs().max() < 1e-14


@each_action
def test_shifting_the_image_rolls_the_rotations_forward(action, images):
    # The direction of the roll is part of the contract, and an error is blind to a wrong pair.
    layer = CELiftConv2d(3, 4, 3, rotations=3, lifting=action).double()
    shifted = layer(images.roll(1, 1))
    assert (shifted - layer(images).roll(1, 2)).abs().max() < 1e-14
    assert (shifted - layer(images).roll(-1, 2)).abs().max() > 1e-2


@each_action
def test_scalar_normalisation_keeps_equivariance(action, make_network, images):
    network = nn.Sequential(make_network(4, action).double())

    def normalised(x):
        return network((x - 0.485) / 0.229)

    assert equivariance_error(normalised, images, 4, action) <= EXACT


def test_channelwise_normalisation_breaks_equivariance(make_network, images):
    network = make_network(3).double()
    std = torch.tensor([0.1, 0.2, 0.4], dtype=torch.float64).view(3, 1, 1)
    assert equivariance_error(lambda x: network(x / std), images) > 1e-3


def test_flattening_the_rotations_breaks_invariance(make_network, images):
    network = nn.Sequential(make_network(4), CosetFlatten()).double()
    assert equivariance_error(network, images, 4) > 1e-3


@each_action
def test_float32_is_equivariant_to_its_own_rounding(action, make_network, images, tolerance):
    network = make_network(12, action)
    bound = 10 * tolerance[torch.float32]
    assert equivariance_error(network, images.float(), 12, action) <= bound
