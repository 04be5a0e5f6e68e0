import pytest
import torch
from torch import nn

from equicolor.models import (
    ce_resnet18,
    ce_resnet44,
    create_model,
    matched_widths,
    resnet18,
    resnet44,
    resnet50,
    resnet101,
)
from equicolor.models.widths import ARCHITECTURES, count, resolve_widths
from equicolor.nn import CEConv2d, CELiftConv2d

# The paper's Table 4, less the nine numbers of the hue rotation its code counts as parameters.
PARAMETERS = {
    18: (11_689_512, 11_382_904 - 9, 11_565_478 - 9, 11_543_612 - 9, 11_788_369 - 9),
    44: (2_636_458, 2_514_894 - 9, 2_504_929 - 9, 2_602_605 - 9),
}
CASES = [(depth, stage) for depth, counts in PARAMETERS.items() for stage in range(len(counts))]


def on_meta(name, *args, **options):
    """A full-size network that takes no time and no memory."""
    with torch.device("meta"):
        return create_model(name, *args, **options)


def shape_of(network, *shape):
    with torch.no_grad():
        return tuple(network.eval()(torch.rand(shape)).shape)


@pytest.mark.parametrize(("depth", "ce_stages"), CASES)
def test_parameters_are_the_papers(depth, ce_stages, count_parameters):
    network = on_meta(f"resnet{depth}", rotations=3 if ce_stages else 1, ce_stages=ce_stages)
    assert count_parameters(network) == PARAMETERS[depth][ce_stages]


def test_parameters_of_the_bottleneck_network(count_parameters):
    assert count_parameters(on_meta("resnet50", rotations=3)) == 25_779_265 - 9
    assert count_parameters(on_meta("resnet50")) == 25_557_032  # torchvision's


@pytest.mark.parametrize("depth", [18, 44])
@pytest.mark.parametrize("rotations", range(2, 13))
def test_matched_widths_keep_the_parameters(depth, rotations):
    plain = PARAMETERS[depth][0]
    for ce_stages in range(1, len(PARAMETERS[depth])):
        group = rotations, ce_stages, True
        # Tests around this one count the parameters of networks.
        parameters = count(ARCHITECTURES[depth], matched_widths(depth, *group), *group)
        assert parameters == pytest.approx(plain, rel=0.06), ce_stages


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("resnet34", {"rotations": 6}),
        ("resnet34", {"rotations": 3, "ce_stages": 2}),
        ("resnet50", {"rotations": 12}),
        ("resnet50", {"rotations": 3, "ce_stages": 2}),
        ("resnet101", {"rotations": 3}),
    ],
)
def test_other_depths_are_matched_too(name, options, count_parameters):
    plain = count_parameters(on_meta(name))
    assert count_parameters(on_meta(name, **options)) == pytest.approx(plain, rel=0.06)


@pytest.mark.slow
@pytest.mark.parametrize("depth", [18, 44, 50])
@pytest.mark.parametrize(("rotations", "separable"), [(2, False), (4, True)])
@pytest.mark.parametrize("ce_stages", [1, 2, 3])
def test_widths_are_matched_by_the_true_count(
    depth, rotations, ce_stages, separable, count_parameters
):
    widths = [9, 14, 31, 65][: len(ARCHITECTURES[depth].blocks)]
    options = {"rotations": rotations, "ce_stages": ce_stages, "separable": separable}
    network = on_meta(f"resnet{depth}", width=widths, **options)
    assert count_parameters(network) == count(ARCHITECTURES[depth], widths, **options)


@pytest.mark.parametrize("rotations", [3, 6])
def test_full_filters_are_matched_too(rotations, count_parameters):
    network = on_meta("resnet18", rotations=rotations, separable=False)
    assert count_parameters(network) == pytest.approx(PARAMETERS[18][0], rel=0.06)


def test_widths_need_rotations():
    with pytest.raises(ValueError, match="rotations must be at least 1, got 0"):
        matched_widths(18, 0, 4)


def test_widths_need_whole_stages():
    with pytest.raises(TypeError, match=r"ce_stages must be an int, got 2\.5"):
        matched_widths(18, 3, 2.5)


def test_widths_do_not_depend_on_the_classes():
    assert resnet44(10, rotations=3).config["width"] == resnet44(100, rotations=3).config["width"]


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (None, [27, 55, 110]),
        ("fast", [32, 48, 112]),
        (8, [8, 16, 32]),
        ([5, 6, 7], [5, 6, 7]),
        ((5, 6, 7), [5, 6, 7]),
    ],
)
def test_width_argument(width, expected):
    network = resnet44(10, rotations=3, width=width)
    assert network.config["width"] == expected
    assert [stage[-1].conv2.out_channels for stage in network.layers] == expected
    assert network.conv1.out_channels == expected[0]
    assert network.linear.in_features == expected[-1]


@pytest.mark.parametrize("n", [2, 3, 4, 6, 8, 12])
@pytest.mark.parametrize(("depth", "stages"), [(18, 4), (44, 3), (50, 4)])
def test_fast_widths_are_friendly_and_keep_the_parameters(depth, stages, n):
    architecture, group = ARCHITECTURES[depth], (n, stages, True)
    matched, fast = (resolve_widths(architecture, width, *group) for width in (None, "fast"))
    first, *others = fast
    assert len(others) == stages - 1
    assert first % 32 == 0
    assert all(width % 16 == 0 for width in others)
    sizes = [count(architecture, widths, *group) for widths in (matched, fast)]
    assert sizes[1] == pytest.approx(sizes[0], rel=0.04 if depth == 18 else 0.12)


@pytest.mark.parametrize("ce_stages", range(1, 5))
def test_hybrids_are_equivariant_up_to_their_stage(ce_stages):
    network = resnet18(5, rotations=4, ce_stages=ce_stages, width=4, lifting="hsv")
    for stage, blocks in enumerate(network.layers):
        kinds = {type(m) for m in blocks.modules() if isinstance(m, nn.Conv2d | CEConv2d)}
        assert kinds == {CEConv2d if stage < ce_stages else nn.Conv2d}
    assert isinstance(network.conv1, CELiftConv2d)
    assert network.config["ce_stages"] == ce_stages
    assert shape_of(network, 2, 3, 64, 64) == (2, 5)


def test_none_means_all_stages():
    assert resnet44(10, rotations=3, width=4).config["ce_stages"] == 3
    assert resnet44(10, width=4).config["ce_stages"] == 0


def test_ce_names_differ_in_their_default_alone():
    assert ce_resnet44(10, width=4).config["rotations"] == 3
    given, named = ce_resnet44(10, rotations=6, width=4), resnet44(10, rotations=6, width=4)
    assert {**given.config, "model": ""} == {**named.config, "model": ""}
    assert given.state_dict().keys() == named.state_dict().keys()


def test_shortcuts_are_full_and_bottlenecks_separable():
    network = resnet50(10, rotations=3, width=4)
    block = network.layers[1][0]
    assert block.shortcut[0].pointwise_weight is None
    assert block.shortcut[0].weight.shape == (32, 16, 3, 1, 1)
    assert block.conv1.weight.shape == (8, 16, 1, 1, 1)
    assert block.conv1.pointwise_weight.shape == (8, 16, 3, 1, 1)
    assert len(network.layers[0][1].shortcut) == 0


@pytest.mark.parametrize("depth", ARCHITECTURES)
def test_depth_counts_the_layers(depth):
    network = on_meta(f"resnet{depth}")
    blocks = [block for stage in network.layers for block in stage]
    # The stem, the convolutions of the blocks and the classifier.
    assert sum(block.depth for block in blocks) + 2 == depth


@pytest.mark.parametrize(
    ("build", "size", "sides"),
    [
        # 7×7, stride 2, padding 1, as the released checkpoints were trained; then pooling
        (resnet18, 64, [30, 15, 15, 8, 4, 2]),
        (resnet44, 32, [32, 32, 32, 16, 8]),
    ],
)
@pytest.mark.parametrize("rotations", [1, 3])
def test_strides_and_stem(build, size, sides, rotations):
    network, seen = build(7, rotations=rotations, width=4), []
    for module in (network.conv1, network.max_pool, *network.layers):
        module.register_forward_hook(lambda *io: seen.append(io[-1].shape[-1]))
    assert shape_of(network, 1, 3, size, size) == (1, 7)
    assert seen == sides


@pytest.mark.parametrize("size", [(1, 3, 48, 80), (3, 3, 65, 33)])
def test_any_image_size(size):
    assert shape_of(ce_resnet18(5, width=4), *size) == (size[0], 5)


@pytest.mark.parametrize("coset_pool", ["max", "avg", None])
def test_coset_pool(coset_pool):
    network = resnet44(5, rotations=4, width=4, coset_pool=coset_pool)
    assert network.linear.in_features == 16 * (4 if coset_pool is None else 1)
    assert shape_of(network, 2, 3, 16, 16) == (2, 5)


@pytest.mark.parametrize("rotations", [1, 3])
def test_normalisation_is_inside(rotations, settle, blotches, relative_error):
    images = blotches(4, 16)
    network = settle(resnet44(5, rotations=rotations, width=4), images)
    bare = resnet44(5, rotations=rotations, width=4, normalize=False).eval()
    bare.load_state_dict(network.state_dict())
    if rotations == 1:  # ImageNet's statistics
        mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
        normalised = (images - mean.view(3, 1, 1)) / std.view(3, 1, 1)
    else:  # one number for all channels, or the hues would not be alike
        normalised = (images - 0.485) / 0.229
    assert relative_error(network(images), bare(normalised)) < 1e-5
    assert relative_error(network(images), bare(images)) > 1e-2


def test_normalisation_is_no_state():
    with_, without = (resnet44(5, width=4, normalize=flag) for flag in (True, False))
    assert with_.state_dict().keys() == without.state_dict().keys()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": [1, 2]}, r"width needs 3 numbers, one a stage; got \[1, 2\]"),
        ({"width": "wide"}, "width must be None, 'fast', an int or one int a stage; got 'wide'"),
        ({"width": 0}, "width must be at least 1, got 0"),
        ({"rotations": 3, "ce_stages": 4}, "ce_stages of resnet44 .* 3, got 4"),
        ({"rotations": 3, "ce_stages": -1}, "ce_stages of resnet44 .* 3, got -1"),
        ({"rotations": 0}, "rotations must be at least 1, got 0"),
        ({"rotations": 3, "lifting": "lab"}, "lifting must be one of 'rgb', 'hsv'; got 'lab'"),
        ({"rotations": 3, "coset_pool": "min"}, "coset_pool must be .*; got 'min'"),
        ({"coset_pool": "min"}, "coset_pool must be .*; got 'min'"),
        ({"lifting": "hsv"}, "lifting='hsv' needs more than one rotation: add rotations"),
        ({"ce_stages": 2}, "ce_stages=2 needs more than one rotation"),
        ({"separable": False, "coset_pool": None}, "separable=False, coset_pool=None need"),
        ({"rotations": 6, "ce_stages": 0}, "ce_stages=0 leaves no stage for rotations=6: take 1"),
        (
            {"rotations": 3, "ce_stages": 1, "coset_pool": None},
            r"hybrid network \(ce_stages=1 of 3\) pools over its hues",
        ),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        resnet44(10, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rotations": 1}, "ce_resnet18 is equivariant, rotations=1 is not: take resnet18, or"),
        ({"ce_stages": 0}, "ce_stages=0 leaves no stage for rotations=3: .* network, resnet18"),
    ],
)
def test_an_equivariant_name_is_no_plain_network(options, message):
    with pytest.raises(ValueError, match=message):
        ce_resnet18(3, **options)


@pytest.mark.parametrize("options", [{"rotations": 2.0}, {"ce_stages": 1.5}, {"width": 8.0}])
def test_options_of_another_type(options):
    with pytest.raises(TypeError, match=r"must be .* int"):
        resnet44(10, **{"rotations": 3, **options})


@pytest.mark.parametrize("options", [{"separable": "no"}, {"normalize": None}])
def test_switches_are_true_or_false(options):
    with pytest.raises(TypeError, match="must be True or False, got"):
        resnet44(10, rotations=3, **options)


def test_gradients_reach_every_parameter():
    for network in (resnet44(3, rotations=3, width=4), resnet101(3, rotations=3, width=2)):
        network.train()(torch.rand(2, 3, 32, 32)).square().sum().backward()
        silent = [name for name, p in network.named_parameters() if not p.grad.abs().sum() > 0]
        assert not silent


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("options", [{}, {"rotations": 3, "lifting": "hsv"}])
def test_networks_compute_in_their_dtype(dtype, options):
    torch.manual_seed(0)
    network = resnet18(10, width=8, **options).eval()
    images = torch.rand(2, 3, 32, 32)
    expected = network(images)
    logits = network.to(dtype)(images.to(dtype))
    assert logits.dtype == dtype
    torch.testing.assert_close(logits.float(), expected, rtol=0, atol=0.1)
