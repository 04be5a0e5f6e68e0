"""Receptive fields against gradients, which say what a unit depends on for one input."""

from collections import OrderedDict

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from equicolor.analysis import find_layers, receptive_fields
from equicolor.analysis.layers import LayerError
from equicolor.analysis.taps import tapped
from equicolor.models import cecnn, ciconv_resnet44, resnet44

SIZE = 21
# Some tests use even kernels with padding="same".
pytestmark = pytest.mark.filterwarnings("ignore:Using padding=.same")


class Residual(nn.Module):
    """A branch with a stride and dilation beside a shortcut, then a sum."""

    def __init__(self):
        super().__init__()
        self.branch = nn.Sequential(
            nn.Conv2d(4, 4, 3, stride=2, padding=2, dilation=2), nn.Softplus(),
            nn.Conv2d(4, 4, 3, padding=1),
        )  # fmt: skip
        self.shortcut = nn.Conv2d(4, 4, 1, stride=2)

    def forward(self, x):
        return F.softplus(self.branch(x) + self.shortcut(x))


class Branches(nn.Module):
    """Channels that see different places, side by side."""

    def __init__(self):
        super().__init__()
        self.small, self.large = nn.Conv2d(3, 2, 1), nn.Conv2d(3, 2, 5, padding=2)

    def forward(self, x):
        return torch.cat((self.small(x), self.large(x)), 1)


class Excite(nn.Module):
    """Squeeze-and-excitation: every unit sees the whole image."""

    def forward(self, x):
        return x * x.mean((2, 3), keepdim=True).sigmoid()


class Windows(nn.Module):
    """Pooling written as a reduction: local, though all results together see everything."""

    def forward(self, x):
        return x.unflatten(3, (-1, 3)).unflatten(2, (-1, 3)).mean((3, 5))


class Unfolded(nn.Module):
    """A convolution written as a product over unfolded windows."""

    def forward(self, x):
        windows = F.unfold(x, 3, padding=2, dilation=2).unflatten(1, (4, 9))
        return windows.sum(2).unflatten(2, x.shape[2:])


class ChannelsLast(nn.Module):
    """Layers on ``[B, H, W, C]``, as in ConvNeXt."""

    def __init__(self):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(4), nn.Linear(4, 8)

    def forward(self, x):
        return self.linear(self.norm(x.permute(0, 2, 3, 1)))


class Sliced(nn.Module):
    """Writes to parts of a tensor in place, and reads it through other views."""

    def forward(self, x):
        out = torch.zeros_like(x)
        view = out.permute(0, 2, 3, 1)
        out[:, :1] = x[:, 1:2]
        out[:, 1:, 2:] += x[:, 1:, :-2]
        return view.permute(0, 3, 1, 2)


def conv(*args, **options):
    return nn.Conv2d(*args, **options)


NETWORKS = {
    "conv": (nn.Sequential(conv(3, 4, 3, padding=1)), "0"),
    "valid": (nn.Sequential(conv(3, 4, 5), nn.Softplus(), conv(4, 4, (1, 4))), "2"),
    "stride": (nn.Sequential(conv(3, 4, 7, stride=2, padding=1), conv(4, 4, 3, padding=1)), "1"),
    "dilation": (nn.Sequential(conv(3, 4, 3, dilation=3, padding=2), conv(4, 4, 3)), "1"),
    "same": (nn.Sequential(conv(3, 4, 4, padding="same"), conv(4, 4, 2, stride=2)), "1"),
    "reflect": (nn.Sequential(conv(3, 4, 5, padding=2, padding_mode="reflect")), "0"),
    "circular": (nn.Sequential(conv(3, 4, 3, padding=1, padding_mode="circular")), "0"),
    "pad": (nn.Sequential(nn.ZeroPad2d((1, 2, 0, 3)), conv(3, 4, 3), conv(4, 4, 3)), "2"),
    "groups": (nn.Sequential(conv(3, 4, 1), conv(4, 4, 3, groups=4, padding=1)), "1"),
    "average": (nn.Sequential(conv(3, 4, 3), nn.AvgPool2d(3, 2, 1, ceil_mode=True)), "1"),
    "adaptive": (nn.Sequential(conv(3, 4, 3), nn.AdaptiveAvgPool2d(5), conv(4, 4, 2)), "2"),
    "transposed": (
        nn.Sequential(conv(3, 4, 3, stride=2), nn.ConvTranspose2d(4, 4, 3, 2, 1, 1)), "1",
    ),
    "upsampled": (nn.Sequential(conv(3, 4, 3, 2), nn.Upsample(scale_factor=2), conv(4, 4, 3)), "2"),
    "residual": (nn.Sequential(conv(3, 4, 3, padding=1), Residual(), Residual()), "2"),
    "branches": (nn.Sequential(Branches(), nn.Softplus()), "1"),
    "channels last": (nn.Sequential(conv(3, 4, 4, stride=4), ChannelsLast()), "1"),
    "excite": (nn.Sequential(conv(3, 4, 3, padding=1), Excite(), conv(4, 4, 3, padding=1)), "2"),
    "windows": (nn.Sequential(conv(3, 4, 3, padding=1), Windows(), conv(4, 4, 2)), "2"),
    "unfolded": (nn.Sequential(conv(3, 4, 3, padding=1), Unfolded()), "1"),
    "instance norm": (nn.Sequential(conv(3, 4, 3), nn.InstanceNorm2d(4)), "1"),
    "group norm": (nn.Sequential(conv(3, 4, 3), nn.GroupNorm(2, 4)), "1"),
    "in place": (nn.Sequential(conv(3, 4, 3), nn.SELU(inplace=True), Sliced(), conv(4, 4, 2)), "3"),
    "shuffle": (nn.Sequential(conv(3, 8, 3), nn.PixelShuffle(2), conv(2, 2, 3)), "2"),
}  # fmt: skip


def output_of(network, layer, images):
    found = {}
    with tapped(network, [layer], found.__setitem__):
        network(images)
    return found[layer]


def seen_by_gradient(network, layer, images, select):
    """The box of all pixels with a gradient, of several random images together."""
    total = 0
    for image in images:
        image = image[None].requires_grad_()
        value = select(output_of(network, layer, image))
        (gradient,) = torch.autograd.grad(value, image)
        total = total + gradient.abs().sum((0, 1))
    rows, columns = (total > 0).nonzero().unbind(1)
    return int(rows.min()), int(columns.min()), int(rows.max()) + 1, int(columns.max()) + 1


@pytest.mark.parametrize("name", NETWORKS)
def test_fields_are_where_gradients_are(name):
    network, layer = NETWORKS[name]
    network = network.double().eval()
    images = torch.rand(2, 3, SIZE, SIZE, dtype=torch.float64)
    found = find_layers(network, SIZE, [layer])[layer]
    assert not found.field.unknown
    spots = {(0, 0), (found.height // 2, found.width // 2), (found.height - 1, found.width - 1)}
    for row, column in sorted(spots):
        for channel in (0, found.channels - 1):
            seen = seen_by_gradient(
                network,
                layer,
                images,
                lambda y, c=channel, r=row, w=column: found.features(y, 1)[0, c, 0, r, w],
            )
            assert found.field.box(channel, row * found.width + column) == seen


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_interpolation_sees_its_neighbours(mode):
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Upsample(scale_factor=2, mode=mode)).double()
    found = find_layers(network, SIZE, ["1"])["1"]
    images = torch.rand(1, 3, SIZE, SIZE, dtype=torch.float64)
    # Not at the corner, where weights of neighbours are zero.
    seen = seen_by_gradient(network, "1", images, lambda y: y[0, 0, 15, 16])
    assert found.field.box(0, 15 * found.width + 16) == seen


@pytest.mark.parametrize("pool", [nn.MaxPool2d(3, 2, 1), nn.AdaptiveMaxPool2d(4)])
def test_maximum_sees_its_whole_window(pool):
    """A gradient of a maximum has one winner: over many images every pixel wins."""
    network = nn.Sequential(nn.Conv2d(3, 2, 2), pool).double()
    found = find_layers(network, 9, ["1"])["1"]
    images = torch.rand(150, 3, 9, 9, dtype=torch.float64)
    for row, column in ((0, 0), (1, 2), (found.height - 1, found.width - 1)):
        seen = seen_by_gradient(network, "1", images, lambda y, r=row, w=column: y[0, 0, r, w])
        assert found.field.box(0, row * found.width + column) == seen


@pytest.mark.slow
@pytest.mark.parametrize(("rotations", "lifting"), [(1, "rgb"), (3, "hsv"), (4, "hsv")])
def test_our_networks_against_gradients(rotations, lifting, settle):
    network = resnet44(4, width=2, rotations=rotations, lifting=lifting).double()
    images = torch.rand(4, 3, 32, 32, dtype=torch.float64)
    settle(network, images)
    layers = ["relu", "layers.0.2.relu#2", "layers.2.6.relu#1"]
    for name, layer in find_layers(network, 32, layers).items():
        assert layer.rotations == rotations
        assert not layer.field.unknown
        for position in (0, layer.height * layer.width - 1):
            # All channels and rotations together: any one may be zero in these images.
            seen = seen_by_gradient(
                network, name, images,
                lambda y, p=position, layer=layer: layer.features(y, 1).flatten(3)[..., p].sum(),
            )  # fmt: skip
            top, left, bottom, right = layer.field.box(0, position)
            assert (top, left) <= seen[:2]
            assert (bottom, right) >= seen[2:]
            if name != "layers.2.6.relu#1":  # the rim of a large field fades to zero
                assert layer.field.box(0, position) == seen


def test_local_reductions_do_not_count_as_global_pooling():
    network = nn.Sequential(nn.Conv2d(3, 2, 3, padding=1), Windows())
    field = receptive_fields(network, SIZE, ["1"])["1"]
    assert field.size() == (5, 5)
    assert field.frame(0, 0) == (-1, -1, 4, 4)


def test_frames_continue_outside_the_image():
    network = nn.Sequential(nn.Conv2d(3, 2, 3, 2, 1), nn.ReLU(), nn.Conv2d(2, 2, 3, 1, 1))
    field = receptive_fields(network, 8, ["2"])["2"]
    assert field.size() == (7, 7)
    assert field.frame_rows[0].tolist() == [-3, 2, 7]
    assert field.frame(1, 4 * 1 + 2) == (-1, 1, 6, 8)
    for position in range(16):  # the part of a frame inside the image is the field
        top, left, bottom, right = field.frame(0, position)
        inside = max(top, 0), max(left, 0), min(bottom, 8), min(right, 8)
        assert field.box(0, position) == inside


def test_frames_of_the_paper_s_resnet():
    """By the arithmetic of layers: size += (kernel - 1) * jump, jump *= stride."""
    from equicolor.models import resnet18

    fields = receptive_fields(resnet18(4, width=2), 224, ["relu", "layers.0", "layers.3"])
    assert {name: field.size() for name, field in fields.items()} == {
        "relu": (7, 7),
        "layers.0": (43, 43),
        "layers.3": (435, 435),
    }
    assert fields["layers.3"].frame_rows[0].tolist()[1] == 32


class PadThenConvolve(nn.Module):
    """Padding of its own, as in networks that pad like TensorFlow."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3)

    def forward(self, x):
        return self.conv(F.pad(x, (1, 1, 1, 1)))


class Thin(nn.Module):
    """Every second row and column."""

    def forward(self, x):
        return x[..., ::2, ::2]


def down() -> list[nn.Module]:
    """Layers that leave one position of small images."""
    return [
        nn.Conv2d(3, 4, 3, 2, 1), nn.MaxPool2d(3, 2, 1), Residual(),
        nn.AvgPool2d(2, ceil_mode=True), nn.Conv2d(4, 4, 5, 2, 2), PadThenConvolve(),
        nn.Conv2d(4, 4, 3, padding="same", dilation=2), nn.Conv2d(4, 4, 3, 2, 1),
        nn.Conv2d(4, 4, 3, 1, 2), nn.Conv2d(4, 4, (1, 3), 1, (0, 1)),
    ]  # fmt: skip


@pytest.mark.parametrize("size", [(8, 8), (16, 16), (8, 64)], ids=str)
def test_frames_do_not_depend_on_how_few_positions_are_left(size):
    """A map of one position continues into its padding as in a larger image."""
    network = nn.Sequential(*down())
    names = [str(index) for index in range(len(network))]
    small, large = (find_layers(network, extent, names) for extent in (size, (256, 256)))
    assert (small["7"].height, large["7"].height) == (1, 4)
    for name in names:
        assert not small[name].field.unknown
        assert small[name].field.size() == large[name].field.size()
        assert small[name].field.frame(0, 0) == large[name].field.frame(0, 0)


def test_frames_of_single_positions_are_where_gradients_are():
    """In an image that is larger all around, by a multiple of the network's stride."""
    layers = [layer for layer in down()[:8] if not isinstance(layer, nn.MaxPool2d)]
    network, name, stride = nn.Sequential(*layers).double().eval(), "6", 32
    found = find_layers(network, 16, [name])[name]
    assert (found.height, found.width) == (1, 1)
    margin = 8 * stride
    images = torch.rand(1, 3, 16 + 2 * margin, 16 + 2 * margin, dtype=torch.float64)
    seen = seen_by_gradient(network, name, images, lambda y: y[0, 0, 8, 8])
    assert tuple(end - margin for end in seen) == found.field.frame(0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("rotations", [1, 3])
def test_frames_of_the_paper_s_resnet_in_small_images(rotations):
    from equicolor.models import resnet18

    network = resnet18(4, width=2, rotations=rotations)
    small, large = (find_layers(network, size) for size in (32, 64))
    assert list(small) == list(large)
    for name, layer in small.items():
        assert layer.field.frame(0, 0) == large[name].field.frame(0, 0)
        assert not layer.field.unknown
    assert small["layers.3.1.relu#2"].field.size() == (435, 435)


def test_an_unknown_step_is_reported():
    network = nn.Sequential(nn.Conv2d(3, 4, 3, 4, 1), Thin(), nn.Conv2d(4, 4, 1), nn.ReLU())
    before = receptive_fields(network, 8)["3"]
    assert (before.size(), before.unknown) == ((3, 3), frozenset())
    padded = nn.Sequential(*network, nn.Conv2d(4, 4, 3, padding=1), nn.ReLU())
    field = receptive_fields(padded, 8)["5"]
    assert field.unknown == {"padding of a single position"}
    assert field.frame(0, 0) == (0, 0, 8, 8)
    assert field.box(0, 0) == (0, 0, 2, 2)  # what it sees is exact
    assert not receptive_fields(padded, 16)["5"].unknown


def test_global_pooling_widens_the_field_and_not_the_frame():
    network = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), Excite())
    field = receptive_fields(network, 8, ["1"])["1"]
    assert field.box(0, 9) == (0, 0, 8, 8)
    assert field.frame(0, 9) == (0, 0, 3, 3)


def test_an_instance_normalised_network_sees_everything():
    fields = receptive_fields(ciconv_resnet44(4, width=2), 32, ["relu", "layers.2"])
    assert fields["relu"].box(0, 0) == (0, 0, 32, 32)


def test_layers_by_default_are_nonlinearities_before_global_pooling():
    plain = nn.Sequential(
        nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.ReLU()
    )
    assert list(find_layers(plain, 8)) == ["2"]
    assert list(find_layers(nn.Sequential(*plain[:2]), 8)) == ["1"]
    assert list(find_layers(nn.Sequential(plain[0]), 8)) == ["0"]
    assert len(find_layers(cecnn(width=2), 28)) == 7
    with pytest.raises(ValueError, match="has no layers of features"):
        find_layers(nn.Sequential(nn.Flatten()), 8)


def test_names_that_are_wrong_get_a_hint():
    network = resnet44(4, width=2)
    with pytest.raises(LayerError, match=r"no layer 'layer.0'; did you mean 'layers.0'"):
        find_layers(network, 32, ["layer.0"])
    with pytest.raises(LayerError, match=r"'layers.0.0.relu' is called 2 times: use .*#1 to .*#2"):
        find_layers(network, 32, ["layers.0.0.relu"])
    with pytest.raises(LayerError, match=r"no layer 'x'; it has normalize, .* and [0-9]+ more$"):
        find_layers(network, 32, ["x"])
    inside = nn.Sequential(OrderedDict(network=network))
    with pytest.raises(LayerError, match=r"no layer 'relu'; did you mean 'network.relu' or"):
        find_layers(inside, 32, ["relu"])
    with pytest.raises(LayerError, match=r"did you mean 'network.layers.0.0.relu'\?"):
        find_layers(inside, 32, ["layers.0.0.relu"])
    tokens = nn.Sequential(nn.Conv2d(3, 4, 2, 2), nn.Flatten(2))
    with pytest.raises(LayerError, match=r"'1' must give \[B, C\], .* got \[1, 4, 16\]"):
        find_layers(tokens, 8, ["1"])


def test_unknown_operations_are_reported_and_see_everything():
    class Sum(nn.Module):
        def forward(self, x):
            return x.cumsum(2)

    field = receptive_fields(nn.Sequential(nn.Conv2d(3, 2, 3), Sum(), nn.ReLU()), 8)["2"]
    assert field.unknown == {"cumsum"}
    assert field.box(0, 0) == (0, 0, 8, 8)


def test_unfolded_windows_have_the_frame_of_a_convolution():
    fields = []
    for last in (Unfolded(), nn.Conv2d(4, 4, 3, padding=2, dilation=2)):
        network = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), last)
        fields.append(receptive_fields(network, SIZE, ["1"])["1"])
    assert fields[0].frame(0, 0) == fields[1].frame(0, 0) == (-5, -5, 6, 6)
    assert not fields[0].unknown


def test_units_that_see_nothing_have_an_empty_field():
    network = nn.Sequential(nn.Conv2d(3, 2, 1, padding=1))  # the corner sees padding alone
    field = receptive_fields(network, 4, ["0"])["0"]
    assert field.box(0, 0) == (0, 0, 0, 0)
    assert field.box(0, 7) == (0, 0, 1, 1)
    assert field.frame(0, 0) == (-1, -1, 0, 0)


def test_a_number_of_the_image_written_into_a_tensor_sees_the_image():
    class Fill(nn.Module):
        def forward(self, x):
            out = x.clone()
            out[:, 1] = x.mean()
            return out

    field = receptive_fields(nn.Sequential(nn.Conv2d(3, 2, 1), Fill()), 6, ["1"])["1"]
    assert field.box(0, 0) == (0, 0, 1, 1)
    assert field.box(1, 0) == (0, 0, 6, 6)


def test_elements_that_the_image_chooses_may_be_any():
    class Brightest(nn.Module):
        def forward(self, features):
            columns = features.amax((1, 2)).argmax(1)
            return features.gather(3, columns.view(-1, 1, 1, 1).expand(*features.shape[:3], 1))

    network = nn.Sequential(nn.Conv2d(3, 2, 3), Brightest())
    field = receptive_fields(network, 6, ["1"])["1"]
    assert field.box(0, 0) == (0, 0, 6, 6)


def test_looking_changes_nothing():
    network = nn.Sequential(nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2), nn.Dropout(0.5)).train()
    before = {key: value.clone() for key, value in network.state_dict().items()}
    receptive_fields(network, 8, ["1"])
    assert network.training
    assert all(torch.equal(network.state_dict()[key], value) for key, value in before.items())
    assert not any(module._forward_hooks for module in network.modules())


@pytest.mark.parametrize(
    "last",
    [
        [nn.Conv2d(2, 2, 3, padding=1)],
        [nn.ZeroPad2d(1), nn.Conv2d(2, 2, 3)],
        [nn.ReflectionPad2d(1), nn.Conv2d(2, 2, 3)],
    ],
    ids=["padded", "zero", "reflected"],
)
@pytest.mark.parametrize(
    "up",
    [
        nn.Upsample(scale_factor=2),
        nn.Upsample(scale_factor=2, mode="bilinear"),
        nn.ConvTranspose2d(2, 2, 2, stride=2),
    ],
    ids=["nearest", "bilinear", "transposed"],
)
def test_padding_beside_a_spread_position_is_unknown(up: nn.Module, last: list[nn.Module]) -> None:
    down = [nn.Conv2d(3 if not i else 2, 2, 3, stride=2, padding=1) for i in range(3)]
    network = nn.Sequential(*down, up, *last).eval()
    name = str(len(network) - 1)
    field = receptive_fields(network, 8, [name])[name]  # by way of a map of one position
    # Its own frame has 15 pixels; in a larger image it would see its neighbours', too.
    assert receptive_fields(network, 8, ["2"])["2"].size() == (15, 15)
    assert field.frame(0, 0) == field.frame(0, 3) == (0, 0, 8, 8)
    assert field.unknown == {"padding of a single position"}


def test_a_frame_must_move() -> None:
    network = nn.Sequential(nn.Conv2d(3, 2, 4, stride=4), nn.Upsample(scale_factor=2)).eval()
    field = receptive_fields(network, 4, ["1"])["1"]
    assert (field.frame(0, 0), field.unknown) == ((0, 0, 4, 4), frozenset())
