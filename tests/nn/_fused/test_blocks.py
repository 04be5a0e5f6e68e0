"""The fused path against the ordinary one, in Triton's interpreter or on a GPU."""

import contextlib
import copy
import functools

import pytest
import torch
import torch.utils.checkpoint
from torch import nn

from equicolor.groups import SpatialGroup
from equicolor.models.layers import Layers
from equicolor.models.resnet import Block, ResNet
from equicolor.models.widths import Architecture
from equicolor.nn import (
    CEBatchNorm2d,
    CEConv2d,
    CELiftConv2d,
    CEMaxPool2d,
    CosetMaxPool,
    _fused,
    fold,
    set_algorithm,
)
from equicolor.nn._fused import blocks, conditions, functions, layout
from equicolor.nn._fused.functions import convolution_backward
from equicolor.nn._fused.layout import Planes
from equicolor.nn._fused.norm import kernels
from equicolor.training.sync_norm import sync_batch_norm

pytest.importorskip("triton", reason="Triton is not installed; it comes with torch's CUDA builds")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Triton's interpreter cuts numbers to bfloat16 instead of rounding them.
HALF = torch.bfloat16 if DEVICE == "cuda" else torch.float16
TOLERANCE = 1e-4 if DEVICE == "cuda" else 1e-5  # for float32


@pytest.fixture
def ordinary(monkeypatch):
    """Call a function on the ordinary path."""

    def call(function, *arguments):
        with monkeypatch.context() as patch:
            patch.setattr(conditions, "DEVICES", ())
            return function(*arguments)

    return call


# Blocks


def settled(module):
    """Norms that do something in eval mode too."""
    for norm in module.modules():
        if isinstance(norm, nn.BatchNorm2d):
            nn.init.uniform_(norm.weight, 0.5, 1.5)
            nn.init.uniform_(norm.bias, -0.5, 0.5)
            nn.init.uniform_(norm.running_mean, -0.5, 0.5)
            nn.init.uniform_(norm.running_var, 0.5, 1.5)
    return module.to(DEVICE)


def make_block(
    inputs=5, width=5, stride=1, *, bottleneck=False, rotations=3, separable=True, spatial="p1"
):
    layers = Layers(rotations, separable=separable, spatial=spatial)
    return settled(Block(inputs, width, stride, bottleneck=bottleneck, layers=layers))


def step(network, x, dtype=None):
    """Output, all gradients and all statistics of a step; dtype is autocast's."""
    network, x = copy.deepcopy(network), x.detach().clone().requires_grad_(x.ndim == 5)
    with torch.autocast(DEVICE, dtype=dtype, enabled=dtype is not None):
        out = network(x)
    weights = torch.linspace(-1, 1, out.numel(), device=DEVICE).view_as(out)
    (out.to(weights.dtype) * weights).sum().backward()
    gradients = {name: parameter.grad for name, parameter in network.named_parameters()}
    state = {name: buffer for name, buffer in network.named_buffers() if "running" in name}
    return {"output": out, "gradient of features": x.grad, **gradients, **state}


@pytest.fixture
def fused_step(monkeypatch):
    """A step that must take the fused path so many times."""

    def run(network, x, dtype=None, *, calls=1):
        taken = []

        def counted(function):
            def call(*arguments, **options):
                taken.append(function)
                return function(*arguments, **options)

            return call

        with monkeypatch.context() as patch:
            for name in ("residual_block", "stem"):
                patch.setattr(_fused, name, counted(getattr(_fused, name)))
            result = step(network, x, dtype)
        assert len(taken) == calls
        return result

    return run


BLOCKS = {
    "two rotations": {"rotations": 2, "separable": False},
    "three": {"width": 7, "inputs": 7},
    "three, stride": {"inputs": 6, "width": 9, "stride": 2},
    "four, projection alone": {"rotations": 4, "inputs": 3},
    "six": {"rotations": 6, "inputs": 3, "width": 3},
    "bottleneck": {"inputs": 12, "width": 3, "bottleneck": True},
    "bottleneck, stride, full filters": {
        "width": 2,
        "stride": 2,
        "bottleneck": True,
        "separable": False,
    },
    "three, quarter turns, stride": {"width": 3, "spatial": "p4", "stride": 2},
    "two, mirror images": {"inputs": 2, "width": 2, "rotations": 2, "spatial": "p4m"},
    "mirror images alone": {"inputs": 3, "width": 2, "rotations": 1, "spatial": "p4m"},
}


@pytest.fixture
def equals_the_ordinary_one(relative_error, fused_step):
    def check(block, rotations):
        channels = block.conv1.in_channels * SpatialGroup(block.conv1.spatial).order
        x = torch.randn(2, channels, rotations, 5, 4, device=DEVICE)
        expected = step(copy.deepcopy(block).double(), x.double())
        actual = fused_step(block, x)
        for what, value in expected.items():
            assert relative_error(actual[what], value) < TOLERANCE, what

    return check


@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_equals_the_ordinary_one(name, equals_the_ordinary_one):
    equals_the_ordinary_one(make_block(**BLOCKS[name]), BLOCKS[name].get("rotations", 3))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",  # only norms differ from those in training
    ["two rotations", "three, quarter turns, stride"],
)
def test_a_block_equals_the_ordinary_one_in_eval_mode(name, equals_the_ordinary_one):
    block = make_block(**BLOCKS[name]).eval()
    equals_the_ordinary_one(block, BLOCKS[name].get("rotations", 3))


def test_paired_filters_are_rounded_once(relative_error):
    conv = CEConv2d(5, 5, 3, rotations=12, bias=False).to(DEVICE)

    def filters(conv, dtype):
        tensors = blocks.Filters.of(conv, dtype).tensors
        return torch.cat([one.permute(0, 2, 3, 1).flatten() for one in tensors])

    exact = filters(conv, torch.float32)
    half = filters(copy.deepcopy(conv).bfloat16(), torch.bfloat16)
    twice = filters(copy.deepcopy(conv).bfloat16().float(), torch.float32)
    # Filters of the rounded weights, rounded once: a GPU rounds, Triton's interpreter cuts off.
    cut = (twice.view(torch.int32) & -(2**16)).view(torch.float32)
    once = twice.bfloat16() if DEVICE == "cuda" else cut
    assert torch.equal(half.float(), once.float())
    assert relative_error(half, exact) < 2**-7


def test_kernels_are_launched_on_the_device_of_the_filters(monkeypatch):
    """Triton launches on the current device, which need not be theirs."""
    conv, entered = CEConv2d(5, 5, 3, bias=False).to(DEVICE), []

    @contextlib.contextmanager
    def entering(tensor):
        entered.append(tensor)
        yield

    monkeypatch.setattr(kernels("filter_kernels"), "on_device_of", entering)
    sum(one.sum() for one in blocks.Filters.of(conv, torch.float32).tensors).backward()
    assert [tensor is conv.weight for tensor in entered] == [True, True]


def test_a_residual_of_another_shape_is_refused():
    block = make_block(5, 5)
    x = torch.randn(2, 5, 3, 4, 4, device=DEVICE)
    layers = [(block.conv1, block.bn1)]
    wide = CEConv2d(5, 6, 3, padding=1, bias=False).to(DEVICE), CEBatchNorm2d(6).to(DEVICE)
    with pytest.raises(RuntimeError, match=r"features \[2, 6, 3, 4, 4\] and residual \[2, 5"):
        _fused.residual_block(x, [*layers, wide])


def test_one_value_has_no_variance(ordinary):
    layer = CEConv2d(4, 4, 1, rotations=1, bias=False).to(DEVICE), CEBatchNorm2d(4).to(DEVICE)
    x = torch.randn(1, 4, 1, 1, 1, device=DEVICE)
    message = "Expected more than 1 value per channel when training"
    with pytest.raises(ValueError, match=message):
        ordinary(nn.Sequential(*layer), x)
    with pytest.raises(ValueError, match=message):
        _fused.residual_block(x, [layer])
    assert torch.equal(layer[1].running_var.cpu(), torch.ones(4))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("largest", "rotations", "bottleneck"),
    # No layer in pairs; only layers with few inputs.
    [(0, 3, False), (16, 4, False), (16, 3, True)],
)
def test_layers_need_not_be_paired(
    largest, rotations, bottleneck, monkeypatch, equals_the_ordinary_one
):
    monkeypatch.setattr(layout, "_PAIRED_CHANNELS", largest)
    block = make_block(5, 17, 2, bottleneck=bottleneck, rotations=rotations)
    equals_the_ordinary_one(block, rotations)


@pytest.mark.parametrize(
    "options", [{"inputs": 16, "width": 16}, {"inputs": 8, "width": 9, "stride": 2, "rotations": 4}]
)
def test_half_precision_is_as_exact_as_on_the_ordinary_path(options, ordinary, fused_step):
    block = make_block(**options)
    shape = 32 if DEVICE == "cuda" else 2, block.conv1.in_channels, block.conv1.rotations, 8, 8
    x = torch.randn(shape, device=DEVICE).relu().to(HALF)
    exact = step(copy.deepcopy(block).double(), x.double())
    actual = fused_step(block, x, HALF)
    expected = ordinary(step, set_algorithm(copy.deepcopy(block), "dense"), x, HALF)
    assert actual["output"].dtype == expected["output"].dtype == HALF

    def error(values, *, of):
        names = [name for name in exact if (name == "output") == (of == "output")]
        parts = [
            (values[name] - exact[name]).norm() / exact[name].norm()
            for name in names
            if "running" not in name
        ]
        return torch.stack(parts).square().mean().sqrt()

    for of in ("output", "gradients"):
        assert error(actual, of=of) < 2 * error(expected, of=of), of


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_autocast_keeps_dtypes(dtype, ordinary, fused_step):
    block, x = make_block(), torch.randn(2, 5, 3, 4, 4, device=DEVICE, dtype=dtype)
    actual = fused_step(block, x, HALF)
    expected = ordinary(step, block, x, HALF)
    for name, value in expected.items():
        assert actual[name].dtype == value.dtype, name


def test_half_precision_networks(ordinary, fused_step):
    block, x = make_block().to(HALF), torch.randn(2, 5, 3, 4, 4, device=DEVICE, dtype=HALF)
    actual = fused_step(block, x)
    for name, value in ordinary(step, block, x).items():
        assert actual[name].dtype == value.dtype, name
        # Gradients of so few numbers depend on which side of zero they are rounded to.
        if name == "output" or "running" in name:
            assert (actual[name] - value).norm() < 0.03 * value.norm(), name


@pytest.mark.parametrize("momentum", [0.3, None])
def test_statistics_are_remembered_as_batch_norm_does(momentum, relative_error, ordinary):
    block, x = make_block(), torch.randn(2, 5, 3, 4, 4, device=DEVICE)
    for norm in (block.bn1, block.bn2):
        norm.momentum = momentum
    other = copy.deepcopy(block)
    with torch.no_grad():
        for _ in range(3):
            block(x)
            ordinary(other, x)
    assert block.bn2.num_batches_tracked == 3
    for norm, expected in ((block.bn1, other.bn1), (block.bn2, other.bn2)):
        assert relative_error(norm.running_mean, expected.running_mean) < TOLERANCE
        assert relative_error(norm.running_var, expected.running_var) < TOLERANCE


def test_frozen_layers(relative_error, fused_step):
    block = make_block(stride=2)
    block.conv1.requires_grad_(False)
    block.bn2.eval().requires_grad_(False)
    x = torch.randn(2, 5, 3, 4, 4, device=DEVICE)
    actual = fused_step(block, x)
    for name, value in step(copy.deepcopy(block).double(), x.double()).items():
        assert (actual[name] is None) == (value is None), name
        assert value is None or relative_error(actual[name], value) < TOLERANCE, name


def test_gradients_without_that_of_the_features(relative_error):
    block = make_block()
    x = torch.randn(2, 5, 3, 4, 4, device=DEVICE)
    block(x).square().sum().backward()
    expected = copy.deepcopy(block).double()
    expected.zero_grad()
    expected(x.double()).square().sum().backward()
    assert relative_error(block.conv1.weight.grad, expected.conv1.weight.grad) < TOLERANCE


@pytest.mark.parametrize(("asked", "layers"), [("features", 0), ("conv2.weight", 1), ("both", 4)])
def test_gradients_of_filters_are_computed_where_they_are_asked_for(asked, layers, monkeypatch):
    """A recording could not end before others, for which nothing waits."""
    block, original, computed = make_block(5, 3, 2, bottleneck=True), convolution_backward, []

    def counted(*arguments, of_inputs):
        computed.append(of_inputs)
        return original(*arguments, of_inputs=of_inputs)

    monkeypatch.setattr(functions, "convolution_backward", counted)
    x = torch.randn(2, 5, 3, 4, 4, device=DEVICE, requires_grad=True)
    weights = dict(block.named_parameters())
    leaves = {"features": [x], "both": [x, *weights.values()]}.get(asked) or [weights[asked]]
    torch.autograd.grad(block(x).sum(), leaves)
    assert computed.count(False) == layers * Planes.of(3, paired=True).number


def test_second_derivatives_are_refused_with_advice():
    block = make_block()
    x = torch.randn(1, 5, 3, 2, 2, device=DEVICE, requires_grad=True)
    with pytest.raises(RuntimeError, match="set_algorithm"):
        torch.autograd.grad(block(x).sum(), x, create_graph=True)


@pytest.mark.parametrize("memory", [torch.preserve_format, torch.contiguous_format])
@pytest.mark.parametrize(("rotations", "lifting"), [(3, "rgb"), (4, "hsv")])
def test_saved_tensors_may_come_back_in_another_layout(
    rotations, lifting, memory, relative_error, fused_step
):
    """As with torch.autograd.graph.save_on_cpu."""
    architecture, options = Architecture((1, 1), False, 8, False, 10), {"rotations": rotations}
    network = settled(ResNet(architecture, 7, width=(5, 7), lifting=lifting, **options))
    images = torch.rand(2, 3, 12, 14, device=DEVICE)
    expected = step(copy.deepcopy(network).double(), images.double())
    hooks = (lambda x: x.detach().clone(memory_format=memory)), (lambda x: x)
    with torch.autograd.graph.saved_tensors_hooks(*hooks):
        actual = fused_step(network, images, calls=3)
    assert expected.pop("gradient of features") is None
    for what, value in expected.items():
        assert relative_error(actual[what], value) < 10 * TOLERANCE, what


# Blocks that follow each other


@pytest.fixture
def analysed(monkeypatch):
    """The features whose planes were computed on their own."""
    seen, original = [], kernels().analyse

    def analyse(x, *arguments, **options):
        seen.append(x.tensor)
        return original(x, *arguments, **options)

    monkeypatch.setattr(kernels(), "analyse", analyse)
    return seen


@pytest.mark.parametrize("rotations", [2, 3, 9])
@pytest.mark.parametrize("widths", [(5, 5), (17, 6)])
def test_a_block_begins_with_the_planes_of_the_one_before(
    widths, rotations, analysed, relative_error
):
    first = make_block(5, widths[0], rotations=rotations)
    second = make_block(widths[0], widths[1], rotations=rotations, stride=2)
    x = torch.randn(2, 5, rotations, 4, 4, device=DEVICE)
    results = {}
    for first.followed in (False, True):
        analysed.clear()
        with torch.no_grad():
            results[first.followed] = second(first(x))
        assert len(analysed) == 2 - first.followed
    assert relative_error(results[True], results[False]) < TOLERANCE  # rounded otherwise
    pair = nn.Sequential(first, second)
    expected = step(copy.deepcopy(pair).double(), x.double())
    for what, value in step(pair, x).items():
        assert relative_error(value, expected[what]) < TOLERANCE, what


@pytest.mark.parametrize(("largest", "kept"), [(96, "planes"), (0, "features")])
def test_backward_keeps_planes_that_are_no_larger_than_the_features(
    largest, kept, monkeypatch, analysed
):
    monkeypatch.setattr(layout, "_PAIRED_CHANNELS", largest)
    first, second = make_block(), make_block()
    first.followed = True
    x = torch.randn(2, 5, 3, 4, 4, device=DEVICE)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: saved.append(tensor) or tensor, lambda tensor: tensor
    ):
        between = first(x)
        out = second(between)
    pointers = {tensor.data_ptr() for tensor in saved}
    assert (between.data_ptr() in pointers) == (kept == "features")
    assert sum(tensor.dtype == torch.uint8 for tensor in saved) == 2  # signs
    analysed.clear()
    out.sum().backward()
    assert len(analysed) == (0 if kept == "planes" else 2)


@pytest.mark.parametrize("largest", [96, 0])
def test_blocks_may_be_checkpointed_one_by_one(largest, monkeypatch, relative_error):
    """The second pass of a checkpoint has no planes from the block before."""
    monkeypatch.setattr(layout, "_PAIRED_CHANNELS", largest)
    pair = nn.Sequential(make_block(), make_block())
    pair[0].followed = True
    x = torch.randn(2, 5, 3, 4, 4, device=DEVICE)

    def gradients(network, x, run):
        x = x.clone().requires_grad_()
        weights = torch.linspace(-1, 1, x.numel(), device=DEVICE).view(x.shape)
        loss = (run(network, x) * weights.to(x.dtype)).sum()
        return torch.autograd.grad(loss, [x, *network.parameters()])

    expected = gradients(copy.deepcopy(pair).double(), x.double(), nn.Sequential.forward)

    def one_by_one(network, x):
        for block in network:
            x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
        return x

    for actual, value in zip(gradients(pair, x, one_by_one), expected, strict=True):
        assert relative_error(actual, value) < TOLERANCE


def test_features_with_planes_may_be_copied():
    block = make_block()
    block.followed = True
    with torch.no_grad():
        features = block(torch.randn(2, 5, 3, 4, 4, device=DEVICE))
    assert torch.equal(copy.deepcopy(features), features)


def test_signs_are_kept_for_gradients_alone(monkeypatch):
    block, x = make_block(), torch.randn(2, 5, 3, 4, 4, device=DEVICE)
    monkeypatch.setattr(kernels(), "empty_signs", None)
    with torch.no_grad():
        block(x)
    with pytest.raises(TypeError, match="not callable"):
        block(x)


def test_planes_of_features_that_changed_are_not_used(analysed):
    first, second = make_block(), make_block()
    first.followed = True
    x = torch.randn(2, 5, 3, 4, 4, device=DEVICE)
    with torch.no_grad():
        y = first(x)
        analysed.clear()
        changed = second(y.mul_(2))
        assert len(analysed) == 1
        assert torch.equal(changed, second(first(x) * 2))
        y = first(x)
        analysed.clear()
        with torch.autocast(DEVICE, HALF):  # in another dtype
            second(y)
        assert len(analysed) == 1
        y = first(x)
        analysed.clear()
        y.data = y + 1
        second(y)
        assert len(analysed) == 1
    with torch.inference_mode():
        analysed.clear()
        second(first(x).mul_(2))
    assert len(analysed) == 2


def test_a_recording_computes_the_planes_of_features_that_it_is_given(analysed, monkeypatch):
    first, second = make_block(), make_block()
    first.followed = True
    with torch.no_grad():
        y = first(torch.randn(2, 5, 3, 4, 4, device=DEVICE))
        analysed.clear()
        monkeypatch.setattr(blocks, "is_captured", lambda features: True)
        second(y)
        assert len(analysed) == 1
        second(first(y))  # both of them recorded
        assert len(analysed) == 2


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
def test_gpu_planes_stay_on_their_stream(analysed):
    first, second, stream = make_block(), make_block(), torch.cuda.Stream()
    first.followed = True
    with torch.no_grad():
        y = first(torch.randn(2, 5, 3, 4, 4, device=DEVICE))
        stream.wait_stream(torch.cuda.current_stream())
        analysed.clear()
        with torch.cuda.stream(stream):
            second(y)
        assert len(analysed) == 1
        torch.cuda.current_stream().wait_stream(stream)


# Whole networks


@pytest.mark.slow
@pytest.mark.parametrize(
    ("small_images", "lifting", "spatial"),
    [(True, "rgb", "p1"), (False, "hsv", "p4")],
)
def test_a_network_equals_the_ordinary_one(
    small_images, lifting, spatial, relative_error, fused_step
):
    network = ResNet(
        Architecture((1, 1), False, 8, small_images, 10),
        7,
        width=(5, 7) if spatial == "p1" else (3, 2),
        rotations=3,
        coset_pool="avg",
        lifting=lifting,
        spatial=spatial,
    )
    network, x = (
        settled(network),
        torch.rand(2, 3, *((6, 5) if small_images else (12, 14)), device=DEVICE),
    )
    expected = step(copy.deepcopy(network).double(), x.double())
    actual = fused_step(network, x, calls=3)
    assert expected.pop("gradient of features") is None
    for what, value in expected.items():
        assert relative_error(actual[what], value) < 1e-4, what


@pytest.mark.slow
def test_a_stem_of_few_channels_and_many_pixels(relative_error):
    # Rows of memory are counted neither by channels nor by columns, of which there are more.
    conv = CELiftConv2d(3, 2, 3, padding=1, bias=False).to(DEVICE)
    norm, pool = CEBatchNorm2d(2).to(DEVICE), CEMaxPool2d(3, 2, 1)
    images = torch.rand(2, 3, 15, 14, device=DEVICE)
    results = []
    for double in (True, False):
        layers = [copy.deepcopy(layer) for layer in (conv, norm)]
        if double:
            conv_, norm_ = (layer.double() for layer in layers)
            out = pool(torch.relu(norm_(conv_(images.double()))))
        else:
            out = _fused.stem(images, *layers, pool=True)
        torch.manual_seed(1)
        (out * torch.randn(out.shape, device=DEVICE)).sum().backward()
        gradients = [p.grad for layer in layers for p in layer.parameters()]
        results.append([out, *gradients])
    for actual, expected in zip(results[1], results[0], strict=True):
        assert relative_error(actual, expected) < 1e-3


@pytest.mark.parametrize("learnable", [True, False])
def test_gradients_reach_images_and_the_lifting(learnable, relative_error):
    conv = CELiftConv2d(3, 4, 3, bias=False, learnable=learnable).to(DEVICE)
    # Torch has no gradient of filters in channels_last memory for one small image on a CPU.
    norm, x = CEBatchNorm2d(4).to(DEVICE), torch.rand(2, 3, 6, 6, device=DEVICE)
    x.requires_grad_(not learnable)
    parameters = [*conv.parameters(), *[x] * (not learnable)]
    out = _fused.stem(x, conv, norm, pool=True)
    actual = torch.autograd.grad(out.square().sum(), parameters)
    conv, norm, exact = conv.double(), norm.double(), x.detach().double().requires_grad_()
    parameters = [*conv.parameters(), *[exact] * (not learnable)]
    out = CEMaxPool2d(3, 2, 1)(norm(conv(exact)).relu())
    expected = torch.autograd.grad(out.square().sum(), parameters)
    for gradient, value in zip(actual, expected, strict=True):
        assert relative_error(gradient, value) < 1e-4


def test_a_learnable_lifting_is_computed_once(monkeypatch):
    conv = CELiftConv2d(3, 4, 3, bias=False, learnable=True).to(DEVICE)
    seen, original = [], CELiftConv2d._transformations
    monkeypatch.setattr(
        CELiftConv2d, "_transformations", lambda *_: seen.append(1) or original(conv)
    )
    _fused.stem(torch.rand(2, 3, 6, 6, device=DEVICE), conv, CEBatchNorm2d(4).to(DEVICE), pool=True)
    assert len(seen) == 1


STEMS = {  # filters or images are shifted; columns of the result come alone or together
    "rgb, three, two columns": {},
    "rgb, twelve, alone": {"rotations": 12, "channels": 17},
    "hsv, thirds of a turn, alone": {"lifting": "hsv", "channels": 17},
    "hsv, four, two columns": {"lifting": "hsv", "rotations": 4, "channels": 17},
    "hsv, four, four columns": {"lifting": "hsv", "rotations": 4},
    "hsv, five, alone": {"lifting": "hsv", "rotations": 5, "width": 11, "stride": 1},
    "hsv, four, quarter turns": {"lifting": "hsv", "rotations": 4, "spatial": "p4"},
    "one rotation, mirror images": {"rotations": 1, "spatial": "p4m"},
}


@pytest.mark.parametrize("pool", [True, False])
@pytest.mark.parametrize("name", STEMS)
def test_a_stem_equals_the_ordinary_one(name, pool, relative_error):
    options = {"channels": 3, "width": 8, "stride": 2, "rotations": 3, **STEMS[name]}
    channels, width, stride = (options.pop(key) for key in ("channels", "width", "stride"))
    spatial = options.get("spatial", "p1")
    conv = CELiftConv2d(3, channels, 3, stride, 1, bias=False, **options).to(DEVICE)
    norm, pooling = CEBatchNorm2d(channels, spatial=spatial), CEMaxPool2d(3, 2, 1)
    norm = settled(norm)
    layers = nn.ModuleList([conv, norm])
    images = torch.rand(2, 3, 6, width, device=DEVICE)

    def results(layers, images, stem):
        out = stem(images, *layers)
        weights = torch.linspace(-1, 1, out.numel(), device=DEVICE).view(out.shape).to(out)
        gradients = torch.autograd.grad((out * weights).sum(), list(layers.parameters()))
        return [out, *gradients, layers[1].running_mean, layers[1].running_var]

    def ordinary(images, conv, norm):
        out = norm(conv(images)).relu()
        return pooling(out) if pool else out

    expected = results(copy.deepcopy(layers).double(), images.double(), ordinary)
    fused = functools.partial(_fused.stem, pool=pool)
    for actual, value in zip(results(layers, images, fused), expected, strict=True):
        assert relative_error(actual, value) < TOLERANCE


# Where the fused path is not taken


def replace(**modules):
    def change(block):
        for name, module in modules.items():
            setattr(block, name, module)

    return change


CHANGES = {
    "hook": lambda block: block.bn1.register_forward_hook(lambda *_: None),
    "hook before": lambda block: block.conv2.register_forward_pre_hook(lambda *_: None),
    "hook of gradients": lambda block: block.relu.register_full_backward_hook(lambda *_: None),
    "synchronised norms": sync_batch_norm,
    "dense algorithm": lambda block: set_algorithm(block, "dense"),
    "bias": replace(conv2=CEConv2d(5, 5, 3, padding=1)),
    "groups": replace(conv2=CEConv2d(5, 5, 3, padding=1, groups=5, bias=False)),
    "padding mode": replace(conv2=CEConv2d(5, 5, 3, padding=1, bias=False, padding_mode="reflect")),
    "padding by name": replace(conv2=CEConv2d(5, 5, 3, padding="same", bias=False)),
    "another activation": replace(relu=nn.GELU()),
    "another shortcut": replace(shortcut=nn.Identity()),
    "norm without parameters": replace(bn1=CEBatchNorm2d(5, affine=False)),
    "norm without statistics": replace(bn1=CEBatchNorm2d(5, track_running_stats=False)),
    "norm with strides": lambda block: setattr(
        block.bn1, "running_mean", torch.zeros(10, device=DEVICE)[::2]
    ),
    "weight norm": lambda block: nn.utils.parametrizations.weight_norm(block.conv1),
    "own forward": lambda block: setattr(block.relu, "forward", torch.relu),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changed_blocks_take_the_ordinary_path(name):
    block, x = make_block(), torch.randn(1, 5, 3, 4, 4, device=DEVICE)
    assert _fused.applies(block, x)
    CHANGES[name](block)
    assert not _fused.applies(block.to(DEVICE), x)
    assert block(x).shape == x.shape


def test_other_features_take_the_ordinary_path():
    block, x = make_block(), torch.randn(1, 5, 3, 4, 4, device=DEVICE)
    others = [
        x.double(),
        x.to(HALF),
        x[:0],
        x[:, :4],
        x[:, :, :2],
        x[0],
    ]
    for other in others:
        assert not _fused.applies(block, other)
    with pytest.raises(ValueError, match="expects 5 channels, got 4"):
        block(x[:, :4])
    block = make_block(rotations=1)
    assert not _fused.applies(block, x)


def test_compilers_see_nothing_of_the_conditions(monkeypatch, relative_error):
    """Torch 2.11 cannot trace what they ask."""
    network = settled(
        ResNet(Architecture((1,), False, 8, False, 10), 3, width=(4,), rotations=2)
    ).eval()
    images = torch.rand(2, 3, 12, 12, device=DEVICE)
    expected, original = network(images), conditions.is_untouched

    def asked(module):
        assert not torch.compiler.is_compiling()
        return original(module)

    monkeypatch.setattr(conditions, "is_untouched", asked)
    compiled = torch.compile(network, fullgraph=True, backend="eager")
    assert relative_error(compiled(images), expected) < TOLERANCE


@pytest.mark.slow
def test_graphs_are_made_of_ordinary_operations(monkeypatch):
    block, x = make_block().eval(), torch.randn(1, 5, 3, 4, 4, device=DEVICE)
    expected = block(x)

    def fail(*_, **__):
        raise AssertionError("took the fused path")

    monkeypatch.setattr(_fused, "residual_block", fail)
    compiled = torch.compile(block, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), expected, rtol=1e-4, atol=1e-4)
    torch.export.export(block, (x,))
    fold(nn.Sequential(CELiftConv2d(3, 5, 3).to(DEVICE), block, CosetMaxPool()))
    torch.func.vmap(block)(x[None])
    with torch.autograd.forward_ad.dual_level():
        block(torch.autograd.forward_ad.make_dual(x, torch.ones_like(x)))
    with pytest.raises(AssertionError, match="fused"):
        block(x)


def test_other_stems_take_the_ordinary_path():
    conv, norm = CELiftConv2d(3, 5, 3, bias=False).to(DEVICE), CEBatchNorm2d(5).to(DEVICE)
    layers, x = (conv, norm, nn.ReLU()), torch.rand(1, 3, 8, 8, device=DEVICE)
    assert _fused.stem_applies(x, *layers, nn.Identity())
    assert _fused.stem_applies(x, *layers, CEMaxPool2d(3, 2, 1))
    for pool in (CEMaxPool2d(2), CEMaxPool2d(3, 2, 1, ceil_mode=True), nn.MaxPool2d(3, 2, 1)):
        assert not _fused.stem_applies(x, *layers, pool)
    for other in (x.double(), x[0], x[:, :2], x[:0]):
        assert not _fused.stem_applies(other, *layers, nn.Identity())
    norm.register_forward_hook(lambda *_: None)
    assert not _fused.stem_applies(x, *layers, nn.Identity())
