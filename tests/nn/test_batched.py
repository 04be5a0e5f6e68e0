"""Layers that keep the rotations in the batch compute what the layers on features compute."""

import pytest
import torch
from torch import nn

from equicolor.color import shift_hue
from equicolor.nn import CEConv2d
from equicolor.nn.batched import (
    BatchedCEConv2d,
    BatchedCELinear,
    BatchedCosetPool,
    BatchedDropout,
    BatchedStochasticDepth,
    HueLift,
)
from equicolor.nn.layout import from_pixels, to_features, to_images, to_pixels

N = 5


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("algorithm", ["dense", "cyclic"])
def test_convolution_is_the_one_on_features(groups, algorithm, slow_conv, relative_error):
    options = {"groups": groups, "stride": 2, "padding": 1}
    layer = BatchedCEConv2d(4, 8, 3, rotations=N, algorithm=algorithm, **options).double()
    x = torch.rand(N * 2, 4, 7, 7, dtype=torch.float64)
    weights = layer.weight, layer.pointwise_weight, layer.bias
    expected = slow_conv(to_features(x, N), *weights, **options)
    assert relative_error(to_features(layer(x), N), expected) < 1e-12


def test_copies_around_the_dense_algorithm_keep_channels_last():
    """Copies on a GPU are channels_last, also those of gradients."""
    x = torch.rand(N * 2, 4, 7, 7).to(memory_format=torch.channels_last).requires_grad_()
    features = from_pixels(x, N)
    assert torch.equal(features, to_features(x, N))
    layer = CEConv2d(4, 8, 3, rotations=N, algorithm="dense")
    y = to_pixels(layer(features))
    assert torch.equal(y, to_images(layer(features)))
    y.square().sum().backward()
    for tensor in (y, x.grad):
        assert tensor.is_contiguous(memory_format=torch.channels_last)


def test_parameters_are_those_of_the_layer_on_features():
    one, other = BatchedCEConv2d(4, 8, 3, rotations=N), CEConv2d(4, 8, 3, rotations=N)
    other.load_state_dict(one.state_dict())
    x = torch.rand(N * 2, 4, 7, 7)
    torch.testing.assert_close(one(x), to_images(other(to_features(x, N))))


@pytest.mark.parametrize("shape", [(6,), (3, 6), (3, 4, 6)])
def test_linear_mixes_features_and_hues(shape, relative_error):
    layer = BatchedCELinear(6, 4, rotations=N).double()
    x = torch.rand(N * 2, *shape, dtype=torch.float64)
    parts = x.unflatten(0, (N, 2))
    filters = (layer.weight * layer.pointwise_weight)[..., 0, 0]  # [O, C, n]
    rows = []
    for k in range(N):
        terms = [parts[r] @ filters[:, :, (r - k) % N].T for r in range(N)]
        rows.append(sum(terms) + layer.bias)
    assert relative_error(layer(x), torch.cat(rows)) < 1e-12


def test_identity_filters_leave_the_plain_layer(relative_error):
    plain = nn.Conv2d(4, 8, 3)
    layer = BatchedCEConv2d(4, 8, 3, rotations=N)
    assert not layer.is_identity()
    layer.set_identity()
    layer.load_state_dict({"weight": plain.weight[:, :, None], "bias": plain.bias}, strict=False)
    assert layer.is_identity()
    x = torch.rand(N * 2, 4, 7, 7)
    assert relative_error(layer(x), plain(x)) < 1e-6


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "dilation"),
    [(7, 3, 2, 1), (8, 3, 2, 1), (9, 5, 3, 2), (5, 1, 2, 1)],
)
def test_padding_to_the_stride(size, kernel, stride, dilation):
    layer = BatchedCEConv2d(
        1, 1, kernel, stride, dilation=dilation, rotations=1, pad_to_stride=True
    )
    y = layer(torch.rand(2, 1, size, size))
    assert y.shape[-1] == -(-size // stride)
    if stride == 1:
        assert y.shape[-1] == size


@pytest.mark.parametrize("kind", ["max", "avg", None])
def test_coset_pooling(kind):
    x = torch.rand(N * 2, 3, 4)
    parts = torch.stack([x[2 * k : 2 * k + 2] for k in range(N)])
    expected = {"max": parts.max(0).values, "avg": parts.mean(0), None: parts.transpose(0, 1)}
    torch.testing.assert_close(BatchedCosetPool(N, kind)(x), expected[kind])


def test_the_surest_rotation_is_taken():
    logits = 3 * torch.randn(N * 5, 7, dtype=torch.float64)
    expected = []
    for image in range(5):
        rotations = [logits[k * 5 + image] for k in range(N)]
        expected.append(max(rotations, key=lambda each: each.softmax(0).max()))
    pool = BatchedCosetPool(N, "confidence")
    assert torch.equal(pool(logits), torch.stack(expected))
    for k in range(N):
        rolled = logits.unflatten(0, (N, 5)).roll(k, 0).flatten(0, 1)
        assert torch.equal(pool(rolled), pool(logits))
    assert torch.autograd.gradcheck(pool, (logits.requires_grad_(),))
    pool(logits).sum().backward()
    assert logits.grad.sum() == 5 * 7  # one rotation of every image


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_surest_rotation_of_large_logits(dtype):
    """Their largest probabilities are all rounded to 1."""
    logits = torch.tensor([[60, 0, 0], [0, 90, 0], [0, 61, 0], [0, 0, 62]], dtype=dtype)
    for k in range(4):
        pooled = BatchedCosetPool(4, "confidence")(logits.roll(k, 0))
        assert pooled.tolist() == [[0, 90, 0]]
        assert pooled.dtype == dtype


def test_bfloat16_hardly_makes_rotations_equally_sure():
    logits = torch.tensor([[8, 0, 0, 0], [8, 0.125, 0, 0]], dtype=torch.bfloat16)
    pool = BatchedCosetPool(2, "confidence")
    assert torch.equal(pool(logits), logits[:1])
    assert torch.equal(pool(logits.flip(0)), logits[:1])


def test_of_equally_sure_rotations_the_first_is_taken():
    logits = torch.tensor([[0.0, 5.0], [5.0, 0.0]])
    pool = BatchedCosetPool(2, "confidence")
    assert torch.equal(pool(logits), logits[:1])
    assert torch.equal(pool(logits.flip(0)), logits[1:])


@pytest.mark.parametrize("shape", [(N, 3, 2, 2), (N,), (N, 1)])
def test_only_logits_have_a_surest_rotation(shape):
    with pytest.raises(ValueError, match=r"takes logits \[n \* B, C\] .*, got \[5"):
        BatchedCosetPool(N, "confidence")(torch.rand(shape))


@pytest.mark.parametrize("kind", ["max", "avg", None])
def test_coset_pooling_of_single_pixels_in_any_memory(kind):
    x = torch.rand(N * 2, 8)[:, :4, None, None]
    torch.testing.assert_close(
        BatchedCosetPool(N, kind)(x), BatchedCosetPool(N, kind)(x.contiguous())
    )


@pytest.mark.parametrize(
    "layer",
    [
        BatchedDropout(0.5, rotations=N),
        BatchedDropout(0.5, rotations=N, channels=True),
        BatchedStochasticDepth(0.5, rotations=N),
    ],
    ids=repr,
)
def test_random_masks_are_shared_by_the_hues(layer):
    x = torch.ones(N * 64, 8, 3, 3)
    parts = layer(x).unflatten(0, (N, -1))
    assert all(torch.equal(part, parts[0]) for part in parts)
    assert parts.unique().tolist() == [0, 2]
    assert 0.4 < (parts == 0).float().mean() < 0.6
    if getattr(layer, "channels", False):
        assert torch.equal(parts.amin((-1, -2)), parts.amax((-1, -2)))
    assert torch.equal(layer.eval()(x), x)
    layer.train()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_unscaled_branches_are_kept_exactly(dtype):
    for p in (0.01, 0.06, 0.09):
        layer = BatchedStochasticDepth(p, rotations=1, scale=False)
        assert set(layer(torch.ones(256, 1, dtype=dtype)).unique().tolist()) <= {0, 1}
    assert not BatchedStochasticDepth(1.0, rotations=1, scale=False)(torch.ones(4, 1)).any()


def test_lifting_shifts_back_and_then_normalises(smooth_images, relative_error):
    images = smooth_images(2, 4, 4)
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)
    lifted = HueLift(6, "hsv", mean=mean, std=std).double()(images).unflatten(0, (6, 2))
    m, s = (torch.tensor(v, dtype=torch.float64).view(3, 1, 1) for v in (mean, std))
    for k in range(6):
        assert relative_error(lifted[k], (shift_hue(images, -k / 6) - m) / s) < 1e-12
    # Normalised images are brought back to [0, 1] first; padding has no colour and does not change.
    normalized = (images - m) / s
    normalized[:, :, -1] = 0
    padded = HueLift(6, mean=mean, std=std, takes="normalized", padded=True).double()
    actual = padded(normalized).unflatten(0, (6, 2))
    assert relative_error(actual[..., :-1, :], lifted[..., :-1, :]) < 1e-12
    assert not actual[..., -1, :].any()
    with pytest.raises(ValueError, match="padded=True needs takes='normalized'"):
        HueLift(6, mean=mean, std=std, padded=True)  # zeros are black there


@pytest.mark.parametrize(
    ("make", "seen"),
    [
        (lambda x: (x - 0.45) / 0.22, "-2.0"),
        (lambda x: 255 * x, "from 0 to 255"),
        (lambda x: x * float("nan"), "nan"),
    ],
)
def test_images_that_were_normalised_before_are_refused(make, seen):
    images = torch.linspace(0, 1, 48).view(1, 3, 4, 4)
    with pytest.raises(
        ValueError, match=r"takes images in \[0, 1\] and normalises them itself"
    ) as e:
        HueLift(3)(make(images))
    assert seen in str(e.value)
    assert HueLift(3, check_range=False)(make(images)).shape == (3, 3, 4, 4)


def test_unclipped_rotations_of_images_are_accepted():
    HueLift(3)(torch.tensor([-1 / 3, 0.5, 4 / 3]).view(1, 3, 1, 1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rotations": 0}, "rotations must be at least 1"),
        ({"rotations": 3, "lifting": "hue"}, "lifting must be one of"),
        ({"rotations": 3, "mean": (0.5,)}, "mean and std belong together"),
        ({"rotations": 3, "mean": (1, 2), "std": (1, 2)}, "mean must hold 3 numbers"),
        ({"rotations": 3, "mean": (0,), "std": (0,)}, "std must be positive"),
        ({"rotations": 3, "takes": "normalized"}, "needs the mean and std"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        HueLift(**options)


def test_batches_that_are_no_batches_of_hues():
    with pytest.raises(ValueError, match=r"batch of 5 rotations, \[5 \* B, ...\], got \[4, 4"):
        BatchedCEConv2d(4, 4, 3, rotations=5)(torch.rand(4, 4, 8, 8))
    with pytest.raises(ValueError, match="expects 4 features in the last dimension"):
        BatchedCELinear(4, 4)(torch.rand(3, 5))


def test_channels_last_half_precision_and_devices():
    layer = nn.Sequential(BatchedCEConv2d(4, 4, 3, rotations=3), BatchedCELinear(6, 2, rotations=3))
    layer = layer.to(memory_format=torch.channels_last).bfloat16()
    assert layer(torch.rand(3, 4, 8, 8, dtype=torch.bfloat16)).shape == (3, 4, 6, 2)
    assert layer.to("meta")(torch.rand(3, 4, 8, 8, dtype=torch.bfloat16, device="meta")).is_meta
