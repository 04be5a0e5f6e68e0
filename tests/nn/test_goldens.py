"""The layers against tensors computed by the paper authors' released code."""

import json
import os
from pathlib import Path

import pytest
import torch

from equicolor.nn import CEConv2d, CELiftConv2d

GOLDEN = Path(os.environ.get("EQUICOLOR_GOLDEN", "")) / "layers.json"
AVAILABLE = "EQUICOLOR_GOLDEN" in os.environ and GOLDEN.is_file()
CASES = json.loads(GOLDEN.read_text()) if AVAILABLE else []
LIFTS = [case for case in CASES if case["in_rotations"] == 1]
HIDDEN = [case for case in CASES if case["in_rotations"] > 1]

pytestmark = pytest.mark.skipif(
    not AVAILABLE, reason="EQUICOLOR_GOLDEN names no folder with layers.json"
)

each_lift = pytest.mark.parametrize("case", LIFTS, ids=lambda case: case["name"])
each_hidden = pytest.mark.parametrize("case", HIDDEN, ids=lambda case: case["name"])


@pytest.fixture(scope="module")
def tensors():
    safetensors = pytest.importorskip("safetensors.torch")
    return safetensors.load_file(GOLDEN.with_suffix(".safetensors"))


@pytest.fixture
def check(tensors, tolerance, relative_error):
    """Load a case into a layer and compare its output and every gradient."""

    def compare(case, layer, allowed=()):
        golden = {
            key.removeprefix(f"{case['name']}/"): value
            for key, value in tensors.items()
            if key.startswith(f"{case['name']}/")
        }
        state = {
            key.removeprefix("param/"): value
            for key, value in golden.items()
            if key.startswith("param/") and key.removeprefix("param/") not in allowed
        }
        layer.load_state_dict(state, strict=True)
        x = golden["x"].clone().requires_grad_()
        y = layer(x)
        y.backward(golden["grad_y"])
        bound = tolerance[torch.float32]
        assert relative_error(y, golden["y"]) <= bound
        assert relative_error(x.grad, golden["grad_x"]) <= bound
        gradients = {key for key in golden if key.startswith("grad/")}
        trained = {name for name, _ in layer.named_parameters()} - {"transformation_matrix"}
        assert gradients == {f"grad/{name}" for name in trained}
        for name in trained:
            gradient = layer.get_parameter(name).grad
            assert relative_error(gradient, golden[f"grad/{name}"]) <= bound, name

    return compare


def arguments(case):
    names = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "bias")
    return {name: case[name] for name in names} | {"rotations": case["out_rotations"]}


def test_every_case_is_a_layer_we_know():
    assert len(LIFTS) >= 4
    assert len(HIDDEN) >= 8
    assert all(case["in_rotations"] == case["out_rotations"] for case in HIDDEN)


@each_lift
def test_lifting(case, check):
    # The authors store the rotation as a parameter; ours is derived from the number of rotations.
    check(case, CELiftConv2d(**arguments(case)), allowed={"transformation_matrix"})


@each_lift
def test_learnable_lifting(case, check):
    check(case, CELiftConv2d(**arguments(case), learnable=True))


@each_lift
def test_rotation_matrix(case, tensors):
    stored = tensors[f"{case['name']}/param/transformation_matrix"]
    layer = CELiftConv2d(**arguments(case), learnable=True)
    assert (layer.transformation_matrix - stored).abs().max() < 1e-6


@pytest.mark.parametrize("algorithm", ["dense", "cyclic", "auto"])
@each_hidden
def test_hidden(case, algorithm, check):
    layer = CEConv2d(**arguments(case), separable=case["separable"], algorithm=algorithm)
    check(case, layer)
