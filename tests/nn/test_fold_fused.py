"""Which networks are folded in the fused form; in Triton's interpreter or on a GPU."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from equicolor.models import cecnn, resnet18
from equicolor.nn import CEBatchNorm2d, CEConv2d, CELiftConv2d, CosetMaxPool, fold
from equicolor.nn._fused import conditions
from equicolor.nn._fused.frozen import FrozenBlock, FrozenStem

pytest.importorskip("triton", reason="Triton is not installed; it comes with torch's CUDA builds")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCE = 1e-4 if DEVICE == "cuda" else 1e-5
NEITHER = r"form='fused' knows .*'3\..*' is in neither"


@pytest.fixture(autouse=True)
def _everywhere(monkeypatch):
    """The fused path on the CPU too, and convolutions that keep float32."""
    monkeypatch.setattr(conditions, "DEVICES", (DEVICE,))
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@pytest.fixture
def check(relative_error):
    """Fold a network, compare in float64, and count its fused blocks."""

    def check(network, images, form="auto"):
        folded = fold(network, form)
        with torch.no_grad():
            expected = copy.deepcopy(network).double()(images.double())
            assert relative_error(folded(images), expected) < TOLERANCE
        return count(folded, FrozenBlock)

    return check


def count(folded, *kinds):
    return sum(isinstance(module, kinds) for module in folded.modules())


class Foreign(nn.Module):
    """A residual block as other libraries write it."""

    def __init__(self, channels):
        super().__init__()
        self.a = CEConv2d(channels, channels, 3, padding=1, bias=False)
        self.b = CEConv2d(channels, channels, 3, padding=2, dilation=2, bias=False)
        self.norm_a, self.norm_b = CEBatchNorm2d(channels), CEBatchNorm2d(channels)
        self.act = nn.ReLU(inplace=True)

    def main(self, x):
        return self.norm_b(self.b(F.relu(self.norm_a(self.a(x)), inplace=True)))

    def forward(self, x):
        identity = x
        out = self.main(x)
        out += identity
        return self.act(out)


class Residual(nn.Module):
    """Layers, each given by its options, and a shortcut or the identity."""

    def __init__(self, *layers, shortcut=None):
        super().__init__()
        self.main = nn.Sequential(*[part for layer in layers for part in (*layer, nn.ReLU())][:-1])
        self.shortcut = nn.Sequential(*shortcut or ())

    def forward(self, x):
        return F.relu(self.main(x) + self.shortcut(x))


def layer(inputs, outputs, kernel=3, **options):
    return CEConv2d(inputs, outputs, kernel, bias=False, **options), CEBatchNorm2d(outputs)


def with_stem(*blocks, channels=5):
    lift = CELiftConv2d(3, channels, 3, padding=1, bias=False)
    return nn.Sequential(lift, CEBatchNorm2d(channels), nn.ReLU(), *blocks, CosetMaxPool())


def settled(settle, network, size=(7, 6)):
    """A network and images for it."""
    images = torch.rand(2, 3, *size)
    return settle(network, images, sees=1e-3).to(DEVICE), images.to(DEVICE)


def test_blocks_are_known_by_what_they_compute(settle, check):
    assert check(*settled(settle, with_stem(Foreign(5), Foreign(5)))) == 2


# Shapes


@pytest.mark.parametrize(
    "block",
    [
        lambda: Residual(layer(5, 5, padding=1)),
        lambda: Residual(layer(5, 5, 5, padding=(4, 2), dilation=(2, 1))),
        lambda: Residual(layer(5, 7, padding=2), layer(7, 5)),
        lambda: Residual(layer(5, 5, 2, padding=1), layer(5, 5, 2)),
        lambda: Residual(layer(5, 7, padding=1), shortcut=layer(5, 7, 1)),
        lambda: Residual(
            layer(5, 7, padding=1, stride=2),
            layer(7, 7, padding=1),
            shortcut=layer(5, 7, 1, stride=2),
        ),
        lambda: Residual(
            layer(5, 7, 1),
            layer(7, 6, padding=1, stride=(2, 1)),
            shortcut=layer(5, 6, 1, stride=(2, 1)),
        ),
        lambda: Residual(layer(5, 5), shortcut=layer(5, 5)),
    ],
)
@pytest.mark.parametrize("size", [(7, 6), (8, 9)])
def test_blocks_whose_shapes_agree_are_fused(block, size, settle, check):
    assert check(*settled(settle, with_stem(block()), size)) == 1


@pytest.mark.parametrize(
    ("channels", "block", "size"),
    [
        (1, lambda: Residual(layer(1, 8, padding=1)), 6),
        (1, lambda: Residual(layer(1, 20, padding=1)), 6),
        (5, lambda: Residual(layer(5, 1, padding=1)), 6),
        (1, lambda: Residual(layer(1, 5, padding=1), shortcut=layer(1, 1, 1)), 6),
        (5, lambda: Residual(layer(5, 5, padding=1, stride=2)), 2),
        (5, lambda: Residual(layer(5, 5, padding=0)), 3),
        (5, lambda: Residual(layer(5, 5, padding=1), layer(5, 5, padding=0)), 3),
        (5, lambda: Residual(layer(5, 5, padding=0), shortcut=layer(5, 5, 1)), 3),
        # Of the same size only for images of even sizes.
        (
            5,
            lambda: Residual(layer(5, 5, padding=1, stride=2), shortcut=layer(5, 5, 2, stride=2)),
            6,
        ),
    ],
)
def test_what_may_be_broadcast_is_not_fused(channels, block, size, settle, check):
    network, images = settled(settle, with_stem(block(), channels=channels), (size, size))
    assert count(fold(network), FrozenBlock) == 0
    assert check(network, images, "cyclic") == check(network, images, "dense") == 0
    with pytest.raises(ValueError, match=NEITHER):
        fold(network, "fused")


@pytest.mark.parametrize(
    "block",
    [
        lambda: Residual(layer(5, 7, padding=1), layer(6, 5, padding=1)),
        lambda: Residual((layer(5, 7, padding=1)[0], CEBatchNorm2d(5)), layer(7, 5, padding=1)),
    ],
)
def test_layers_that_do_not_fit_together_are_not_fused(block):
    with pytest.raises(ValueError, match=NEITHER):
        fold(with_stem(block()), "fused")


# Changes in place, and other things that are no residual block


class Shared(Foreign):
    """Both convolutions are the same one."""

    def __init__(self, channels):
        super().__init__(channels)
        self.b = self.a


class Overwritten(Foreign):
    """Adds to its input in place, and returns the input as well."""

    def forward(self, x):
        x += self.main(x)
        return self.act(x) + x


class Watched(Foreign):
    """The input is changed before it is added."""

    def forward(self, x):
        out = self.main(x)
        x.mul_(2)
        return F.relu(out + x)


class Aliased(Foreign):
    """The same, under another name."""

    def __init__(self, channels):
        super().__init__(channels)
        self.same = nn.Dropout(0.5)

    def forward(self, x):
        out = self.main(x)
        alias = self.same(x)
        alias += 1
        return F.relu(out + x)


class AliasedInModule(Aliased):
    """The same, by a module."""

    def forward(self, x):
        x = x - 1
        alias = self.same(x)
        out = self.main(x)
        self.act(alias)
        return F.relu(out + x)


class Scaled(Foreign):
    """The sum is not a plain one."""

    def forward(self, x):
        return F.relu(torch.add(self.main(x), x, alpha=2))


class Doubled(Foreign):
    """Added to itself."""

    def forward(self, x):
        out = self.norm_a(self.a(x))
        return F.relu(out + out)


@pytest.mark.parametrize(
    "block", [Shared, Overwritten, Watched, Aliased, AliasedInModule, Scaled, Doubled]
)
def test_other_blocks_are_folded_in_the_other_forms(block, settle, check):
    network, images = settled(settle, with_stem(block(5)))
    assert check(network, images) == 0
    with pytest.raises(ValueError, match=NEITHER):
        fold(network, "fused")


class ChangedImages(nn.Module):
    """Images are changed under another name while the first layers still need them."""

    def __init__(self):
        super().__init__()
        self.lift = CELiftConv2d(3, 4, 3, bias=False)
        self.norm, self.pool, self.same = CEBatchNorm2d(4), CosetMaxPool(), nn.Identity()

    def forward(self, images):
        images = images + 0
        alias = self.same(images)
        hidden = self.norm(self.lift(images))
        alias.mul_(2)
        return self.pool(F.relu(hidden)) + images.mean()


def test_stems_whose_images_change_are_not_fused(settle, check):
    network, images = settled(settle, ChangedImages())
    check(network, images)
    assert count(fold(network), FrozenStem) == 0


def test_changes_in_place_before_and_after_do_no_harm(settle, check):
    class Around(Foreign):
        def forward(self, x):
            x.mul_(2)
            return super().forward(x).mul_(3)

    assert check(*settled(settle, with_stem(Around(5)))) == 1


def test_stems_that_dilate_are_not_known():
    lift = CELiftConv2d(3, 4, 3, dilation=2, bias=False)
    network = nn.Sequential(lift, CEBatchNorm2d(4), nn.ReLU(), CosetMaxPool())
    with pytest.raises(ValueError, match="'0' is in neither"):
        fold(network, "fused")


# By themselves


def test_only_networks_on_gpus_are_fused_by_themselves(monkeypatch):
    network, kinds = resnet18(5, rotations=3, width=2).to(DEVICE), (FrozenBlock, FrozenStem)
    assert count(fold(network), *kinds) == 9
    for other in (cecnn(5, width=2), resnet18(5, width=2), copy.deepcopy(network).double()):
        assert count(fold(other.to(DEVICE)), *kinds) == 0
    monkeypatch.setattr(conditions, "DEVICES", ())
    assert count(fold(network), *kinds) == 0
    assert count(fold(network, "fused"), *kinds) == 9


def test_elsewhere_nothing_is_made_that_is_not_used(monkeypatch):
    monkeypatch.setattr(conditions, "DEVICES", ())

    def refuse(*_, **__):
        raise AssertionError

    monkeypatch.setattr("equicolor.nn.folding.fused.FrozenStem", refuse)
    fold(resnet18(5, rotations=3, width=2))


def test_layers_other_than_convolutions_may_be_outside_of_blocks(settle, check):
    assert check(*settled(settle, with_stem(CEBatchNorm2d(5), Foreign(5), nn.GELU()))) == 1
