"""The networks against logits and checkpoint layouts of the paper authors' released code."""

import json
import math
import os
from pathlib import Path

import pytest
import torch

from equicolor import HueGroup
from equicolor.models import cecnn, load_reference, resnet18, resnet44, resnet50, z2cnn

GOLDEN = Path(os.environ.get("EQUICOLOR_GOLDEN", ""))
KEYS = GOLDEN / "published_checkpoint_keys.json"
AVAILABLE = "EQUICOLOR_GOLDEN" in os.environ and KEYS.is_file()
PUBLISHED = json.loads(KEYS.read_text()) if AVAILABLE else {}
MATRIX = "conv1.transformation_matrix"

pytestmark = pytest.mark.skipif(
    not AVAILABLE, reason="EQUICOLOR_GOLDEN names no folder with published_checkpoint_keys.json"
)

NETWORKS = {
    "cnn": lambda: z2cnn(10, width=6),
    "cecnn": lambda: cecnn(30, width=5, rotations=3),
    "cecnn_cosetpool": lambda: cecnn(10, width=5, rotations=3, coset_pool="max"),
    "cecnn_hybrid4": lambda: cecnn(10, width=5, rotations=3, ce_layers=4, coset_pool="max"),
    "ce_resnet18_w8": lambda: resnet18(10, rotations=3, width=[6, 13, 27, 55], normalize=False),
    "ce_resnet44_w8": lambda: resnet44(10, rotations=3, width=[6, 13, 27], normalize=False),
    "hybrid2_resnet18_w8": lambda: resnet18(10, rotations=3, ce_stages=2, width=8, normalize=False),
    "resnet18_w8": lambda: resnet18(10, width=8, normalize=False),
}
# Width is left to the matching rule throughout: it must give the published widths by itself.
RELEASED = {
    "resnet18 rotations=3 cosetpool separable": lambda: resnet18(rotations=3),
    "resnet18 rotations=3 no-cosetpool separable": lambda: resnet18(rotations=3, coset_pool=None),
    "resnet18 rotations=3 cosetpool non-separable": lambda: resnet18(rotations=3, separable=False),
    "resnet18 rotations=3 hybrid ce_stages=1": lambda: resnet18(rotations=3, ce_stages=1),
    "resnet18 rotations=3 hybrid ce_stages=2": lambda: resnet18(rotations=3, ce_stages=2),
    "resnet18 rotations=3 hybrid ce_stages=3": lambda: resnet18(rotations=3, ce_stages=3),
    "resnet50 rotations=3 width=47 cosetpool separable": lambda: resnet50(rotations=3),
    "resnet44 rotations=3 cosetpool separable num_classes=10": lambda: resnet44(10, rotations=3),
}


@pytest.fixture(scope="module")
def load_golden():
    safetensors = pytest.importorskip("safetensors.torch")

    def load(name):
        tensors = safetensors.load_file(GOLDEN / f"{name}.safetensors")
        state = {
            key.removeprefix("state/"): value
            for key, value in tensors.items()
            if key.startswith("state/")
        }
        return tensors["x"], tensors["y"], state

    return load


@pytest.mark.parametrize("name", NETWORKS)
def test_logits(name, load_golden, relative_error):
    x, y, state = load_golden(name)
    network = load_reference(NETWORKS[name]().eval(), state)
    assert relative_error(network(x), y) <= 1e-4


@pytest.mark.parametrize("name", NETWORKS)
def test_every_golden_tensor_is_used(name, load_golden):
    _, _, state = load_golden(name)
    network = load_reference(NETWORKS[name](), state)
    ours = {network.reference_key(key): value for key, value in network.state_dict().items()}
    theirs = {key: value for key, value in state.items() if not key.endswith(MATRIX[6:])}
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)


def test_every_released_checkpoint_is_known():
    assert PUBLISHED.keys() == RELEASED.keys()


@pytest.mark.parametrize("name", RELEASED)
def test_released_checkpoints_load_strictly(name):
    # Numbers by position, so that a tensor in the wrong place would show.
    state = {
        key: torch.arange(math.prod(shape), dtype=torch.float32).view(shape) + position
        for position, (key, shape) in enumerate(PUBLISHED[name].items())
    }
    state[MATRIX] = HueGroup(3).matrix(1).float()
    network = load_reference(RELEASED[name](), state)
    loaded = network.state_dict()
    assert loaded.keys() | {MATRIX} == state.keys()
    for key, value in loaded.items():
        assert torch.equal(value.float(), state[key]), key


def test_resnet50_base_width_47_is_what_matching_gives():
    name = "resnet50 rotations=3 width=47 cosetpool separable"
    assert RELEASED[name]().config["width"] == [40, 81, 162, 325]
    assert PUBLISHED[name]["conv1.weight"][0] == 40
