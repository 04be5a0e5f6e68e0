"""Coset-pooled networks do not see hue shifts of their group; flattened ones do (float64)."""

import pytest
import torch

from equicolor.models import cecnn, resnet18, resnet44
from equicolor.nn import set_algorithm
from equicolor.testing import equivariance_error

# Layers and small networks are tested with every group and both liftings (tests/nn).
GROUPS = [(3, "rgb"), (4, "hsv"), (6, "rgb"), (12, "hsv")]
# Builders with options, each at a size that runs in a fraction of a second.
POOLED = {
    "cecnn": (cecnn, {"width": 3, "coset_pool": "max"}),
    "cecnn avg": (cecnn, {"width": 3, "coset_pool": "avg"}),
    "cecnn hybrid": (cecnn, {"width": 3, "ce_layers": 3, "coset_pool": "max"}),
    "resnet18": (resnet18, {"width": 3}),
    "resnet18 hybrid": (resnet18, {"width": 3, "ce_stages": 2, "coset_pool": "avg"}),
    "resnet18 full filters": (resnet18, {"width": 2, "separable": False}),
    "resnet44": (resnet44, {"width": 2}),
    "resnet44 hybrid": (resnet44, {"width": 2, "ce_stages": 1}),
}


@pytest.fixture
def error(settle, blotches):
    """The relative change of the logits under the worst shift of the group."""

    def measure(build, options, *, rotations, lifting, action=None, algorithm="auto"):
        network = build(5, rotations=rotations, lifting=lifting, **options).double()
        set_algorithm(network, algorithm)
        images = blotches(2, {cecnn: 28, resnet18: 32, resnet44: 12}[build], torch.float64)
        settle(network, images)
        return equivariance_error(network, images, rotations, action or lifting)

    return measure


@pytest.mark.parametrize(
    ("name", "rotations", "lifting"),
    [
        *((name, *group) for name in POOLED for group in GROUPS[:2]),
        *(
            pytest.param(name, *group, marks=pytest.mark.slow)
            for name in ("cecnn", "resnet18", "resnet44")
            for group in GROUPS[2:]
        ),
    ],
)
def test_pooled_networks_are_invariant(name, rotations, lifting, error):
    build, options = POOLED[name]
    assert error(build, options, rotations=rotations, lifting=lifting) <= 1e-8


@pytest.mark.parametrize("algorithm", ["dense", "cyclic"])
def test_whatever_the_algorithm(algorithm, error):
    options = {"width": 3, "coset_pool": "max"}
    assert error(cecnn, options, rotations=6, lifting="hsv", algorithm=algorithm) <= 1e-8


@pytest.mark.parametrize(("rotations", "lifting"), [(3, "rgb"), (4, "rgb"), (6, "hsv")])
@pytest.mark.parametrize("build", [cecnn, resnet18, resnet44])
def test_flattened_networks_change(build, rotations, lifting, error):
    options = {"width": 2, "coset_pool": None}
    assert error(build, options, rotations=rotations, lifting=lifting) > 1e-3


@pytest.mark.parametrize("build", [cecnn, resnet18])
def test_the_other_action_changes_them(build, error):
    options = {"width": 3, "coset_pool": "max"}
    for lifting, other in (("rgb", "hsv"), ("hsv", "rgb")):
        assert error(build, options, rotations=4, lifting=lifting, action=other) > 1e-3
        # At 120 degrees the two actions are one.
        assert error(build, options, rotations=3, lifting=lifting, action=other) <= 1e-8
