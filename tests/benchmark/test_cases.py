"""Cases, and the steps they become."""

import copy

import pytest
import torch
from torch import nn

from equicolor.benchmark import steps
from equicolor.benchmark.cases import Case, Settings, chosen_from
from equicolor.benchmark.steps import called, is_recorded, prepare
from equicolor.models import ce_resnet18
from equicolor.nn import CEConv2d, fold

CPU = torch.device("cpu")


class Spy(nn.Module):
    """Keeps what it was called with and what it returned."""

    def __init__(self, module):
        super().__init__()
        self.module, self.seen = module, []

    def forward(self, x):
        y = self.module(x)
        self.seen.append((x, y))
        return y


def network_case(built, mode, **facts):
    return Case(lambda: built, (2, 3, 32, 32), mode, "cyclic", classes=5, facts=facts)


def test_bad_cases_and_settings():
    def build():
        return nn.Conv2d(3, 4, 3)

    with pytest.raises(ValueError, match="mode must be one of"):
        Case(build, (2, 3, 8, 8), "backward")
    with pytest.raises(ValueError, match="variant must be one of"):
        Case(build, (2, 3, 8, 8), variant="quadratic")
    with pytest.raises(ValueError, match="only networks are folded"):
        Case(build, (2, 3, 8, 8), "folded")
    with pytest.raises(ValueError, match="precision must be one of 'fp32', 'bf16'; got 'fp16'"):
        Settings(CPU, precision="fp16")
    with pytest.raises(ValueError, match="repeats must be at least 1"):
        Settings(CPU, repeats=0)


def test_choices_keep_the_known_order():
    assert chosen_from("modes", None, ("a", "b")) == ("a", "b")
    assert chosen_from("modes", ["b", "a", "b"], ("a", "b", "c")) == ("a", "b")
    with pytest.raises(ValueError, match="modes must be one of 'a', 'b'; got 'x'"):
        chosen_from("modes", ["a", "x"], ("a", "b"))
    with pytest.raises(ValueError, match="at least one of a, b"):
        chosen_from("modes", [], ("a", "b"))


def test_training_a_network_updates_it_and_leaves_no_gradients():
    network = ce_resnet18(5, width=4)
    before = copy.deepcopy(network.state_dict())
    ready = prepare(network_case(network, "training"), Settings(CPU))
    assert network.training
    ready.step()
    changed = [
        name for name, value in network.state_dict().items() if (value != before[name]).any()
    ]
    assert "conv1.weight" in changed
    assert "linear.bias" in changed
    assert all(parameter.grad is None for parameter in network.parameters())
    # weights and both moments of Adam, its step counts, statistics, constants, images, labels
    weights = sum(parameter.numel() for parameter in network.parameters())
    assert ready.resident() > 4 * (3 * weights + 2 * 3 * 32 * 32)
    assert ready.resident() < 4 * (3 * weights + 2 * 3 * 32 * 32) * 1.2


@pytest.mark.parametrize("mode", ["forward", "folded"])
def test_inference_changes_nothing(mode):
    network = ce_resnet18(5, width=4)
    before = copy.deepcopy(network.state_dict())
    ready = prepare(network_case(network, mode), Settings(CPU))
    ready.step()
    assert not network.training
    assert all((value == before[name]).all() for name, value in network.state_dict().items())


def test_folded_is_folded_in_the_form_of_the_variant(monkeypatch):
    forms = []
    monkeypatch.setattr(
        steps, "fold", lambda module, form: forms.append(form) or fold(module, form)
    )
    prepare(network_case(ce_resnet18(5, width=4), "folded"), Settings(CPU))
    case = Case(lambda: ce_resnet18(5, width=4), (2, 3, 32, 32), "folded", "auto", classes=5)
    prepare(case, Settings(CPU)).step()
    assert forms == ["cyclic", "auto"]


def test_a_layer_gets_gradients_of_everything_and_keeps_none(monkeypatch):
    layer = CEConv2d(4, 4, 3, rotations=3)
    spy = Spy(layer)
    ready = prepare(Case(lambda: spy, (2, 4, 3, 8, 8), "training", "dense"), Settings(CPU))
    gathered = []
    for parameter in layer.parameters():
        parameter.register_hook(lambda gradient: gathered.append(gradient.shape))
    ready.step()
    assert len(gathered) == 3
    ((x, y),) = spy.seen
    assert x.requires_grad
    assert x.shape == (2, 4, 3, 8, 8)
    assert x.permute(2, 0, 3, 4, 1).is_contiguous()  # as the layers keep features
    assert x.grad is None
    assert layer.weight.grad is None
    assert y.dtype == torch.float32


def test_bf16_is_autocast():
    spy = Spy(nn.Conv2d(3, 4, 3))
    ready = prepare(Case(lambda: spy, (2, 3, 8, 8)), Settings(CPU, precision="bf16"))
    ready.step()
    ((x, y),) = spy.seen
    assert (x.dtype, y.dtype) == (torch.float32, torch.bfloat16)
    assert not y.requires_grad
    assert x.is_contiguous(memory_format=torch.channels_last)
    assert spy.module.weight.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("device", "recorded", "mode"),
    [("cuda", True, "reduce-overhead"), ("cuda", False, "default"), ("cpu", True, "default")],
)
def test_plain_networks_are_recorded_by_torch_on_a_gpu(device, recorded, mode, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda module, **options: options["mode"])
    settings = Settings(torch.device(device), compile=True)
    assert called(nn.Identity(), "plain", settings, recorded=recorded) == mode
    assert is_recorded("plain", settings, recorded) == (mode != "default")


def test_compiled_is_timed_and_eager_is_counted(monkeypatch):
    compiled = []

    def compile_(module, dynamic, mode):
        assert (dynamic, mode) == (False, "default")
        return lambda x: compiled.append(1) or module(x)

    monkeypatch.setattr(torch, "compile", compile_)
    ready = prepare(Case(lambda: nn.Conv2d(3, 4, 3), (2, 3, 8, 8)), Settings(CPU, compile=True))
    ready.eager()
    assert not compiled
    ready.step()
    assert compiled


def test_every_case_is_the_same_every_time():
    rng = torch.get_rng_state()

    def weights():
        spy = []
        case = Case(lambda: spy.append(nn.Conv2d(3, 4, 3)) or spy[0], (2, 3, 8, 8))
        prepare(case, Settings(CPU))
        return spy[0].weight

    assert torch.equal(weights(), weights())
    assert torch.equal(torch.get_rng_state(), rng)  # and the caller's numbers are left alone
