"""What every layer owes PyTorch: dtypes, layouts, copies, devices and state."""

import copy
import io
import pickle

import pytest
import torch
from torch.func import functional_call, grad, vmap

from equicolor.nn import (
    CEAdaptiveAvgPool2d,
    CEAvgPool2d,
    CEBatchNorm2d,
    CEConv2d,
    CEDropout2d,
    CELiftConv2d,
    CEMaxPool2d,
    CosetAvgPool,
    CosetFlatten,
    CosetMaxPool,
)

ROTATIONS = 4
HIDDEN = {
    "separable dense": lambda **k: CEConv2d(3, 4, 3, rotations=4, algorithm="dense", **k),
    "separable cyclic": lambda **k: CEConv2d(3, 4, 3, rotations=4, algorithm="cyclic", **k),
    "full dense": lambda **k: CEConv2d(
        3, 4, 3, rotations=4, separable=False, algorithm="dense", **k
    ),
    "full cyclic": lambda **k: CEConv2d(
        3, 4, 3, rotations=4, separable=False, algorithm="cyclic", **k
    ),
    "reflected": lambda **k: CEConv2d(
        3, 4, 3, padding=1, padding_mode="reflect", rotations=4, algorithm="cyclic", **k
    ),
    "batch norm": lambda **k: CEBatchNorm2d(3, **k),
}
LIFT = {
    "lift rgb": lambda **k: CELiftConv2d(3, 4, 3, rotations=4, **k),
    "lift hsv": lambda **k: CELiftConv2d(3, 4, 3, rotations=4, lifting="hsv", **k),
    "lift learnable": lambda **k: CELiftConv2d(3, 4, 3, rotations=4, learnable=True, **k),
}
FREE = {
    "dropout": lambda: CEDropout2d(0.5).eval(),
    "max pool": lambda: CEMaxPool2d(2),
    "avg pool": lambda: CEAvgPool2d(2),
    "adaptive pool": lambda: CEAdaptiveAvgPool2d(2),
    "coset max": CosetMaxPool,
    "coset avg": CosetAvgPool,
    "coset flatten": CosetFlatten,
}
WITH_STATE = LIFT | HIDDEN
ALL = WITH_STATE | FREE
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]

each_layer = pytest.mark.parametrize("name", ALL)
each_stateful = pytest.mark.parametrize("name", WITH_STATE)


def inputs(name, batch=2, dtype=torch.float64):
    shape = (batch, 3, 6, 6) if name in LIFT else (batch, 3, ROTATIONS, 6, 6)
    return torch.rand(shape, dtype=torch.float64).to(dtype)


def permuted(x, *order):
    """The same values with the memory of a permuted tensor."""
    return x.permute(order).contiguous().permute(torch.argsort(torch.tensor(order)).tolist())


class TestDtypes:
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @each_layer
    def test_forward_and_backward(self, name, dtype, tolerance, relative_error):
        layer = ALL[name]().to(dtype)
        exact = copy.deepcopy(layer).double()
        x = inputs(name, dtype=dtype).requires_grad_()
        y = layer(x)
        y.float().square().sum().backward()
        assert y.dtype == x.grad.dtype == dtype
        assert relative_error(y, exact(x.detach().double())) <= tolerance[dtype]
        for parameter in [x, *layer.parameters()]:
            assert parameter.grad.dtype == dtype
            assert parameter.grad.isfinite().all()

    @each_stateful
    def test_autocast(self, name, tolerance, relative_error):
        layer = WITH_STATE[name]()
        x = inputs(name, dtype=torch.float32)
        expected = layer(x)
        expected.square().sum().backward()
        gradients = [parameter.grad.clone() for parameter in layer.parameters()]
        layer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            y = layer(x)
        y.float().square().sum().backward()
        bound = tolerance[torch.bfloat16]
        assert y.dtype == (torch.float32 if name == "batch norm" else torch.bfloat16)
        assert relative_error(y, expected) <= bound
        for parameter, gradient in zip(layer.parameters(), gradients, strict=True):
            assert parameter.grad.dtype == torch.float32
            assert relative_error(parameter.grad, gradient) <= bound

    @each_stateful
    def test_dtype_argument(self, name):
        layer = WITH_STATE[name](dtype=torch.float64)
        assert {p.dtype for p in layer.parameters()} == {torch.float64}
        assert layer(inputs(name)).dtype == torch.float64


class TestLayouts:
    @each_layer
    def test_strides_of_the_input_do_not_matter(self, name, relative_error):
        layer, x = ALL[name]().double(), inputs(name)
        expected = layer(x)
        wide = torch.zeros(*x.shape[:-1], 2 * x.shape[-1], dtype=x.dtype)
        wide[..., ::2] = x
        variants = [wide[..., ::2], x.transpose(-1, -2).contiguous().transpose(-1, -2)]
        if name in LIFT:
            variants += [x.contiguous(memory_format=torch.channels_last), permuted(x, 1, 3, 2, 0)]
        else:
            # The last is the layout the layers keep among themselves.
            variants += [
                x.contiguous(memory_format=torch.channels_last_3d),
                permuted(x, 4, 2, 0, 3, 1),
                permuted(x, 2, 0, 3, 4, 1),
            ]
        for variant in variants:
            assert torch.equal(variant, x)
            assert variant.stride() != x.stride()
            assert relative_error(layer(variant), expected) < 1e-14

    @each_stateful
    def test_expanded_inputs(self, name, relative_error):
        layer, x = WITH_STATE[name]().double().eval(), inputs(name, 1)
        repeated = x.expand(3, *x.shape[1:])
        assert relative_error(layer(repeated), layer(x).expand(3, *[-1] * 4)) < 1e-14

    @pytest.mark.parametrize("memory_format", [torch.channels_last, torch.channels_last_3d])
    @each_stateful
    def test_module_conversion_keeps_the_values(self, name, memory_format, relative_error):
        layer, x = WITH_STATE[name]().double(), inputs(name)
        expected = layer(x)
        kept = {key: value.clone() for key, value in layer.state_dict().items()}
        layer.to(memory_format=memory_format)
        for key in {"weight", "pointwise_weight"} & set(kept):
            assert torch.equal(layer.state_dict()[key], kept[key])
        if name != "batch norm":
            # Filters of five dimensions have no channels_last form, and stay as they are.
            last = memory_format == torch.channels_last
            kept_format = torch.contiguous_format if last else memory_format
            assert layer.weight.is_contiguous(memory_format=kept_format)
        y = layer(x)
        y.sum().backward()
        assert relative_error(y, expected) < 1e-14

    def test_whole_network_conversion(self, make_network, relative_error):
        network = make_network(4).double().eval()
        x = torch.rand(2, 3, 12, 12, dtype=torch.float64)
        expected = network(x)
        network.to(memory_format=torch.channels_last)
        y = network(x.to(memory_format=torch.channels_last))
        assert relative_error(y, expected) < 1e-13

    def test_house_layout_goes_in_and_comes_out(self):
        # [n, B, H, W, C] in memory: what makes the layers copy-free.
        x = permuted(inputs("full cyclic"), 2, 0, 3, 4, 1)
        for layer in (HIDDEN["full cyclic"]().double(), CEBatchNorm2d(3).double(), CEMaxPool2d(2)):
            assert layer(x).permute(2, 0, 3, 4, 1).is_contiguous()
        lifted = LIFT["lift rgb"]().double()(inputs("lift rgb"))
        assert lifted.permute(2, 0, 3, 4, 1).is_contiguous()


class TestBatches:
    @pytest.mark.parametrize("name", [name for name in ALL if name != "batch norm"])
    def test_empty_batch(self, name):
        layer, x = ALL[name]().double(), inputs(name, 0).requires_grad_()
        y = layer(x)
        y.sum().backward()
        assert y.shape == (0, *layer(inputs(name, 2)).shape[1:])
        assert x.grad.shape == x.shape
        for parameter in layer.parameters():
            assert torch.equal(parameter.grad, torch.zeros_like(parameter))

    def test_empty_batch_through_batch_norm(self):
        assert CEBatchNorm2d(3).eval()(torch.rand(0, 3, 4, 6, 6)).shape == (0, 3, 4, 6, 6)

    @each_layer
    def test_single_image(self, name, relative_error):
        layer, x = ALL[name]().double().eval(), inputs(name)
        assert relative_error(layer(x[:1]), layer(x)[:1]) < 1e-13

    @pytest.mark.parametrize("name", [name for name in WITH_STATE if name != "batch norm"])
    def test_gradients_per_image_by_vmap(self, name, relative_error):
        layer, x = WITH_STATE[name]().double(), inputs(name, 3)
        parameters = dict(layer.named_parameters())

        def loss(parameters, image):
            return functional_call(layer, parameters, image.unsqueeze(0)).square().sum()

        together = vmap(grad(loss), (None, 0))(parameters, x)
        for i, image in enumerate(x):
            for key, gradient in grad(loss)(parameters, image).items():
                assert relative_error(together[key][i], gradient) < 1e-12


class TestCopies:
    @each_stateful
    def test_deepcopy_is_equal_and_independent(self, name):
        layer, x = WITH_STATE[name]().double().eval(), inputs(name)
        expected = layer(x)
        twin = copy.deepcopy(layer)
        with torch.no_grad():
            layer.weight.zero_()
        assert torch.equal(twin(x), expected)

    @each_layer
    def test_pickle_and_torch_save(self, name):
        layer, x = ALL[name]().double().eval(), inputs(name)
        file = io.BytesIO()
        torch.save(layer, file)
        file.seek(0)
        for twin in (torch.load(file, weights_only=False), pickle.loads(pickle.dumps(layer))):
            assert torch.equal(twin(x), layer(x))
            assert repr(twin) == repr(layer)

    @each_stateful
    def test_state_dict_round_trip(self, name):
        layer, other, x = WITH_STATE[name](), WITH_STATE[name](), inputs(name, dtype=torch.float32)
        layer(x)
        file = io.BytesIO()
        torch.save(layer.eval().state_dict(), file)
        file.seek(0)
        other.train().load_state_dict(torch.load(file, weights_only=True), strict=True)
        assert torch.equal(other.eval()(x), layer(x))

    def test_state_dict_is_the_same_in_training_and_evaluation(self, make_network):
        network = make_network(3)
        training = {key: value.clone() for key, value in network.train().state_dict().items()}
        evaluation = network.eval().state_dict()
        assert list(training) == list(evaluation)
        assert all(torch.equal(training[key], evaluation[key]) for key in training)

    @each_stateful
    def test_evaluation_changes_no_state(self, name):
        layer, x = WITH_STATE[name]().double().eval(), inputs(name)
        kept = copy.deepcopy(layer.state_dict()), [b.clone() for b in layer.buffers()]
        with torch.no_grad():
            first, second = layer(x), layer(x)
        assert torch.equal(first, second)
        assert all(torch.equal(kept[0][key], value) for key, value in layer.state_dict().items())
        assert all(torch.equal(a, b) for a, b in zip(kept[1], layer.buffers(), strict=True))


class TestMetaDevice:
    @pytest.fixture
    def original(self, name):
        return WITH_STATE[name](dtype=torch.float64)

    @pytest.mark.parametrize("how", ["argument", "context"])
    @each_stateful
    def test_to_empty_then_load(self, name, how, original):
        layer = self.on_meta(name, how)
        layer.to_empty(device="cpu").load_state_dict(original.state_dict())
        self.check(name, layer, original)

    @pytest.mark.parametrize("how", ["argument", "context"])
    @each_stateful
    def test_load_by_assignment(self, name, how, original):
        layer = self.on_meta(name, how)
        layer.load_state_dict(original.state_dict(), assign=True)
        self.check(name, layer, original)

    @each_stateful
    def test_forward_gives_shapes(self, name, original):
        y = self.on_meta(name, "argument")(inputs(name).to("meta"))
        assert y.is_meta
        assert y.shape == original(inputs(name)).shape

    @staticmethod
    def on_meta(name, how):
        if how == "argument":
            layer = WITH_STATE[name](device="meta", dtype=torch.float64)
        else:
            with torch.device("meta"):
                layer = WITH_STATE[name](dtype=torch.float64)
        assert all(tensor.is_meta for tensor in [*layer.parameters(), *layer.buffers()])
        return layer

    @staticmethod
    def check(name, layer, original):
        x = inputs(name)
        assert not any(tensor.is_meta for tensor in [*layer.parameters(), *layer.buffers()])
        # Group constants are not in the state dict: they must have been computed anew.
        assert torch.equal(layer.eval()(x), original.eval()(x))
