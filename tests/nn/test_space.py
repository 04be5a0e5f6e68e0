"""Layers that are equivariant to hue shifts, quarter turns and mirror images at once."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from equicolor.color import shift_hue
from equicolor.groups import SpatialGroup
from equicolor.nn import (
    CEBatchNorm2d,
    CEConv2d,
    CEDropout2d,
    CELiftConv2d,
    CEMaxPool2d,
    CosetAvgPool,
    CosetMaxPool,
    fold,
)
from equicolor.nn.functional import ce_conv2d, ce_lift_conv2d, spatial_bank
from equicolor.testing import assert_equivariant, equivariance_error

EXACT = 1e-10
each_group = pytest.mark.parametrize("spatial", ["p4", "p4m"])
each_order = pytest.mark.parametrize("n", [1, 3, 6])
each_algorithm = pytest.mark.parametrize("algorithm", ["dense", "cyclic"])
both_kinds = pytest.mark.parametrize("separable", [True, False], ids=["separable", "full"])


def rand(*shape):
    return torch.rand(shape, dtype=torch.float64)


def make_features(spatial, n, *, separable=True, algorithm="auto"):
    """Lifting, hidden layers, norm, dropout and pooling, with strides that suit 13 pixels."""
    group = {"rotations": n, "spatial": spatial}
    kind = {"separable": separable, "algorithm": algorithm}
    return nn.Sequential(
        CELiftConv2d(3, 2, 3, padding=1, lifting="hsv", **group),
        CEBatchNorm2d(2, spatial=spatial),
        nn.ReLU(),
        CEConv2d(2, 4, 3, padding=1, groups=2, **kind, **group),
        CEMaxPool2d(3, 2, 1),
        CEDropout2d(0.3, spatial=spatial),
        CEConv2d(4, 3, 3, stride=2, padding=1, **kind, **group),
    ).double()


@pytest.mark.parametrize(
    ("n", "algorithm"), [(1, "dense"), (3, "dense"), (3, "cyclic"), (6, "cyclic")]
)
@both_kinds
@each_group
def test_features_turn_and_roll_exactly(spatial, n, separable, algorithm):
    features = make_features(spatial, n, separable=separable, algorithm=algorithm)
    assert equivariance_error(features, rand(2, 3, 13, 13), n, "hsv", spatial=spatial) <= EXACT


@pytest.mark.parametrize(
    ("pool", "n"), [*((CosetMaxPool, n) for n in (1, 3, 6)), (CosetAvgPool, 3)]
)
@each_group
def test_pooled_logits_stay(spatial, n, pool):
    features = make_features(spatial, n, separable=False)
    head = pool(spatial=spatial), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 5).double()
    network, images = nn.Sequential(features, *head), rand(2, 3, 13, 13)
    assert equivariance_error(network, images, n, "hsv", spatial=spatial) <= EXACT
    pooled = nn.Sequential(features, head[0])
    assert equivariance_error(pooled, images, n, "hsv", spatial=spatial) <= EXACT


@each_order
def test_quarter_turns_alone_do_not_cover_mirror_images(n):
    features = make_features("p4", n, separable=False)
    network = nn.Sequential(features, CosetMaxPool(spatial="p4"), nn.AdaptiveAvgPool2d(1)).eval()
    images = rand(2, 3, 13, 13)
    assert equivariance_error(network, images, n, "hsv", spatial="p4") <= EXACT
    assert equivariance_error(network, images, n, "hsv", spatial="p4m") > 1e-4


@each_group
def test_the_order_of_elements_in_the_filters_matters(spatial):
    """W[(o, s), (c, t)] has F at s⁻¹t; at ts⁻¹ or st it is no equivariant layer."""
    group, x = SpatialGroup(spatial), rand(1, 2 * SpatialGroup(spatial).order, 3, 7, 7)
    filters = rand(2, 2, group.order, 3, 3, 3)

    def bank(index):
        rows = [group.transform(filters[:, :, index(s)], s) for s in range(group.order)]
        return torch.stack(rows, 1).flatten(0, 1).flatten(1, 2)

    elements = torch.arange(group.order)
    inverse = [int(group.permute(elements, s, 0)[0]) for s in range(group.order)]
    forwards = [group.permute(elements, s, 0).argsort() for s in range(group.order)]  # t to st
    right = bank(lambda s: group.permute(elements, s, 0))
    torch.testing.assert_close(right, spatial_bank(filters.flatten(1, 2), spatial))
    wrong = {
        "st": bank(lambda s: forwards[s]),
        "no permutation": bank(lambda s: elements),
        "ts⁻¹": bank(lambda s: torch.tensor([forwards[t][inverse[s]] for t in elements])),
    }
    for name, filters_of_name in wrong.items():
        layer = lambda y, w=filters_of_name: ce_conv2d(y, w, padding=1)  # noqa: E731
        # p4 is commutative: there ts⁻¹ is s⁻¹t.
        same = spatial == "p4" and name == "ts⁻¹"
        error = equivariance_error(layer, x, 3, spatial=spatial)
        assert error <= EXACT if same else error > 1e-4


def slow_conv(x, weight, group):
    """The sum over all channels, hues and elements, one convolution at a time."""
    outputs, n, order = len(weight), x.shape[2], group.order
    channels = weight.shape[1] // order
    filters = weight.unflatten(1, (channels, order))
    elements = torch.arange(order)
    y = torch.zeros(len(x), outputs * order, *x.shape[2:], dtype=x.dtype)
    for o, s, k in itertools.product(range(outputs), range(order), range(n)):
        source = group.permute(elements, s, 0)  # s⁻¹t at t
        for c, t, r in itertools.product(range(channels), range(order), range(n)):
            kernel = group.transform(filters[o, c, source[t], (r - k) % n], s)
            image = x[:, c * order + t, r][:, None]
            y[:, o * order + s, k] += F.conv2d(image, kernel[None, None], padding=1)[:, 0]
    return y


@each_algorithm
@pytest.mark.parametrize(("spatial", "n"), [("p4", 3), ("p4", 1), ("p4m", 2)])
def test_hidden_layer_is_the_sum_over_the_group(spatial, n, algorithm, relative_error):
    group = SpatialGroup(spatial)
    x, weight = rand(1, 2 * group.order, n, 4, 4), rand(2, 2 * group.order, n, 3, 3)
    y = ce_conv2d(x, weight, padding=1, algorithm=algorithm, spatial=spatial)
    assert relative_error(y, slow_conv(x, weight, group)) < 1e-12


@each_group
def test_separable_filters_are_a_product(spatial, relative_error):
    layer = CEConv2d(2, 3, 3, padding=1, rotations=4, spatial=spatial).double()
    x = rand(2, 2 * SpatialGroup(spatial).order, 4, 6, 6)
    full = layer.weight * layer.pointwise_weight
    y = ce_conv2d(x, full, None, layer.bias, padding=1, spatial=spatial)
    assert relative_error(layer(x), y) < 1e-12


@each_group
def test_lifting_turns_filters(spatial, relative_error):
    group, images = SpatialGroup(spatial), rand(2, 3, 6, 6)
    layer = CELiftConv2d(3, 2, 3, rotations=4, lifting="hsv", spatial=spatial).double()
    y = layer(images)
    for s, k in itertools.product(range(group.order), range(4)):
        filters = group.transform(layer.weight.squeeze(2), s)
        expected = F.conv2d(shift_hue(images, -k / 4), filters, layer.bias)
        assert relative_error(y[:, s :: group.order, k], expected) < 1e-12


def test_p1_is_bitwise_what_it_was():
    """The default takes the same operations, in the same order, as a layer without the option."""
    torch.manual_seed(0)
    features = make_features("p1", 3).eval()
    assert not any("spatial" in repr(module) for module in features)
    for module in features:
        weight = getattr(module, "weight", None)
        if weight is not None and weight.ndim == 5:
            assert spatial_bank(weight, "p1") is weight


@each_group
def test_norm_shares_statistics_over_all_elements(spatial, relative_error):
    order = SpatialGroup(spatial).order
    norm, plain = CEBatchNorm2d(3, spatial=spatial).double(), nn.BatchNorm3d(3).double()
    x = rand(2, 3 * order, 4, 5, 5)
    together = x.unflatten(1, (3, order)).flatten(2, 3)
    expected = plain(together).unflatten(2, (order, 4)).flatten(1, 2)
    assert relative_error(norm(x), expected) < 1e-12
    assert relative_error(norm.running_var, plain.running_var) < 1e-12
    assert relative_error(norm.eval()(x), plain.eval()(together).view_as(x)) < 1e-12


@pytest.mark.parametrize("inplace", [False, True])
def test_dropout_drops_all_elements_of_a_channel(inplace):
    x = torch.ones(8, 16 * 4, 3, 2, 2)
    y = CEDropout2d(0.5, inplace, spatial="p4")(x).unflatten(1, (16, 4))
    assert set(y.unique().tolist()) == {0.0, 2.0}
    assert torch.equal(y.amin((2, 3, 4, 5)), y.amax((2, 3, 4, 5)))
    assert torch.equal(CEDropout2d(0.5, spatial="p4").eval()(x), x)


@pytest.mark.slow
@each_algorithm
@each_group
def test_gradients(spatial, algorithm):
    order = SpatialGroup(spatial).order
    x = rand(1, order, 3, 3, 3).requires_grad_()
    weight, group = rand(1, order, 1, 3, 3).requires_grad_(), rand(1, order, 3, 1, 1)
    group.requires_grad_()
    bias = rand(1).requires_grad_()

    def layer(*tensors):
        return ce_conv2d(*tensors, padding=1, algorithm=algorithm, spatial=spatial)

    assert torch.autograd.gradcheck(layer, (x, weight, group, bias), fast_mode=True)


@pytest.mark.parametrize("form", ["dense", "cyclic"])
@each_order
@each_group
def test_folded(spatial, n, form, relative_error):
    head = CosetMaxPool(spatial=spatial), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    network, images = nn.Sequential(make_features(spatial, n), *head), rand(2, 3, 13, 13)
    network(images)  # statistics of the norm
    network.eval()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    assert relative_error(fold(network, form)(images), network(images)) < 1e-12
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name])


def test_folded_with_parametrized_and_shared_weights(relative_error):
    network = nn.Sequential(make_features("p4", 2), CosetMaxPool(spatial="p4")).eval()
    lift, *_, last = network[0]
    shared = CEConv2d(3, 3, 3, rotations=2, spatial="p4", bias=False).double()
    network[0].extend([shared, nn.ReLU(), shared])
    for layer in (lift, last):
        nn.utils.parametrizations.weight_norm(layer)
    images = rand(2, 3, 21, 21)
    for form in ("dense", "cyclic"):
        assert relative_error(fold(network, form)(images), network(images)) < 1e-12
    assert nn.utils.parametrize.is_parametrized(lift)  # as it was


@pytest.mark.slow
def test_compiled(relative_error):
    # Tracing takes as long as there are filters to turn: those of images and of features, once.
    features, images = make_features("p4m", 2)[:4].eval(), rand(2, 3, 9, 9)
    # Inductor is tried in test_compile.py; its C++ of these many copies takes a minute.
    compiled = torch.compile(features, backend="aot_eager", fullgraph=True, dynamic=False)
    expected, y = features(images), compiled(images)
    assert relative_error(y, expected) < 1e-12
    y.square().sum().backward()
    gradients = [parameter.grad.clone() for parameter in features.parameters()]
    features.zero_grad()
    expected.square().sum().backward()
    for parameter, gradient in zip(features.parameters(), gradients, strict=True):
        assert relative_error(gradient, parameter.grad) < 1e-10


def test_state_dict_is_loaded_by_another_algorithm_and_dtype():
    dense = CEConv2d(2, 3, 3, spatial="p4m", algorithm="dense")
    assert [list(value.shape) for value in dense.state_dict().values()] == [
        [3, 16, 1, 3, 3], [3, 16, 3, 1, 1], [3],
    ]  # fmt: skip
    cyclic = CEConv2d(2, 3, 3, spatial="p4m", algorithm="cyclic").double()
    cyclic.load_state_dict(dense.state_dict())
    x = rand(1, 16, 3, 5, 5)
    torch.testing.assert_close(cyclic(x).float(), dense(x.float()), rtol=1e-4, atol=1e-5)


class TestErrors:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"kernel_size": (1, 3)}, "kernel_size must be the same for both, got \\(1, 3\\)"),
            ({"kernel_size": 3, "stride": (1, 2)}, "stride must be the same for both"),
            ({"kernel_size": 3, "padding": (0, 1)}, "padding must be the same for both"),
            ({"kernel_size": 3, "dilation": (2, 1)}, "dilation must be the same for both"),
            ({"kernel_size": 4, "padding": "same"}, "kernel_size must be odd, got 4"),
            ({"kernel_size": 3, "spatial": "p2"}, "spatial must be one of .*; got 'p2'"),
        ],
    )
    def test_options(self, options, message):
        for layer, channels in ((CELiftConv2d, 3), (CEConv2d, 4)):
            with pytest.raises(ValueError, match=message):
                layer(channels, 4, **{"spatial": "p4", **options})

    def test_functions_check_the_same(self):
        x, images = torch.rand(1, 8, 3, 5, 5), torch.rand(1, 3, 5, 5)
        with pytest.raises(ValueError, match="3 filters cannot be divided into 2 groups"):
            ce_conv2d(x, torch.rand(3, 4, 3, 3, 3), groups=2, padding=1, spatial="p4")
        with pytest.raises(ValueError, match="stride must be the same for both"):
            ce_conv2d(x, torch.rand(2, 8, 3, 3, 3), stride=(1, 2), spatial="p4")
        filters = torch.rand(2, 3, 1, 3, 3)
        with pytest.raises(ValueError, match="padding must be the same for both"):
            ce_lift_conv2d(images, filters, padding=(0, 1), rotations=3, spatial="p4")

    def test_channels(self):
        x = torch.rand(1, 6, 3, 5, 5)
        with pytest.raises(ValueError, match=r"expects 8 channels \(2 of 4 elements each\), got 6"):
            CEConv2d(2, 2, 3, spatial="p4")(x)
        with pytest.raises(ValueError, match=r"expects 8 channels \(2 of 4 elements each\), got 6"):
            CEBatchNorm2d(2, spatial="p4")(x)
        for layer in (CosetMaxPool, CosetAvgPool, CEDropout2d):
            with pytest.raises(ValueError, match=r"in groups of 4, got 6: \[1, 6, 3, 5, 5\]"):
                layer(spatial="p4")(x)
        with pytest.raises(ValueError, match="in groups of 4, got 6"):
            equivariance_error(nn.Identity(), x, spatial="p4")
        with pytest.raises(ValueError, match=r"expects filters \[O, C \* 4, n, k, k\]"):
            spatial_bank(torch.rand(1, 6, 1, 3, 3), "p4")
        with pytest.raises(ValueError, match="must be square"):
            spatial_bank(torch.rand(1, 4, 1, 3, 1), "p4")

    def test_assert_equivariant_says_what_holds(self):
        network = nn.Sequential(make_features("p1", 3), CosetMaxPool())
        images = rand(1, 3, 13, 13)
        with pytest.raises(AssertionError, match=r"hue rotations times p4 .*to hue shifts, with"):
            assert_equivariant(network, images, 3, "hsv", spatial="p4")
        network = nn.Sequential(make_features("p4", 1), CosetMaxPool(spatial="p4"))
        with pytest.raises(AssertionError, match=r"to turns, with spatial='p4'. The .* '0.0'"):
            assert_equivariant(network, images, 1, spatial="p4m")
        with pytest.raises(AssertionError, match=r"00e-05. The first to break it is '0'"):
            assert_equivariant(nn.Sequential(nn.Conv2d(3, 2, 3)).double(), images, 1, spatial="p4")

    def test_assert_equivariant_names_the_first_layer_that_breaks_it(self):
        lift = CELiftConv2d(3, 2, 3, padding=1, spatial="p4")
        broken = CEConv2d(8, 8, 3, padding=1)
        network = nn.Sequential(lift, broken, CEConv2d(2, 2, 3, spatial="p4")).double()
        with pytest.raises(AssertionError, match="'1' \\(CEConv2d\\)"):
            assert_equivariant(network, rand(1, 3, 9, 9), 3, spatial="p4")

    def test_even_sizes_break_it_with_a_stride(self):
        features = make_features("p4", 3, separable=False)
        with pytest.raises(AssertionError, match=r"'4' \(CEMaxPool2d\); with a stride, the image"):
            assert_equivariant(features, rand(1, 3, 12, 12), 3, "hsv", spatial="p4")
