"""torch.compile and torch.export: whole graphs, equal to eager."""

import pytest
import torch
from torch import nn
from torch.export import Dim

from equicolor.color import shift_hue
from equicolor.models import ce_resnet18, ce_resnet44
from equicolor.nn import CEConv2d, CELiftConv2d

pytestmark = pytest.mark.slow  # compilers take seconds

# Tracing costs seconds, so options that do not interact share a case.
each_pair = pytest.mark.parametrize(
    ("lifting", "algorithm"), [("rgb", "dense"), ("hsv", "cyclic")], ids=["rgb dense", "hsv cyclic"]
)


@pytest.fixture(autouse=True)
def _forget_compiled_graphs():
    torch._dynamo.reset()


@pytest.fixture
def images():
    return torch.rand(2, 3, 12, 12, dtype=torch.float64)


@each_pair
def test_network_compiles_without_graph_breaks(
    lifting, algorithm, make_network, images, relative_error
):
    network = make_network(4, lifting, algorithms=[algorithm] * 2, head="avg").double().eval()
    parameters = list(network.parameters())
    compiled = torch.compile(network, fullgraph=True, backend="aot_eager")
    y, expected = compiled(images), network(images)
    assert relative_error(y, expected) < 1e-12
    actual = torch.autograd.grad(y.square().sum(), parameters)
    for gradient, eager in zip(
        actual, torch.autograd.grad(expected.square().sum(), parameters), strict=True
    ):
        assert relative_error(gradient, eager) < 1e-10


def test_training_compiles_without_graph_breaks(make_network, images, relative_error):
    network = make_network(4, algorithms=("cyclic", "dense")).double().train()
    compiled = torch.compile(network, fullgraph=True, backend="eager")
    assert relative_error(compiled(images), network(images)) < 1e-12


def test_compiles_under_autocast_and_with_padding_modes(relative_error, tolerance):
    layer = CEConv2d(3, 4, 3, padding="same", padding_mode="circular", algorithm="cyclic")
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    x = torch.rand(2, 3, 3, 6, 6)
    with torch.autocast("cpu", torch.bfloat16):
        assert relative_error(compiled(x), layer(x)) <= tolerance[torch.bfloat16]


def test_learnable_lifting_compiles(images, relative_error):
    layer = CELiftConv2d(3, 4, 3, rotations=4, learnable=True).double()
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    assert relative_error(compiled(images), layer(images)) < 1e-14


def test_one_graph_serves_every_batch_size(relative_error):
    layer, graphs = CEConv2d(3, 4, 3, rotations=4, algorithm="cyclic").double(), []

    def backend(graph, _):
        graphs.append(graph)
        return graph

    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend=backend)
    for batch in (2, 3, 5, 8):
        x = torch.rand(batch, 3, 4, 6, 6, dtype=torch.float64)
        assert relative_error(compiled(x), layer(x)) < 1e-14
    assert len(graphs) == 1


def test_inductor_computes_the_same_for_images_of_any_size(relative_error, tolerance):
    network = nn.Sequential(
        CELiftConv2d(3, 1, 3, rotations=2), CEConv2d(1, 1, 3, rotations=2, algorithm="cyclic")
    )
    shifts = torch.rand(2)

    def both(images):
        shifted = shift_hue(images, shifts)
        return shifted, network(shifted)

    with torch.no_grad():
        # Otherwise the first size is compiled by itself, which takes a C++ compiler six seconds.
        compiled = torch.compile(both, fullgraph=True, dynamic=True)
        for size in (8, 13):
            x = torch.rand(2, 3, size, size)
            (shifted, y), (exact, expected) = compiled(x), both(x)
            assert (shifted - exact).abs().max() < 1e-6
            assert relative_error(y, expected) < tolerance[torch.float32]


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_trace(relative_error):
    layer = CEConv2d(4, 4, 3).double()
    traced = torch.jit.trace(layer, torch.rand(2, 4, 3, 6, 6).double())
    x = torch.rand(3, 4, 3, 8, 8).double()
    assert relative_error(traced(x), layer(x)) < 1e-14


def test_export(make_network, images, relative_error):
    network = make_network(4, "hsv", algorithms=["cyclic"] * 2, head="avg").double().eval()
    exported = torch.export.export(network, (images,)).module()
    assert relative_error(exported(images), network(images)) < 1e-12


@pytest.mark.parametrize(
    ("lifting", "algorithm", "batch"),
    [("rgb", "dense", Dim.DYNAMIC), ("hsv", "cyclic", Dim("batch", min=1, max=64))],
    ids=["rgb dense, any", "hsv cyclic, named"],
)
def test_export_with_a_dynamic_batch(
    lifting, algorithm, batch, make_network, images, relative_error
):
    network = make_network(4, lifting, algorithms=[algorithm] * 2, head="avg").double().eval()
    shapes = ({0: batch},)
    exported = torch.export.export(network, (images,), dynamic_shapes=shapes).module()
    for size in (1, 2, 5):
        x = torch.rand(size, 3, 12, 12, dtype=torch.float64)
        assert relative_error(exported(x), network(x)) < 1e-12


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("lifting", ["rgb", "hsv"])
@pytest.mark.parametrize("rotations", [3, 12])
@pytest.mark.parametrize(("build", "size"), [(ce_resnet18, 64), (ce_resnet44, 32)])
def test_networks_compile_whole_on_a_gpu(build, size, rotations, lifting, relative_error):
    network = build(10, width=8, rotations=rotations, lifting=lifting).cuda().eval()
    images = torch.rand(2, 3, size, size, device="cuda")
    compiled = torch.compile(network, fullgraph=True)
    expected, actual = network(images), compiled(images)
    # float32 convolutions in TF32, which keeps 10 bits; gradients add more of the rounding up
    assert relative_error(actual, expected) < 1e-3
    parameters = list(network.parameters())
    gradients = torch.autograd.grad(expected.square().sum(), parameters)
    for eager, other in zip(
        gradients, torch.autograd.grad(actual.square().sum(), parameters), strict=True
    ):
        assert relative_error(other, eager) < 5e-2
