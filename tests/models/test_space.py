"""Networks that are invariant to hue shifts, quarter turns and mirror images at once."""

import pytest
import torch

from equicolor.models import (
    cecnn,
    cost,
    create_model,
    export,
    load_model,
    matched_widths,
    resnet18,
    resnet44,
    save_model,
)
from equicolor.models.resnet import ResNet
from equicolor.models.widths import ARCHITECTURES, Architecture, count
from equicolor.testing import equivariance_error

EXACT = 1e-10
NETWORKS = {
    "cecnn": (cecnn, {"width": 2, "coset_pool": "avg"}, 28, 27),
    "resnet18": (resnet18, {"width": 2}, 37, 36),
    "resnet44": (resnet44, {"width": 1}, 13, 12),
}


@pytest.mark.parametrize(("spatial", "rotations"), [("p4", 3), ("p4m", 2), ("p4m", 1)])
@pytest.mark.parametrize(
    "name", ["cecnn", *(pytest.param(n, marks=pytest.mark.slow) for n in ("resnet18", "resnet44"))]
)
def test_exact_where_every_layer_sees_both_borders_alike(
    name, spatial, rotations, settle, blotches, shallow
):
    build, options, exact_size, other_size = NETWORKS[name]
    lifting = "rgb" if rotations == 1 else "hsv"
    options = options | {"rotations": rotations, "spatial": spatial, "lifting": lifting}
    network = build(5, **options).double()
    if name != "cecnn":
        shallow(network)  # strides decide, and they are all there
    settle(network, blotches(2, exact_size, torch.float64))
    images = blotches(1, exact_size, torch.float64)
    assert equivariance_error(network, images, rotations, "hsv", spatial=spatial) <= EXACT
    if name != "cecnn":  # it takes only images of 28 pixels
        images = blotches(1, other_size, torch.float64)
        assert equivariance_error(network, images, rotations, "hsv", spatial=spatial) > 1e-6


def test_image_size_is_one_at_which_they_are_exact():
    assert resnet18(5, width=1, spatial="p4").image_size == 229  # 32 k + 5
    assert resnet44(5, width=1, spatial="p4m").image_size == 33  # 4 k + 1
    assert resnet18(5, width=1).image_size == 224


@pytest.mark.parametrize(("spatial", "rotations"), [("p4", 3), ("p4m", 1), ("p4m", 12)])
@pytest.mark.parametrize("depth", [18, 44, 50])
@pytest.mark.parametrize("width", [None, "fast"])
def test_parameters_are_those_of_the_plain_network(
    depth, rotations, spatial, width, count_parameters
):
    with torch.device("meta"):
        plain = create_model(f"resnet{depth}")
        options = {"rotations": rotations, "spatial": spatial, "width": width}
        network = create_model(f"resnet{depth}", **options)
    # Widths of few channels are coarse: a channel of p4m counts eight times.
    assert count_parameters(network) == pytest.approx(count_parameters(plain), rel=0.12)
    stages = len(ARCHITECTURES[depth].blocks)
    group = rotations, stages, True, spatial
    counted = count(ARCHITECTURES[depth], network.config["width"], *group)
    assert counted == count_parameters(network)
    if width is None:
        widths = matched_widths(depth, rotations, stages, spatial=spatial)
        assert list(widths) == network.config["width"]


@pytest.mark.slow
def test_cost_is_a_multiple_of_the_group():
    """At matched parameters a spatial group of m elements multiplies the cost by m, about."""
    hue, both = (
        cost(resnet18(10, rotations=3, spatial=spatial), 37).macs for spatial in ("p1", "p4")
    )
    assert both / hue == pytest.approx(4, rel=0.1)


def test_checkpoint(tmp_path, blotches):
    network = resnet44(5, rotations=2, width=2, spatial="p4m").eval()
    save_model(network, tmp_path / "network.safetensors")
    loaded = load_model(tmp_path / "network.safetensors").eval()
    assert loaded.config["spatial"] == "p4m"
    images = blotches(2, 33)
    assert torch.equal(loaded(images), network(images))


@pytest.mark.slow
def test_onnx_has_no_more_nodes_than_without_turns(tmp_path, settle, blotches):
    pytest.importorskip("onnxruntime")
    reports = []
    for spatial in ("p1", "p4m"):
        options = {"rotations": 3, "width": 2, "spatial": spatial}
        network = ResNet(Architecture((1, 1), False, 2, True, 10), 5, **options)
        settle(network, blotches(2, 17))
        reports.append(export.export(network, tmp_path / f"{spatial}.onnx", input_size=17))
    hue, both = reports
    assert both.relative_error < 1e-4
    assert both.operations <= hue.operations + 2  # pooling over the elements


@pytest.mark.parametrize(
    ("build", "options", "message"),
    [
        (resnet18, {"rotations": 3, "ce_stages": 2}, "needs ce_stages=4, all of them, got 2"),
        (resnet18, {"ce_stages": 0}, "needs ce_stages=4, all of them, got 0"),
        (resnet18, {"rotations": 3, "coset_pool": None}, "needs coset_pool='max' or 'avg'"),
        (resnet18, {"lifting": "hsv"}, "lifting='hsv' needs more than one rotation: add"),
        (resnet18, {"separable": False}, "separable=False needs"),
        (cecnn, {"coset_pool": None}, "take rotations=1, which keeps colours"),
        (cecnn, {"coset_pool": "max", "ce_layers": 3}, "needs ce_layers=7"),
    ],
)
def test_refused(build, options, message):
    with pytest.raises(ValueError, match=message):
        build(5, width=2, spatial="p4", **options)


def test_unknown_group():
    with pytest.raises(ValueError, match="spatial must be one of 'p1', 'p4', 'p4m'; got 'p3'"):
        resnet18(5, spatial="p3")
