import pytest
import torch
from torch import nn

from equicolor.color import shift_hue
from equicolor.conversion import convert
from equicolor.nn import (
    CEBatchNorm2d,
    CEConv2d,
    CEDropout2d,
    CELiftConv2d,
    CosetFlatten,
    CosetMaxPool,
)
from equicolor.testing import assert_equivariant, equivariance_error

EXACT = 1e-12


class RotationBias(nn.Module):
    """A broken layer: every rotation has a bias of its own."""

    def __init__(self, rotations):
        super().__init__()
        self.bias = nn.Parameter(torch.linspace(0, 1, rotations, dtype=torch.float64))

    def forward(self, x):
        return x + self.bias.view(-1, 1, 1)


class CallCounter(nn.Module):
    """A module whose buffers change with every call, in place or by assignment."""

    def __init__(self, *, assign=False, fail=False):
        super().__init__()
        self.assign, self.fail = assign, fail
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        if self.assign:
            self.calls = self.calls + 1
        else:
            self.calls.add_(1)
        if self.fail:
            raise RuntimeError("broken module")
        return x.mean(1)


@pytest.fixture
def images():
    return torch.rand(2, 3, 8, 8, dtype=torch.float64)


@pytest.fixture
def features():
    return torch.randn(2, 3, 4, 6, 6, dtype=torch.float64)


class TestMeasures:
    @pytest.mark.parametrize("action", ["rgb", "hsv"])
    def test_a_layer_on_images(self, action, images):
        layer = CELiftConv2d(3, 4, 3, rotations=5, lifting=action).double()
        assert equivariance_error(layer, images, 5, action) < EXACT

    @pytest.mark.parametrize("algorithm", ["dense", "cyclic"])
    def test_a_hidden_layer_on_features(self, algorithm, features):
        layer = CEConv2d(3, 5, 3, rotations=4, algorithm=algorithm).double()
        assert equivariance_error(layer, features, 4) < EXACT

    @pytest.mark.parametrize("head", ["features", "max", "avg"])
    def test_a_whole_network(self, head, make_network):
        images = torch.rand(2, 3, 12, 12, dtype=torch.float64)
        network = make_network(4, head=head).double()
        assert equivariance_error(network, images, 4) < 1e-10

    def test_a_plain_function(self, images):
        assert equivariance_error(lambda x: x.mean(1), images, 7) < EXACT
        assert equivariance_error(lambda x: x[:, 0], images, 7) > 0.1

    def test_a_random_layer_with_the_same_numbers_on_both_sides(self, images):
        network = nn.Sequential(CELiftConv2d(3, 16, 3), CEDropout2d(0.5), CosetMaxPool()).double()
        network.train()
        assert not torch.equal(network(images), network(images))
        assert equivariance_error(network, images) < EXACT

    def test_a_custom_action(self, images):
        def roll(x, turns):
            return x.roll(round(3 * turns), 1)

        assert equivariance_error(CELiftConv2d(3, 4, 3).double(), images, 3, roll) < EXACT
        assert equivariance_error(lambda x: x[:, :1], images, 3, roll) > 0.1

    def test_defaults_are_three_rgb_rotations(self, images):
        layer = CELiftConv2d(3, 4, 3).double()
        assert equivariance_error(layer, images) == equivariance_error(layer, images, 3, "rgb")

    def test_the_worst_element_relative_to_the_output(self):
        # f(x) = 2 everywhere but after half a turn, where it is 5: |5 - 2| / |2|.
        def action(x, turns):
            return x + 3 * (turns == 0.5)

        images = torch.full((1, 3, 2, 2), 2.0)
        assert equivariance_error(lambda x: x, images, 4, action) == pytest.approx(1.5)
        assert equivariance_error(lambda x: x, images, 3, action) == 0

    def test_a_single_rotation_has_no_error(self, images):
        assert equivariance_error(lambda x: x[:, 0], images, 1) == 0

    def test_in_float32(self, tolerance):
        error = equivariance_error(CELiftConv2d(3, 4, 3), torch.rand(2, 3, 8, 8))
        assert isinstance(error, float)
        assert 0 <= error <= tolerance[torch.float32]


class TestDetects:
    def test_a_bias_per_rotation(self, images):
        network = nn.Sequential(CELiftConv2d(3, 4, 3), RotationBias(3)).double()
        assert equivariance_error(network, images) > 0.1
        with pytest.raises(AssertionError):
            assert_equivariant(network, images)

    def test_flattened_rotations(self, images):
        network = nn.Sequential(CELiftConv2d(3, 4, 3), CosetFlatten()).double()
        assert equivariance_error(network, images, output="invariant") > 1e-3

    def test_features_where_invariance_is_promised(self, images):
        layer = CELiftConv2d(3, 4, 3).double()
        assert equivariance_error(layer, images) < EXACT
        assert equivariance_error(layer, images, output="features") < EXACT
        assert equivariance_error(layer, images, output="invariant") > 1e-3

    def test_a_roll_in_the_wrong_direction(self, features):
        assert equivariance_error(lambda x: x.flip(2), features, 4) > 0.1

    def test_nan_is_an_infinite_error(self, images):
        assert equivariance_error(lambda x: x * torch.nan, images) == torch.inf
        # Only one element of the group: a maximum must not drop it.
        broken = equivariance_error(lambda x: x, images, 4, lambda x, t: x / 0 if t == 0.5 else x)
        assert broken > 1e300
        with pytest.raises(AssertionError, match="relative error inf"):
            assert_equivariant(lambda x: x * torch.nan, images)

    def test_errors_of_large_half_precision_outputs(self):
        # The norm of these features overflows float16, and x / inf is no error at all.
        x = torch.full((1, 4, 3, 64, 64), 200.0, dtype=torch.float16)
        scales = torch.tensor([1, 2, 3], dtype=torch.float16).view(3, 1, 1)
        assert equivariance_error(lambda x: x * scales, x) == pytest.approx(0.655, abs=0.01)


class TestLeavesNoTrace:
    def test_on_batch_statistics(self, images):
        network = nn.Sequential(CELiftConv2d(3, 4, 3), CEBatchNorm2d(4)).double().train()
        kept = {name: value.clone() for name, value in network.state_dict().items()}
        equivariance_error(network, images)
        assert network.training
        for name, value in network.state_dict().items():
            assert torch.equal(value, kept[name]), name

    @pytest.mark.parametrize("assign", [False, True], ids=["in place", "assigned"])
    def test_on_buffers(self, assign, images):
        module = CallCounter(assign=assign)
        equivariance_error(module, images)
        assert module.calls == 0

    def test_when_the_module_raises(self, images):
        module = CallCounter(fail=True)
        with pytest.raises(RuntimeError, match="broken module"):
            equivariance_error(module, images)
        assert module.calls == 0

    def test_on_the_random_state(self, images):
        before = torch.get_rng_state()
        equivariance_error(lambda x: x + torch.rand(1), images)
        assert torch.equal(torch.get_rng_state(), before)

    def test_on_gradients_and_inputs(self, images):
        layer, kept = CELiftConv2d(3, 4, 3).double(), images.clone()
        equivariance_error(layer, images.requires_grad_())
        assert layer.weight.grad is None
        assert images.grad is None
        assert torch.equal(images, kept)


class TestAssertion:
    def test_passes_in_silence(self, images):
        layer = CELiftConv2d(3, 4, 3, rotations=5, lifting="hsv").double()
        assert assert_equivariant(layer, images, 5, "hsv", tolerance=EXACT) is None

    def test_names_the_module_the_group_and_the_numbers(self, images):
        layer = CELiftConv2d(3, 4, 3, rotations=5, lifting="hsv").double()
        error = equivariance_error(layer, images, 5, "rgb")
        with pytest.raises(AssertionError) as caught:
            assert_equivariant(layer, images, 5, "rgb", tolerance=1e-4)
        assert str(caught.value) == (
            "CELiftConv2d is not equivariant to 5 hue rotations (action 'rgb'): "
            f"relative error {error:.2e}, allowed 1.00e-04. "
            "It is equivariant to the action 'hsv': pass action='hsv'"
        )

    def test_names_functions(self, images):
        def first_channel(x):
            return x[:, 0]

        with pytest.raises(AssertionError, match=r"first_channel.*\(action 'shift_hue'\)"):
            assert_equivariant(first_channel, images, 5, shift_hue)

    def test_tolerance_is_the_largest_error_allowed(self, images):
        def nearly(x):
            return x.mean(1) + 1e-3 * x[:, 0]

        error = equivariance_error(nearly, images)
        assert_equivariant(nearly, images, tolerance=error)
        with pytest.raises(AssertionError):
            assert_equivariant(nearly, images, tolerance=0.99 * error)

    def test_output_is_passed_on(self, images):
        layer = CELiftConv2d(3, 4, 3).double()
        assert_equivariant(layer, images, output="features")
        with pytest.raises(AssertionError):
            assert_equivariant(layer, images, output="invariant")


class TestImagesThatTestNothing:
    @pytest.mark.parametrize("action", ["rgb", "hsv", lambda x, turns: x.roll(round(3 * turns), 1)])
    @pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
    @pytest.mark.parametrize("grey", [0.0, 0.3, 0.5])
    def test_grey_ones(self, grey, dtype, action):
        images = torch.full((2, 3, 8, 8), grey, dtype=dtype)
        with pytest.raises(ValueError, match="images without hue test nothing"):
            assert_equivariant(lambda x: x[:, :1], images, 3, action, tolerance=0.01)
        assert equivariance_error(lambda x: x[:, :1], images, 3, action) < 0.01
        images[0, 0, 0, 0] += 0.1  # one pixel with a hue
        assert_equivariant(lambda x: x.mean(1), images, 3, action, tolerance=0.01)

    def test_features_that_are_equal_in_all_rotations(self):
        features = torch.rand(2, 4, 1, 5, 5).expand(-1, -1, 3, -1, -1)
        with pytest.raises(ValueError, match="features that differ between rotations"):
            assert_equivariant(lambda x: x, features)

    def test_no_images(self):
        for measure in (assert_equivariant, equivariance_error):
            with pytest.raises(ValueError, match=r"at least one image, got \[0, 3, 8, 8\]"):
                measure(lambda x: x, torch.rand(0, 3, 8, 8))

    def test_grey_ones_tell_of_turns_alone(self):
        grey = torch.rand(2, 1, 8, 8).expand(-1, 3, -1, -1)
        assert_equivariant(lambda x: x.mean((2, 3)), grey, 1, spatial="p4")
        with pytest.raises(ValueError, match="images without hue"):
            assert_equivariant(lambda x: x.mean((2, 3)), grey, 3, spatial="p4")


class PerChannel(nn.Module):
    """Normalises images, by numbers of their own for the three channels if there are three."""

    def __init__(self, mean, std):
        super().__init__()
        self.mean, self.std = (torch.tensor(each).double().view(-1, 1, 1) for each in (mean, std))

    def forward(self, x):
        return (x - self.mean) / self.std


class InCode(nn.Module):
    """Does in its own code, before or between its layers, what it is given."""

    def __init__(self, before=None, between=None):
        super().__init__()
        self.lift, self.conv, self.pool = CELiftConv2d(3, 4, 3), CEConv2d(4, 4, 3), CosetMaxPool()
        self.before, self.between = (step or (lambda x: x) for step in (before, between))

    def forward(self, x):
        return self.pool(self.conv(self.between(self.lift(self.before(x)))))


def scale_rotations(x):
    return x * torch.arange(1, 4).view(3, 1, 1)


class ScaledAfter(nn.Sequential):
    def forward(self, x):
        return scale_rotations(super().forward(x))


IMAGENET = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
NUMBERS = (
    r"it normalises the three channels differently, by mean \[0.485, 0.456, 0.406\] and standard "
    r"deviation \[0.229, 0.224, 0.225\]; use one mean and one standard deviation"
)


class TestNamesTheCause:
    """The message names what breaks equivariance, and blames nobody else."""

    @pytest.mark.parametrize(
        ("network", "message"),
        [
            (
                nn.Sequential(CELiftConv2d(3, 4, 3), nn.Sequential(nn.ReLU(), RotationBias(3))),
                r"The first to break it is '1.1' \(RotationBias\)$",
            ),
            (
                nn.Sequential(
                    CELiftConv2d(3, 4, 3), CosetFlatten(), nn.ReLU(), nn.Conv2d(12, 4, 1)
                ),
                r"The first to break it is '3' \(Conv2d\)$",
            ),
            (
                nn.Sequential(PerChannel(*IMAGENET), CELiftConv2d(3, 4, 3), CosetMaxPool()),
                rf"The first to break it is '0' \(PerChannel\): {NUMBERS}",
            ),
            (
                nn.Sequential(PerChannel([0.4], [0.2]), nn.Conv2d(3, 4, 3)),
                r"The first to break it is '1' \(Conv2d\)$",
            ),
            (InCode(), None),
            (
                InCode(before=PerChannel(*IMAGENET).forward),
                rf"is the code of InCode, before 'lift' \(CELiftConv2d\): {NUMBERS}",
            ),
            (
                nn.Sequential(InCode(between=scale_rotations), nn.ReLU()),
                r"is the code of '0' \(InCode\), before '0.conv' \(CEConv2d\)$",
            ),
            (
                nn.Sequential(CELiftConv2d(3, 4, 3), ScaledAfter(CEConv2d(4, 4, 3))),
                r"is the code of '1' \(ScaledAfter\), after its modules$",
            ),
        ],
    )
    def test_inside(self, network, message, images):
        network = network.double()
        if message is None:
            assert_equivariant(network, images)
            return
        kept = {name: value.clone() for name, value in network.state_dict().items()}
        with pytest.raises(AssertionError, match=message):
            assert_equivariant(network, images)
        assert all(torch.equal(value, kept[name]) for name, value in network.state_dict().items())
        assert not any(module._forward_hooks for module in network.modules())

    def test_maps_of_three_channels_in_a_network_of_features(self):
        pool = CosetMaxPool(spatial="p4")
        network = nn.Sequential(CEConv2d(3, 3, 1, spatial="p4"), pool, nn.Conv2d(3, 3, 3)).double()
        features = torch.rand(2, 12, 3, 6, 6, dtype=torch.float64)
        with pytest.raises(AssertionError, match=r"The first to break it is '2' \(Conv2d\)$"):
            assert_equivariant(network, features, spatial="p4")

    @pytest.mark.parametrize("value", [torch.nan, torch.inf])
    def test_images_that_are_not_finite(self, value, images):
        network = nn.Sequential(CELiftConv2d(3, 4, 3), nn.ReLU()).double()
        images[0, 0, 0, 0] = value
        with pytest.raises(AssertionError, match=r"inf, allowed .*\. The images are not finite$"):
            assert_equivariant(network, images)

    @pytest.mark.parametrize("lifting", ["rgb", "hsv"])
    def test_the_other_action(self, lifting, images):
        network = nn.Sequential(CELiftConv2d(3, 4, 3, rotations=4, lifting=lifting), CosetMaxPool())
        other = {"rgb": "hsv", "hsv": "rgb"}[lifting]
        with pytest.raises(AssertionError, match=rf"equivariant to the action '{lifting}'"):
            assert_equivariant(network.double(), images, 4, other)

    def test_rotations_in_the_batch(self, images):
        plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3))
        network = convert(plain, 3, normalization=None, image_size=8).double()
        assert_equivariant(network, images, 3, "hsv")
        network.network[1].register_forward_hook(
            lambda module, inputs, output: output + output.flip(0)
        )
        with pytest.raises(AssertionError, match=r"The first to break it is 'network.1' \(ReLU\)$"):
            assert_equivariant(network, images, 3, "hsv")

    def test_what_cannot_be_tried_is_left_out(self, images):
        def first_channel(x):
            if x.min() < 0:
                raise ValueError("expected images in [0, 1]")
            return x[:, 0]

        with pytest.raises(AssertionError, match=r"allowed 1.00e-05$"):
            assert_equivariant(first_channel, images, 5, "hsv")


def test_modules_that_work_in_place_are_measured_and_leave_the_input():
    features = torch.randn(2, 4, 3, 5, 5)
    before = features.clone()
    assert equivariance_error(nn.LeakyReLU(0.1, inplace=True), features) == 0
    assert torch.equal(features, before)
