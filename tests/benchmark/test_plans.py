"""What the suites of layers, networks and rotations consist of."""

import pytest
import torch
from torch import nn

from equicolor.benchmark.layers import layer_cases, layer_groups, shape_named
from equicolor.benchmark.networks import NETWORKS, network_case, network_groups
from equicolor.benchmark.rotations import rotation_groups
from equicolor.models import ce_resnet18, matched_widths
from equicolor.nn import CEConv2d


def test_shapes_are_those_of_the_network():
    network = ce_resnet18(rotations=3, width=4).eval()
    seen = []
    for stage in network.layers:
        stage.register_forward_hook(lambda *call: seen.append(call[2].shape[-1]))
    with torch.no_grad():
        network(torch.rand(1, 3, 224, 224))
    assert [shape_named(f"stage{stage}").size for stage in range(1, 5)] == seen
    assert [shape_named(f"stage{stage}").width for stage in range(1, 5)] == [64, 128, 256, 512]


@pytest.mark.parametrize("rotations", [3, 12])
def test_layers_have_the_widths_of_the_network(rotations):
    cases = [
        layer_cases(
            name, shape_named(name), rotations, batch=2, mode="forward", variants=("auto",)
        )[0]
        for name in ("stage1", "stage2", "stage3", "stage4")
    ]
    assert tuple(case.facts["width"] for case in cases) == matched_widths(18, rotations, 4)
    assert all(case.facts["chosen"] in ("dense", "cyclic") for case in cases)
    layer = cases[0].build()
    assert isinstance(layer, CEConv2d)
    assert layer.rotations == rotations


def test_groups_of_layers():
    (group,) = layer_groups(models=["stage2"], rotations=[3], modes=["forward"], variants=["dense"])
    assert [case.variant for case in group] == ["plain", "dense"]  # there is always a measure
    groups = layer_groups(models=["stage2", "colormnist"], rotations=[1, 3])
    assert len(groups) == 2 * 2 * 2
    assert [case.variant for case in groups[0]] == ["plain"]  # one rotation is a plain layer
    assert [case.variant for case in groups[1]] == ["plain", "auto", "dense", "cyclic"]
    assert {case.mode for group in groups[:4] for case in group} == {"training"}
    assert isinstance(groups[1][0].build(), nn.Conv2d)
    assert groups[1][0].shape == (8, 128, 28, 28)
    assert groups[1][1].shape == (8, 110, 3, 28, 28)


def test_networks_are_the_ones_that_were_promised():
    (group,) = network_groups(modes=["training"], variants=["auto"])
    found = {case.facts["name"]: case for case in group}
    assert set(found) == set(NETWORKS)
    widths = {name: case.facts["width"] for name, case in found.items()}
    assert widths == {
        "plain": 64,
        "n3-fast": 64,
        "n3-matched": 55,
        "n3-fast-hsv": 64,
        "n12-fast": 32,
        "n12-matched": 41,
    }
    assert found["n3-fast-hsv"].facts["lifting"] == "hsv"
    assert found["plain"].facts["model"] == "resnet18"
    assert group[0].shape == (256, 3, 224, 224)


def test_what_matters_most_comes_first():
    groups = network_groups(variants=["dense", "fused", "auto"])
    assert [group[0].mode for group in groups] == ["training", "folded", "forward"]
    variants = [case.variant for case in groups[0]]
    assert variants == ["plain", *["fused"] * 5, *["auto"] * 5, *["dense"] * 5]


def test_networks_are_fused_folded_or_not():
    for group in network_groups(variants=["auto", "fused"]):
        assert {case.variant for case in group} == {"plain", "auto", "fused"}
    (folded,) = rotation_groups(
        models=["resnet18"], rotations=[3], modes=["folded"], variants=["fused", "auto", "cyclic"]
    )
    assert [case.form for case in folded] == ["auto", "fused", "auto", "cyclic"]


def test_filters_of_networks():
    (group,) = network_groups(rotations=[12], modes=["folded"], variants=["cyclic"], width=4)
    assert [case.facts["name"] for case in group] == ["plain", "n12-fast", "n12-matched"]
    assert {case.facts["width"] for case in group} == {4}
    (group,) = network_groups(models=["plain"], modes=["forward"])
    assert [case.variant for case in group] == ["plain"]


def test_other_architectures():
    case = network_case("n3", NETWORKS["n3-matched"], architecture="resnet44", image_size=32)
    assert case.facts["model"] == "ce_resnet44"
    assert case.facts["width"] == 27


def test_the_plain_network_may_come_recorded_too():
    (group,) = network_groups(models=["n3-fast"], modes=["training"], recorded=True)
    names = [case.facts["name"] for case in group]
    assert names[:2] == ["plain", "plain-recorded"]
    assert [case.recorded for case in group] == [name == "plain-recorded" for name in names]
    assert {case.variant for case in group[:2]} == {"plain"}


def test_rotations_share_a_width():
    (group,) = rotation_groups(models=["resnet18"], rotations=[2, 4], modes=["folded"], width=8)
    found = [(case.facts["rotations"], case.variant) for case in group]
    assert found[0] == (1, "plain")
    assert found[1:4] == [(2, "auto"), (2, "dense"), (2, "cyclic")]
    assert {case.facts["width"] for case in group} == {8}
    layers = rotation_groups(models=["stage3"], rotations=[1, 12], variants=["cyclic"], width=8)
    assert [group[0].mode for group in layers] == ["training", "forward"]
    assert [case.shape[1] for case in layers[0]] == [32, 32]  # the third stage of width 8


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: layer_groups(models=["stage5"]), "models must be one of 'stage1'.*got 'stage5'"),
        (lambda: layer_groups(modes=["folded"]), "modes must be one of 'training', 'forward'"),
        (lambda: layer_groups(variants=["fast"]), "variants must be one of"),
        (lambda: layer_groups(variants=["fused"]), "variants must be one of"),
        (lambda: network_groups(models=["n5"]), "models must be one of 'plain', 'n3-fast'"),
        (lambda: network_groups(rotations=[5]), r"rotations of the suite are \[1, 3, 12\]"),
        (lambda: network_groups(architecture="vgg"), "architecture must be one of 'resnet18'"),
        (lambda: network_groups(batch=0), "batch must be at least 1"),
        (lambda: rotation_groups(models=["vgg"]), "models must be one of"),
        (lambda: rotation_groups(modes=["folded"]), "layers have the modes training, forward"),
        (lambda: rotation_groups(variants=["fused"]), "single layers are not fused"),
        (lambda: rotation_groups(width=0), "width must be at least 1"),
        (lambda: shape_named("stage1", 0), "size must be at least 1"),
    ],
)
def test_bad_choices_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
