"""Which networks are compiled before they are recorded."""

import pytest
import torch
from torch import nn

from equicolor.models import ce_resnet18, resnet18
from equicolor.training import recording


@pytest.fixture
def made(monkeypatch):
    """What is compiled and recorded, without compiling or recording it."""
    seen = []

    def compiling(network, *, dynamic):
        assert not dynamic
        seen.append("compiled")
        return nn.Sequential(network)

    def capturing(network, images, dtype):
        seen.append("recorded")
        return lambda images: network(images) + 1

    monkeypatch.setattr(torch, "compile", compiling)
    monkeypatch.setattr(recording, "capture", capturing)
    return seen


@pytest.mark.parametrize(
    ("build", "steps", "expected"),
    [
        (resnet18, recording.COMPILED_STEPS, ["compiled", "recorded"]),
        (resnet18, recording.COMPILED_STEPS - 1, ["recorded"]),
        (ce_resnet18, recording.COMPILED_STEPS, ["recorded"]),
    ],
)
def test_long_trainings_of_plain_networks_are_compiled(build, steps, expected, made):
    network, images = build(5, width=4).train(), torch.rand(2, 3, 32, 32)
    recording.record(network, images, None, steps)
    assert made == expected


def test_other_batches_go_to_the_network(made):
    network, images = nn.Flatten().train(), torch.zeros(2, 3, 4, 4)
    step = recording.record(network, images, None, recording.COMPILED_STEPS)
    assert step(images).eq(1).all()
    assert step(images[:1]).eq(0).all()
    network.eval()
    assert step(images).eq(0).all()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gpu_compiled_trainings_are_those_of_the_network(monkeypatch, relative_error):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # gradients amplify rounding
    network = resnet18(5, width=8).cuda().to(memory_format=torch.channels_last).train()
    state = {name: value.clone() for name, value in network.state_dict().items()}
    images = torch.rand(16, 3, 64, 64, device="cuda")
    step = recording.record(network, images, None, recording.COMPILED_STEPS)
    for name, value in network.state_dict().items():  # warming up left no trace
        assert torch.equal(value, state[name]), name
    parameters, gradients = list(network.parameters()), []
    for call in (step, network):
        each = torch.autograd.grad(call(images).square().sum(), parameters)
        gradients.append(torch.cat([one.double().flatten() for one in each]))
    assert relative_error(*gradients) < 5e-2
