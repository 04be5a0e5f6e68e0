import pytest
import torch
from torch import nn

from equicolor.nn import CEBatchNorm2d, CEDropout2d


def features(batch=4, channels=3, rotations=5, size=6):
    # Different means and scales per channel and rotation: sharing must show.
    x = torch.randn(batch, channels, rotations, size, size, dtype=torch.float64)
    scale = torch.linspace(0.5, 2, channels * rotations, dtype=torch.float64)
    return x * scale.view(channels, rotations, 1, 1) + scale.flip(0).view(channels, rotations, 1, 1)


def slow_batch_norm(x, layer):
    """One mean and variance per channel over batch, rotations and space."""
    channels, means, variances = [], [], []
    for c in range(x.shape[1]):
        values = x[:, c]
        mean = values.sum() / values.numel()
        variance = (values - mean).square().sum() / values.numel()
        normalised = (values - mean) / (variance + layer.eps).sqrt()
        channels.append(normalised * layer.weight[c] + layer.bias[c])
        means.append(mean)
        variances.append(variance * values.numel() / (values.numel() - 1))
    return torch.stack(channels, 1), torch.stack(means), torch.stack(variances)


class TestBatchNorm:
    def test_training_matches_the_definition(self):
        layer, x = CEBatchNorm2d(3, eps=1e-3, momentum=0.2).double(), features()
        nn.init.uniform_(layer.weight, 0.5, 1.5)
        nn.init.uniform_(layer.bias)
        with torch.no_grad():
            expected, mean, variance = slow_batch_norm(x, layer)
            assert (layer(x) - expected).abs().max() < 1e-12
        assert (layer.running_mean - 0.2 * mean).abs().max() < 1e-12
        assert (layer.running_var - (0.8 + 0.2 * variance)).abs().max() < 1e-12
        assert layer.num_batches_tracked == 1

    def test_eval_uses_the_running_statistics(self):
        layer, x = CEBatchNorm2d(3).double(), features()
        layer(x)
        layer.eval()
        kept = {name: value.clone() for name, value in layer.state_dict().items()}
        shape = (-1, 1, 1, 1)
        mean, variance = layer.running_mean.view(shape), layer.running_var.view(shape)
        expected = (x - mean) / (variance + layer.eps).sqrt()
        assert (layer(x) - expected).abs().max() < 1e-12
        for name, value in layer.state_dict().items():
            assert torch.equal(value, kept[name])

    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"eps": 0.5},
            {"momentum": None},
            {"affine": False},
            {"track_running_stats": False},
        ],
    )
    def test_every_option_is_that_of_batch_norm(self, options):
        layer, plain = CEBatchNorm2d(3, **options).double(), nn.BatchNorm3d(3, **options).double()
        x = features()
        for mode in (True, True, False):
            layer.train(mode)
            plain.train(mode)
            # BatchNorm3d takes the rotations for depth, and shares over it as well.
            assert (layer(x) - plain(x)).abs().max() < 1e-12
        assert layer.state_dict().keys() == plain.state_dict().keys()
        for name, value in plain.state_dict().items():
            assert (layer.state_dict()[name] - value).abs().max() < 1e-12

    def test_gradients_match_the_definition(self):
        layer, x = CEBatchNorm2d(3).double(), features(2, 3, 2, 3).requires_grad_()
        upstream = torch.randn_like(x)
        y = layer(x)
        expected, _, _ = slow_batch_norm(x, layer)
        inputs = x, layer.weight, layer.bias
        actual = torch.autograd.grad(y, inputs, upstream)
        reference = torch.autograd.grad(expected, inputs, upstream)
        for gradient, slow in zip(actual, reference, strict=True):
            assert (gradient - slow).abs().max() < 1e-12

    def test_starts_as_batch_norm_does(self):
        state, plain = CEBatchNorm2d(4).state_dict(), nn.BatchNorm2d(4).state_dict()
        assert list(state) == list(plain)
        assert all(torch.equal(state[name], plain[name]) for name in plain)

    def test_sync_conversion_keeps_the_state_and_the_eval_output(self):
        network = nn.Sequential(CEBatchNorm2d(3)).double()
        x = features()
        network(x)
        expected = network.eval()(x)
        converted = nn.SyncBatchNorm.convert_sync_batchnorm(network).eval()
        assert type(converted[0]) is nn.SyncBatchNorm
        assert (converted(x) - expected).abs().max() < 1e-12


class TestDropout:
    def test_drops_all_rotations_of_a_channel_together(self):
        x = torch.ones(32, 16, 5, 3, 3)
        per_channel = CEDropout2d(0.3)(x).flatten(2)
        # Every channel is all zeros or all 1 / (1 - p).
        assert torch.equal(per_channel.amin(2), per_channel.amax(2))
        kept = per_channel[:, :, 0] != 0
        assert per_channel[:, :, 0][kept].unique().tolist() == pytest.approx([1 / 0.7])
        assert kept.float().mean().item() == pytest.approx(0.7, abs=0.06)
        # Images of a batch are dropped independently.
        assert kept.unique(dim=0).shape[0] > 1

    def test_eval_is_the_identity(self):
        x = torch.rand(2, 3, 4, 5, 5)
        assert torch.equal(CEDropout2d(0.9).eval()(x), x)

    @pytest.mark.parametrize(("p", "expected"), [(0, 1.0), (1, 0.0)])
    def test_extreme_probabilities(self, p, expected):
        assert CEDropout2d(p)(torch.ones(2, 3, 4, 2, 2)).unique().tolist() == [expected]

    @pytest.mark.parametrize("inplace", [True, False])
    def test_inplace_overwrites_the_input(self, inplace):
        x = torch.ones(8, 8, 3, 2, 2)
        y = CEDropout2d(0.5, inplace=inplace)(x)
        assert torch.equal(x, y) == inplace

    def test_defaults_to_a_half(self):
        assert CEDropout2d().p == 0.5
