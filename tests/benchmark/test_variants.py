"""What makes variants of a network, and how the fused one is told from the others."""

import pytest
import torch

from equicolor.benchmark.cases import Case, Settings
from equicolor.benchmark.measure import measure
from equicolor.benchmark.resources import count_operations
from equicolor.benchmark.variants import apply_variant, check_variants, takes_fused_path
from equicolor.models import ce_resnet18
from equicolor.models.resnet import Architecture, Block, ResNet
from equicolor.nn import CEConv2d, CELiftConv2d, _fused
from equicolor.nn._fused import blocks, conditions
from equicolor.nn.observed import counting

CPU = torch.device("cpu")
IMAGES = torch.rand(2, 3, 32, 32)


@pytest.fixture
def pretend(monkeypatch):
    """Fused layers on a CPU, computed the ordinary way; counts the blocks that take it."""
    taken = []

    def applies(block, x):
        if x.device.type not in conditions.DEVICES:
            return False
        modules = [module for module in block.modules() if isinstance(module, CEConv2d)]
        hooked = any(module._forward_hooks for module in modules)
        watched = torch._C._len_torch_dispatch_stack() > 0
        return bool(modules) and modules[0].algorithm != "dense" and not hooked and not watched

    def stem_applies(images, conv, *rest):
        return False

    def block_of(x, layers, shortcut=None):
        taken.append(1)
        y = x
        for index, (conv, norm) in enumerate(layers):
            y = norm(conv(y))
            y = y.relu() if index + 1 < len(layers) else y
        for module in shortcut or ():
            x = module(x)
        return (y + x).relu()

    monkeypatch.setattr(conditions, "DEVICES", ("cpu",))
    monkeypatch.setattr(_fused, "applies", applies)
    monkeypatch.setattr(_fused, "stem_applies", stem_applies)
    monkeypatch.setattr(blocks, "block_of", block_of)
    return taken


def case(variant):
    return Case(
        lambda: ce_resnet18(5, width=4),
        (2, 3, 32, 32),
        "training",
        variant,
        classes=5,
        facts={"model": "ce_resnet18", "rotations": 3},
    )


@pytest.mark.parametrize(
    ("variant", "algorithm"),
    [("auto", "auto"), ("fused", "cyclic"), ("dense", "dense"), ("cyclic", "cyclic")],
)
def test_variants_reach_every_layer_and_change_no_numbers(variant, algorithm):
    network = ce_resnet18(5, width=4).eval()
    expected = network(IMAGES)
    apply_variant(network, variant)
    layers = [module for module in network.modules() if isinstance(module, CEConv2d)]
    assert {layer.algorithm for layer in layers} == {algorithm}
    assert len(layers) == 19
    torch.testing.assert_close(network(IMAGES), expected, rtol=1e-3, atol=1e-4)


def test_unknown_variant():
    with pytest.raises(ValueError, match="variant must be one of"):
        apply_variant(ce_resnet18(5, width=4), "fast")


@pytest.mark.parametrize(
    ("variant", "taken"), [("auto", True), ("fused", True), ("cyclic", False), ("dense", False)]
)
def test_which_variants_are_fused(variant, taken, pretend):
    network = apply_variant(ce_resnet18(5, width=4), variant)
    original = blocks.block_of
    assert takes_fused_path(lambda: network(IMAGES)) is taken
    assert blocks.block_of is original
    assert bool(pretend) is taken
    # the first layers have the same say: they are fused unless they are looked into
    (first,) = (module for module in network.modules() if isinstance(module, CELiftConv2d))
    assert bool(first._forward_hooks) is not taken


def test_rows_say_what_was_fused(pretend):
    settings = Settings(CPU, repeats=1, warm_up=0, shortest_ms=0)
    group = [case(variant) for variant in ("auto", "fused", "dense", "cyclic")]
    rows = {row["variant"]: row for row in measure(group, settings, peak_tflops=1.0)}
    assert [row["fused"] for row in rows.values()] == [True, True, False, False]
    assert rows["dense"]["gflop"] > 1.5 * rows["cyclic"]["gflop"]


@pytest.mark.parametrize("mode", ["training", "folded"])
def test_the_real_fused_path(mode, monkeypatch):
    pytest.importorskip(
        "triton", reason="Triton is not installed; it comes with torch's CUDA builds"
    )
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")  # or its interpreter
    monkeypatch.setattr(conditions, "DEVICES", (device.type,))

    def build():
        return ResNet(
            Architecture((1,), False, 4, True, 5),
            5,
            stage_widths=[4],
            rotations=3,
            ce_stages=1,
            separable=True,
            coset_pool="max",
            lifting="rgb",
            normalize=True,
        )

    group = [
        Case(build, (2, 3, 6, 6), mode, variant, classes=5, facts={"model": "small"})
        for variant in ("fused", "cyclic")
    ]
    settings = Settings(device, repeats=1, warm_up=0, shortest_ms=0)
    own, cyclic = measure(group, settings, peak_tflops=1.0)
    assert [row["fused"] for row in (own, cyclic)] == [True, False]
    assert own["gflop"] > 2 * cyclic["gflop"]  # it pads four channels to sixteen


def test_operations_are_those_of_the_convolutions_that_run(monkeypatch):
    """With padded channels, and one convolution for the two modes of a frequency."""
    pytest.importorskip("triton", reason="Triton is not installed; it comes with torch's CUDA")
    monkeypatch.setattr(conditions, "DEVICES", ("cpu",))
    block = Block(5, 5, 1, bottleneck=False, rotations=3, separable=True).eval()
    x = torch.rand(2, 5, 3, 4, 4)

    def step():
        with torch.no_grad():
            block(x)

    step()  # the first call computes the stages of the mixing, which are kept
    with counting():
        executed = count_operations(step)
    pixels, taps, layers = 2 * 4 * 4, 9, 2
    channels = 16 * 16 + 32 * 32
    filters = 2 * 5 * 3 * 5 * 5  # mixing them is a matrix product: [5, n] by [n, O * C]
    assert executed == layers * (2 * pixels * taps * channels + filters)
    assert count_operations(step) != executed  # who watches sees ordinary operations


def test_fused_is_not_compiled_and_auto_then_is_not_fused(pretend, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda module, dynamic, mode: module)
    settings = Settings(CPU, compile=True, repeats=1, warm_up=0, shortest_ms=0)
    auto, own = measure([case("auto"), case("fused")], settings, peak_tflops=1.0)
    assert (auto["compiled"], auto["fused"]) == (True, False)
    assert (own["compiled"], own["fused"], own["recorded"]) == (False, True, False)


def test_fused_that_is_not_says_so(capfd):
    settings = Settings(CPU, repeats=1, warm_up=0, shortest_ms=0)
    (row,) = measure([case("fused")], settings, peak_tflops=1.0)
    assert "the fused path was not taken" in row["problem"]


def test_fused_is_for_gpus():
    check_variants(("auto", "dense"), CPU)
    check_variants(("fused",), torch.device("cuda"))
    with pytest.raises(ValueError, match="variant 'fused' needs a device of kind cuda, got cpu"):
        check_variants(("fused",), CPU)
