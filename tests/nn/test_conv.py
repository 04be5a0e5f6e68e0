import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from equicolor import HueGroup
from equicolor.groups import cyclic_algorithm
from equicolor.nn import CEConv2d, CELiftConv2d
from equicolor.nn.functional import ce_conv2d, ce_lift_conv2d

each_algorithm = pytest.mark.parametrize("algorithm", ["dense", "cyclic"])
both_kinds = pytest.mark.parametrize("separable", [True, False], ids=["separable", "full"])
each_mode = pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])

# Every option of Conv2d, alone and mixed: none may be ignored.
OPTIONS = [
    {},
    {"stride": 2},
    {"stride": (1, 2), "padding": (2, 0)},
    {"padding": "same"},
    {"padding": "valid"},
    {"padding": "same", "dilation": (1, 2), "padding_mode": "reflect"},
    {"padding": "valid", "padding_mode": "reflect"},
    {"dilation": 2},
    {"bias": False},
    {"padding": 1, "padding_mode": "reflect"},
    {"padding": (1, 2), "padding_mode": "replicate", "stride": 2},
    {"padding": (2, 1), "padding_mode": "circular", "dilation": (2, 1)},
]


def rand(*shape):
    return torch.randn(shape, dtype=torch.float64)


class TestOneRotation:
    """With a single rotation there is no group left: the layers are Conv2d, options and all."""

    @pytest.mark.parametrize("kernel", [3, (2, 4), 1])
    @pytest.mark.parametrize("options", OPTIONS, ids=str)
    def test_lifting_is_conv2d(self, options, kernel):
        layer = CELiftConv2d(3, 4, kernel, rotations=1, **options).double()
        self.compare(layer, nn.Conv2d(3, 4, kernel, **options).double(), rand(2, 3, 8, 9))

    @pytest.mark.parametrize("kernel", [3, (2, 4), 1])
    @pytest.mark.parametrize("options", [*OPTIONS, {"groups": 2}], ids=str)
    def test_hidden_is_conv2d(self, options, kernel):
        layer = CEConv2d(4, 6, kernel, rotations=1, separable=False, **options).double()
        self.compare(layer, nn.Conv2d(4, 6, kernel, **options).double(), rand(2, 4, 8, 9))

    @staticmethod
    def compare(layer, plain, images):
        state = {name: value.squeeze(2) if value.ndim == 5 else value
                 for name, value in layer.state_dict().items()}  # fmt: skip
        plain.load_state_dict(state)
        x = images.unsqueeze(2) if isinstance(layer, CEConv2d) else images
        y, expected = layer(x), plain(images).unsqueeze(2)
        assert y.shape == expected.shape
        assert (y - expected).abs().max() < 1e-13


class TestPadding:
    @each_mode
    @each_algorithm
    @pytest.mark.parametrize("padding", [2, (1, 2), "same"])
    def test_hidden_pads_each_rotation(self, padding, algorithm, mode, slow_conv, relative_error):
        layer = CEConv2d(
            2, 3, (2, 3), padding=padding, dilation=(1, 2), padding_mode=mode, algorithm=algorithm
        ).double()
        x = rand(2, 2, 3, 6, 7)
        # F.pad wants width first; "same" puts the odd pixel of height 2 at the bottom.
        sides = {2: (2, 2, 2, 2), (1, 2): (2, 2, 1, 1), "same": (2, 2, 0, 1)}[padding]
        name = "constant" if mode == "zeros" else mode
        padded = torch.stack([F.pad(x[:, :, r], sides, mode=name) for r in range(3)], 2)
        weights = layer.weight, layer.pointwise_weight, layer.bias
        assert relative_error(layer(x), slow_conv(padded, *weights, dilation=(1, 2))) < 1e-12

    @each_mode
    @pytest.mark.parametrize("lifting", ["rgb", "hsv"])
    def test_lifting_pads_the_image(self, lifting, mode, slow_lift, relative_error, slow_shift):
        layer = CELiftConv2d(
            3, 2, 3, padding=(1, 2), rotations=4, lifting=lifting, padding_mode=mode
        ).double()
        images = torch.rand(2, 3, 5, 6, dtype=torch.float64)
        padded = F.pad(images, (2, 2, 1, 1), mode="constant" if mode == "zeros" else mode)
        if lifting == "rgb":
            expected = slow_lift(padded, layer.weight, layer.bias, rotations=4)
        else:
            shifted = [slow_shift(padded, -k / 4) for k in range(4)]
            rows = [F.conv2d(image, layer.weight.squeeze(2), layer.bias) for image in shifted]
            expected = torch.stack(rows, 2)
        assert relative_error(layer(images), expected) < 1e-12


class TestModulesAreTheirFunctions:
    @both_kinds
    @each_algorithm
    @pytest.mark.parametrize("n", [2, 3, 6])
    def test_hidden(self, n, algorithm, separable, relative_error):
        layer = CEConv2d(
            4, 6, 3, 2, 1, 1, 2, rotations=n, separable=separable, algorithm=algorithm
        ).double()
        x, weights = rand(2, 4, n, 7, 7), (layer.weight, layer.pointwise_weight, layer.bias)
        expected = ce_conv2d(x, *weights, 2, 1, 1, 2, algorithm=algorithm)
        assert relative_error(layer(x), expected) < 1e-14

    @pytest.mark.parametrize("lifting", ["rgb", "hsv"])
    def test_lifting(self, lifting, relative_error):
        layer = CELiftConv2d(3, 4, 3, 2, 1, 1, rotations=5, lifting=lifting).double()
        images = torch.rand(2, 3, 7, 7, dtype=torch.float64)
        expected = ce_lift_conv2d(
            images, layer.weight, layer.bias, 2, 1, 1, rotations=5, lifting=lifting
        )
        assert relative_error(layer(images), expected) < 1e-14

    def test_auto_is_dense_or_cyclic_to_rounding(self, relative_error):
        layer = CEConv2d(16, 16, 3, rotations=12).double()
        assert layer.algorithm == "auto"
        x = rand(1, 16, 12, 5, 5)
        y = layer(x)
        for algorithm in ("dense", "cyclic"):
            layer.algorithm = algorithm
            assert relative_error(layer(x), y) < 1e-12


class TestLearnable:
    def test_starts_as_the_fixed_layer(self, relative_error):
        layer = CELiftConv2d(3, 4, 3, rotations=6, learnable=True, dtype=torch.float64)
        fixed = CELiftConv2d(3, 4, 3, rotations=6, dtype=torch.float64)
        fixed.load_state_dict({"weight": layer.weight, "bias": layer.bias})
        images = rand(2, 3, 5, 5)
        assert relative_error(layer(images), fixed(images)) < 1e-12

    def test_powers_of_the_generator_act_on_the_filters(self, relative_error):
        layer = CELiftConv2d(3, 2, 3, rotations=3, learnable=True, bias=False).double()
        nn.init.normal_(layer.transformation_matrix)
        images, generator = rand(1, 3, 5, 5), layer.transformation_matrix
        rows = []
        for k in range(3):
            power = torch.linalg.matrix_power(generator, k)
            filters = torch.einsum("ij,ojhw->oihw", power, layer.weight.squeeze(2))
            rows.append(F.conv2d(images, filters))
        assert relative_error(layer(images), torch.stack(rows, 2)) < 1e-12

    def test_gradcheck(self):
        layer = CELiftConv2d(3, 2, 2, rotations=3, learnable=True).double()
        images = rand(1, 3, 3, 3).requires_grad_()
        names = [name for name, _ in layer.named_parameters()]
        assert "transformation_matrix" in names

        def call(images, *values):
            state = dict(zip(names, values, strict=True))
            return torch.func.functional_call(layer, state, images)

        assert torch.autograd.gradcheck(call, (images, *layer.parameters()))


class TestInitialisation:
    @pytest.mark.parametrize(
        ("layer", "fan_in"),
        [
            (CELiftConv2d(3, 256, 5, rotations=4), 3 * 25),
            (CELiftConv2d(3, 256, (3, 5), lifting="hsv", rotations=6), 3 * 15),
            (CEConv2d(16, 256, (3, 5), rotations=4), 16 * 4 * 15),
            (CEConv2d(16, 256, 3, rotations=6, separable=False), 16 * 6 * 9),
            (CEConv2d(16, 256, 3, rotations=2, groups=4), 4 * 2 * 9),
        ],
        ids=["rgb", "hsv", "separable", "full", "grouped"],
    )
    def test_parameters_fill_the_uniform_bound(self, layer, fan_in):
        bound = 1 / math.sqrt(fan_in)
        layer.reset_parameters()
        for name, parameter in layer.named_parameters():
            values = parameter.detach() / bound
            assert 0.95 < values.abs().max() <= 1 + 1e-6, name
            assert values.mean().abs() < 0.15, name
            assert values.var() == pytest.approx(1 / 3, rel=0.15), name

    def test_reset_draws_anew_and_follows_the_seed(self):
        layer = CEConv2d(4, 4, 3)
        before = layer.weight.detach().clone()
        torch.manual_seed(1)
        layer.reset_parameters()
        first = layer.weight.detach().clone()
        torch.manual_seed(1)
        layer.reset_parameters()
        assert torch.equal(layer.weight, first)
        assert not torch.equal(first, before)

    def test_reset_returns_a_learnable_generator_to_the_rotation(self):
        layer = CELiftConv2d(3, 4, 3, rotations=5, learnable=True).double()
        nn.init.zeros_(layer.transformation_matrix)
        layer.reset_parameters()
        assert torch.equal(layer.transformation_matrix, HueGroup(5).matrix(1))


class TestState:
    @pytest.mark.parametrize(
        ("layer", "shapes"),
        [
            (CELiftConv2d(3, 8, (3, 5)), {"weight": (8, 3, 1, 3, 5), "bias": (8,)}),
            (CELiftConv2d(3, 8, 1, bias=False, lifting="hsv"), {"weight": (8, 3, 1, 1, 1)}),
            (
                CELiftConv2d(3, 8, 3, learnable=True),
                {"weight": (8, 3, 1, 3, 3), "bias": (8,), "transformation_matrix": (3, 3)},
            ),
            (
                CEConv2d(4, 8, 3, rotations=5),
                {"weight": (8, 4, 1, 3, 3), "pointwise_weight": (8, 4, 5, 1, 1), "bias": (8,)},
            ),
            (
                CEConv2d(4, 8, 3, rotations=5, separable=False, bias=False),
                {"weight": (8, 4, 5, 3, 3)},
            ),
            (
                CEConv2d(4, 8, 3, groups=2),
                {"weight": (8, 2, 1, 3, 3), "pointwise_weight": (8, 2, 3, 1, 1), "bias": (8,)},
            ),
        ],
        ids=["lift", "lift hsv", "learnable", "separable", "full", "grouped"],
    )
    def test_state_dict_is_the_documented_parameters(self, layer, shapes):
        for mode in (True, False):
            state = layer.train(mode).state_dict()
            assert {name: tuple(value.shape) for name, value in state.items()} == shapes
        assert {name for name, _ in layer.named_parameters()} == set(shapes)

    @each_algorithm
    def test_constants_are_those_of_the_group(self, algorithm):
        layer = CEConv2d(2, 2, 1, rotations=5, algorithm=algorithm).double()
        for name, table in cyclic_algorithm(5)._asdict().items():
            assert torch.equal(layer.get_buffer(name), table)
        assert torch.equal(CELiftConv2d(3, 2, 1).double().matrices, HueGroup(3).matrices)


@pytest.mark.parametrize(
    ("layer", "text"),
    [
        (
            CELiftConv2d(3, 8, 3),
            "CELiftConv2d(3, 8, kernel_size=(3, 3), rotations=3, stride=(1, 1), lifting='rgb')",
        ),
        (
            CELiftConv2d(3, 8, 3, 2, 1, bias=False, rotations=6, learnable=True),
            "CELiftConv2d(3, 8, kernel_size=(3, 3), rotations=6, stride=(2, 2), padding=(1, 1), "
            "bias=False, lifting='rgb', learnable=True)",
        ),
        (
            CEConv2d(8, 4, (1, 3), padding="same", groups=2, padding_mode="circular", rotations=12),
            "CEConv2d(8, 4, kernel_size=(1, 3), rotations=12, stride=(1, 1), padding='same', "
            "groups=2, padding_mode='circular', separable=True, algorithm='auto')",
        ),
        (
            CEConv2d(8, 4, 3, dilation=2, separable=False, algorithm="cyclic"),
            "CEConv2d(8, 4, kernel_size=(3, 3), rotations=3, stride=(1, 1), dilation=(2, 2), "
            "separable=False, algorithm='cyclic')",
        ),
    ],
)
def test_repr_shows_every_choice(layer, text):
    assert repr(layer) == text
