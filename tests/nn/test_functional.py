import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from equicolor.groups import HueGroup, cyclic_algorithm, cyclic_products
from equicolor.nn.algorithm import choose_algorithm
from equicolor.nn.functional import (
    ce_conv2d,
    ce_lift_conv2d,
    coset_avg_pool,
    coset_flatten,
    coset_max_pool,
    hue_orbit,
)

# Options of conv2d with the kernel they go with: odd, even, asymmetric, dilated, grouped.
OPTIONS = {
    "plain": ((3, 3), {}),
    "strided": ((3, 3), {"stride": 2, "padding": 1}),
    "asymmetric": ((2, 3), {"stride": (1, 2), "padding": (2, 1), "dilation": (2, 1)}),
    "same": ((2, 4), {"padding": "same", "dilation": (1, 2)}),
    "valid": ((3, 1), {"padding": "valid"}),
    "pointwise": ((1, 1), {"stride": 2}),
}
each_option = pytest.mark.parametrize(
    ("kernel", "options"), OPTIONS.values(), ids=list(OPTIONS.keys())
)
each_algorithm = pytest.mark.parametrize("algorithm", ["dense", "cyclic"])
both_kinds = pytest.mark.parametrize("separable", [True, False], ids=["separable", "full"])

# Few channels, a stride and filters of one pixel: for a plain conv2d of these shapes in
# channels_last memory, oneDNN's gradient writes past a buffer, with AVX-512 only for large images.
FEW_CHANNELS = """
import torch
from equicolor.nn.functional import ce_conv2d

torch.manual_seed(0)
for channels, size, algorithm in [(2, 32, "dense"), (4, 32, "cyclic"), (8, 112, "cyclic")]:
    x, weight = torch.randn(32, channels, 3, size, size), torch.randn(16, channels, 3, 1, 1)
    actual, expected = (
        torch.autograd.grad(ce_conv2d(x.to(dtype), w, stride=2, algorithm=algorithm).sum(), w)[0]
        for dtype in (torch.float32, torch.float64)
        for w in [weight.to(dtype).requires_grad_()]
    )
    assert (actual - expected).abs().max() < 1e-4 * expected.abs().max()
"""


def rand(*shape):
    return torch.randn(shape, dtype=torch.float64)


def filters(outputs, inputs, n, kernel, separable):
    if separable:
        return rand(outputs, inputs, 1, *kernel), rand(outputs, inputs, n, 1, 1)
    return rand(outputs, inputs, n, *kernel), None


class TestConv:
    @both_kinds
    @each_algorithm
    @each_option
    @pytest.mark.parametrize("n", [2, 3, 4])
    def test_matches_the_definition(
        self, n, kernel, options, algorithm, separable, slow_conv, relative_error
    ):
        x, bias = rand(2, 2, n, 7, 8), rand(3)
        weights = filters(3, 2, n, kernel, separable)
        y = ce_conv2d(x, *weights, bias, **options, algorithm=algorithm)
        assert relative_error(y, slow_conv(x, *weights, bias, **options)) < 1e-12

    @both_kinds
    @each_algorithm
    @pytest.mark.parametrize("groups", [2, 4])
    def test_groups_match_the_definition(
        self, groups, algorithm, separable, slow_conv, relative_error
    ):
        x = rand(2, 4, 3, 6, 6)
        weights = filters(8, 4 // groups, 3, (3, 2), separable)
        y = ce_conv2d(x, *weights, groups=groups, padding=1, algorithm=algorithm)
        assert relative_error(y, slow_conv(x, *weights, groups=groups, padding=1)) < 1e-12

    @both_kinds
    @pytest.mark.parametrize("stride", [1, 2])
    @pytest.mark.parametrize("n", range(1, 13))
    def test_cyclic_equals_dense(self, n, stride, separable, relative_error):
        x, bias = rand(2, 3, n, 6, 6).requires_grad_(), rand(4).requires_grad_()
        weights = [w for w in filters(4, 3, n, (3, 3), separable) if w is not None]
        inputs = [x, *(w.requires_grad_() for w in weights), bias]
        group_part = weights[1] if separable else None
        results = []
        for algorithm in ("dense", "cyclic"):
            y = ce_conv2d(x, weights[0], group_part, bias, stride, 1, algorithm=algorithm)
            upstream = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)
            results.append([y, *torch.autograd.grad(y, inputs, upstream)])
        for dense, cyclic in zip(*results, strict=True):
            assert relative_error(cyclic, dense) < 1e-12

    @both_kinds
    @each_algorithm
    @pytest.mark.parametrize(("n", "stride"), [(3, 1), (4, 2)])
    def test_gradcheck(self, n, stride, algorithm, separable):
        weights = filters(2, 1, n, (2, 2), separable)
        inputs = [rand(1, 1, n, 3, 3), *(w for w in weights if w is not None), rand(2)]

        def conv(x, weight, *rest):
            return ce_conv2d(
                x, weight, *(rest if separable else (None, *rest)), stride, algorithm=algorithm
            )

        assert torch.autograd.gradcheck(conv, [v.requires_grad_() for v in inputs])

    @pytest.mark.slow
    @both_kinds
    @each_algorithm
    def test_gradients_are_the_same_at_every_call(self, algorithm, separable):
        x, upstream = torch.rand(1, 32, 6, 5, 5), torch.rand(1, 32, 6, 3, 3)
        parts = filters(32, 32, 6, (3, 3), separable)
        weights = [part.float().requires_grad_() for part in parts if part is not None]
        threads = torch.get_num_threads()
        torch.set_num_threads(2)
        try:
            gradients = [
                torch.autograd.grad(ce_conv2d(x, *weights, algorithm=algorithm), weights, upstream)
                for _ in range(8)
            ]
        finally:
            torch.set_num_threads(threads)
        for others in gradients[1:]:
            assert all(map(torch.equal, others, gradients[0]))

    @pytest.mark.slow
    @pytest.mark.parametrize("instructions", ["AVX2", "DEFAULT"])
    def test_few_channels_on_any_cpu(self, instructions, start_script):
        # In a process of its own: oneDNN reads the variable once, when it is first used, and a
        # crash ends the process.
        limit = f"import os; os.environ['ONEDNN_MAX_CPU_ISA'] = '{instructions}'"
        ran = start_script(limit + FEW_CHANNELS)
        assert ran.returncode == 0, ran.stderr

    def test_tables_can_be_kept_by_the_caller(self):
        x, weight = rand(1, 2, 5, 4, 4), rand(2, 2, 5, 3, 3)
        kept = ce_conv2d(x, weight, algorithm="cyclic", tables=cyclic_algorithm(5))
        assert torch.equal(kept, ce_conv2d(x, weight, algorithm="cyclic"))

    def test_tables_are_made_where_the_features_are(self):
        x, filters = torch.empty(2, 4, 6, 5, 5, device="meta"), torch.empty(3, 4, 6, 1, 1)
        y = ce_conv2d(x, filters.to("meta"), algorithm="cyclic")
        assert (y.device.type, y.shape) == ("meta", (2, 3, 6, 5, 5))


class TestAlgorithm:
    """The option must choose what is computed, not only how it is called."""

    @staticmethod
    def convolution_flops(n, algorithm, channels=4):
        x, weight = torch.rand(1, channels, n, 6, 6), torch.rand(channels, channels, n, 3, 3)
        with FlopCounterMode(display=False) as counter:
            ce_conv2d(x, weight, algorithm=algorithm)
        counts = counter.get_flop_counts()["Global"]
        # Two per multiply-accumulate, on 4 x 4 output pixels and 9 taps.
        return counts[torch.ops.aten.convolution] / (2 * 16 * 9 * channels**2)

    @pytest.mark.parametrize("n", [2, 3, 6, 12])
    def test_multiplications_are_those_of_the_table(self, n):
        assert self.convolution_flops(n, "dense") == n * n
        assert self.convolution_flops(n, "cyclic") == cyclic_products(n)

    @pytest.mark.parametrize(("n", "channels"), [(2, 1), (3, 4), (12, 16)])
    def test_auto_is_the_chosen_one(self, n, channels):
        chosen = choose_algorithm(n, (channels, channels, n, 3, 3))
        auto = self.convolution_flops(n, "auto", channels)
        assert auto == self.convolution_flops(n, chosen, channels)

    @pytest.mark.parametrize("device", ["cpu", "cuda"])
    def test_choice_is_dense_for_small_layers_and_cyclic_for_large(self, device):
        assert choose_algorithm(3, (4, 4, 1, 1, 1), 1, device) == "dense"
        assert choose_algorithm(12, (256, 256, 1, 3, 3), 1, device) == "cyclic"

    @pytest.mark.parametrize("groups", [1, 64])
    def test_depthwise_layers_have_nothing_to_save(self, groups):
        expected = "dense" if groups == 64 else "cyclic"
        assert choose_algorithm(12, (64, 64 // groups, 1, 3, 3), groups) == expected


class TestLift:
    @each_option
    @pytest.mark.parametrize("n", [1, 2, 3, 5, 12])
    def test_rgb_rotates_the_filters(self, n, kernel, options, slow_lift, relative_error):
        images, weight, bias = rand(2, 3, 7, 8), rand(4, 3, 1, *kernel), rand(4)
        y = ce_lift_conv2d(images, weight, bias, **options, rotations=n)
        assert relative_error(y, slow_lift(images, weight, bias, rotations=n, **options)) < 1e-12

    @pytest.mark.parametrize("n", [1, 2, 3, 5, 12])
    def test_hsv_shifts_the_image(self, n, slow_shift, relative_error):
        images = torch.rand(2, 3, 5, 6, dtype=torch.float64)
        weight, bias = rand(4, 3, 1, 3, 2), rand(4)
        y = ce_lift_conv2d(images, weight, bias, 2, 1, rotations=n, lifting="hsv")
        rows = [
            F.conv2d(slow_shift(images, -k / n), weight.squeeze(2), bias, 2, 1) for k in range(n)
        ]
        assert relative_error(y, torch.stack(rows, 2)) < 1e-12

    def test_given_matrices_act_on_the_filters(self, relative_error):
        images, weight, matrices = rand(2, 3, 5, 5), rand(4, 3, 1, 3, 3), rand(2, 3, 3)
        y = ce_lift_conv2d(images, weight, rotations=2, matrices=matrices)
        rows = [
            F.conv2d(images, torch.einsum("ij,ojhw->oihw", m, weight.squeeze(2))) for m in matrices
        ]
        assert relative_error(y, torch.stack(rows, 2)) < 1e-12

    @pytest.mark.parametrize("lifting", ["rgb", "hsv"])
    def test_gradcheck(self, lifting, smooth_images):
        images = smooth_images(1, 3, 3).requires_grad_()
        inputs = images, rand(2, 3, 1, 2, 2).requires_grad_(), rand(2).requires_grad_()

        def lift(images, weight, bias):
            return ce_lift_conv2d(images, weight, bias, rotations=4, lifting=lifting)

        assert torch.autograd.gradcheck(lift, inputs)

    def test_gradcheck_of_the_matrices(self):
        inputs = rand(1, 3, 3, 3), rand(2, 3, 1, 2, 2), HueGroup(3).matrices

        def lift(images, weight, matrices):
            return ce_lift_conv2d(images, weight, matrices=matrices)

        assert torch.autograd.gradcheck(lift, [value.requires_grad_() for value in inputs])

    @pytest.mark.parametrize("n", [2, 3, 5])
    def test_orbit_entries_are_inverse_rotations(self, n):
        images = rand(2, 3, 4, 4)
        orbit = hue_orbit(images, n)
        for k in range(n):
            expected = torch.einsum("ij,bjhw->bihw", HueGroup(n).matrix(-k), images)
            assert (orbit[k] - expected).abs().max() < 1e-14


class TestCosets:
    def test_max_and_mean_reduce_the_rotations(self):
        x = rand(2, 3, 4, 5, 5)
        rotations = [x[:, :, k] for k in range(4)]
        assert torch.equal(coset_max_pool(x), torch.stack(rotations).amax(0))
        assert (coset_avg_pool(x) - sum(rotations) / 4).abs().max() < 1e-15

    def test_flatten_puts_rotations_next_to_each_other(self):
        x = rand(2, 3, 4, 5, 5)
        flat = coset_flatten(x)
        for c in range(3):
            for k in range(4):
                assert torch.equal(flat[:, 4 * c + k], x[:, c, k])

    @pytest.mark.parametrize("pool", [coset_max_pool, coset_avg_pool])
    def test_pooling_forgets_the_order_of_rotations(self, pool):
        x = rand(2, 3, 5, 4, 4)
        assert (pool(x.roll(2, 2)) - pool(x)).abs().max() < 1e-15

    @pytest.mark.parametrize("pool", [coset_max_pool, coset_avg_pool, coset_flatten])
    def test_gradcheck(self, pool):
        assert torch.autograd.gradcheck(pool, rand(1, 2, 3, 2, 2).requires_grad_())
