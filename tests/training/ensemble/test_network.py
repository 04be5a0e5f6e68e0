"""Stacked networks against the networks they stand for, one by one."""

from typing import Any

import pytest
import torch
from tests.training.ensemble.dropping import drop
from torch import Tensor, nn

from equicolor.models import cecnn, z2cnn
from equicolor.models.z2cnn import Z2CNN
from equicolor.training.ensemble.network import StackedZ2CNN, stack_states

# What a stack must reproduce; small widths that need padding on every kind of layer.
ARCHITECTURES: dict[str, tuple[Any, dict[str, Any]]] = {
    "plain": (z2cnn, {"width": 5}),
    "flat": (cecnn, {"width": 4}),
    "pooled": (cecnn, {"width": 4, "coset_pool": "max"}),
    "averaged": (cecnn, {"width": 4, "coset_pool": "avg"}),
    "two layers": (cecnn, {"width": 5, "ce_layers": 2, "coset_pool": "max"}),
    "four layers": (cecnn, {"width": 5, "ce_layers": 4, "coset_pool": "avg"}),
    "one layer": (cecnn, {"width": 5, "ce_layers": 1, "coset_pool": "max"}),
    "four hues": (cecnn, {"width": 3, "rotations": 4}),
    "hsv": (cecnn, {"width": 3, "rotations": 6, "lifting": "hsv"}),
    "hsv hybrid": (
        cecnn,
        {"width": 3, "rotations": 6, "lifting": "hsv", "ce_layers": 3, "coset_pool": "max"},
    ),
    "wide": (cecnn, {"width": 12}),  # 36 lanes: more than 32
    "three blocks": (cecnn, {"width": 11, "rotations": 12, "lifting": "hsv"}),  # 132 lanes
    "three blocks hybrid": (
        cecnn,
        {"width": 11, "rotations": 12, "lifting": "hsv", "ce_layers": 3, "coset_pool": "avg"},
    ),
}
CLASSES, BATCH = 6, 4


def make(name: str, count: int) -> list[Z2CNN]:
    """Networks without dropout whose batch norms know their features."""
    build, options = ARCHITECTURES[name]
    networks = [build(CLASSES, dropout=0.0, **options) for _ in range(count)]
    for network in networks:
        norms = [module for module in network.modules() if isinstance(module, nn.BatchNorm2d)]
        for norm in norms:
            nn.init.uniform_(norm.weight, 0.5, 1.5)
            nn.init.uniform_(norm.bias, 0.0, 0.5)
            norm.momentum = 1.0
        with torch.no_grad():
            network(make_images(1)[0])
        for norm in norms:
            norm.momentum = 0.1
    return networks


def make_images(count: int) -> Tensor:
    """Images for every network, each of its own brightness and contrast."""
    contrast, brightness = torch.rand(2, count, BATCH, 3, 1, 1)
    return brightness + contrast * torch.rand(count, BATCH, 3, 28, 28)


def cases(*names: str) -> pytest.MarkDecorator:
    """The plainest stack and the fullest of each architecture; of one all that lies between."""
    corners = [(name, *corner) for name in names for corner in ((1, False), (2, True))]
    return pytest.mark.parametrize(
        ("name", "count", "pad"), [*corners, ("flat", 1, True), ("flat", 2, False)]
    )


@cases(*ARCHITECTURES)
def test_eval_logits(name: str, count: int, pad: bool, relative_error) -> None:
    networks = [network.eval() for network in make(name, count)]
    images = make_images(count)
    stacked = StackedZ2CNN.like(networks[0], pad=pad)
    with torch.no_grad():
        found = stacked.logits(stack_states(networks), images)
        expected = torch.stack([n(x) for n, x in zip(networks, images, strict=True)])
    assert found.shape == (count, BATCH, CLASSES)
    assert expected.std(1).min() > 1e-3  # alive: the logits depend on the image
    assert relative_error(found, expected) < 1e-5


# With seven layers of so many units, a draw without a kink is rare; three layers pad alike.
@pytest.mark.slow
@cases(*(name for name in ARCHITECTURES if name != "three blocks"))
def test_training_logits_statistics_and_gradients(
    name: str, count: int, pad: bool, relative_error
) -> None:
    # Rounding now and then moves a unit over the kink of its ReLU, and its gradient with it; a
    # draw in which that does not happen is soon found, unless something is wrong.
    worst = []
    for _ in range(40):
        worst.append(gradient_error(make(name, count), pad, relative_error))
        if worst[-1] < 2e-3:
            break
    assert min(worst) < 2e-3, worst


def gradient_error(networks: list[Z2CNN], pad: bool, relative_error) -> float:
    """Compare a training step; the largest relative error among the gradients."""
    count = len(networks)
    images, slope = make_images(count), torch.randn(count, BATCH, CLASSES)
    trained = [key for key, _ in networks[0].named_parameters()]
    state = stack_states(networks)
    state = {key: value.requires_grad_(key in trained) for key, value in state.items()}

    found = StackedZ2CNN.like(networks[0], pad=pad).logits(state, images, training=True)
    (found * slope).sum().backward()
    expected = torch.stack([n.train()(x) for n, x in zip(networks, images, strict=True)])
    (expected * slope).sum().backward()

    assert relative_error(found, expected) < 1e-4
    after = stack_states(networks)
    for key in state:
        if "running" in key:
            assert relative_error(state[key], after[key]) < 1e-5, key
    gradients = {
        key: torch.stack([dict(n.named_parameters())[key].grad for n in networks])
        for key in trained
    }
    largest = max(float(gradient.norm()) for gradient in gradients.values())
    errors = []
    for key, gradient in gradients.items():
        mine = state[key].grad
        if mine is None:
            # The bias in front of a batch norm: its gradient is rounding, and is left out.
            assert key.endswith(".0.bias")
            mine = torch.zeros_like(gradient)
        scale = max(float(gradient.norm()), 0.01 * largest)
        errors.append(float((mine - gradient).norm()) / scale)
    return max(errors)


@cases("plain", "flat", "two layers", "hsv")
def test_dropout_drops_whole_channels(name: str, count: int, pad: bool, relative_error) -> None:
    networks = [network.train() for network in make(name, count)]
    width = networks[0].config["width"]
    factors = (torch.rand(4, BATCH, count, width) > 0.3).float() / 0.7
    images = make_images(count)
    stacked = StackedZ2CNN.like(networks[0], pad=pad)
    state = stack_states(networks)
    found = stacked.logits(state, images, training=True, dropout=factors)
    for index, network in enumerate(networks):
        drop(network, factors[:, :, index])
    expected = torch.stack([n(x) for n, x in zip(networks, images, strict=True)])
    assert relative_error(found, expected) < 1e-3  # a channel dropped wrongly changes a tenth


def test_padding_lanes_stay_out_of_the_result(relative_error) -> None:
    # Lanes beyond the channels see a shift of zero; anything else would leak into the sums.
    networks = make("wide", 2)
    images = make_images(2)
    plain, padded = (
        StackedZ2CNN.like(networks[0], pad=pad).logits(
            stack_states(networks), images, training=True
        )
        for pad in (False, True)
    )
    assert relative_error(padded, plain) < 1e-5


@cases("flat")
def test_bfloat16_convolutions_are_close(name, count, pad, relative_error) -> None:
    networks = [network.eval() for network in make(name, count)]
    images = make_images(count)
    stacked = StackedZ2CNN.like(networks[0], dtype=torch.bfloat16, pad=pad)
    with torch.no_grad():
        found = stacked.logits(stack_states(networks), images)
        expected = torch.stack([n(x) for n, x in zip(networks, images, strict=True)])
    assert found.dtype == torch.float32
    assert relative_error(found, expected) < 0.05


def test_networks_do_not_see_each_other() -> None:
    networks = make("flat", 3)
    images = make_images(3)
    stacked, state = StackedZ2CNN.like(networks[0]), stack_states(networks)
    before = stacked.logits(state, images)
    state["blocks.1.0.weight"][2] += 1
    images[2] = 0
    after = stacked.logits(state, images)
    assert torch.equal(before[:2], after[:2])
    assert not torch.allclose(before[2], after[2])


def test_stacked_states_have_a_network_dimension() -> None:
    networks = make("flat", 2)
    state = stack_states(networks)
    assert list(state) == list(networks[0].state_dict())
    for key, value in networks[1].state_dict().items():
        assert torch.equal(state[key][1], value)


def test_turns_are_refused():
    network = cecnn(10, rotations=3, width=2, coset_pool="max", spatial="p4")
    with pytest.raises(ValueError, match="spatial='p4' cannot be trained as one"):
        StackedZ2CNN.like(network)
