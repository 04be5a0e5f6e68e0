"""Canonicalised networks: invariant to hue shifts, whatever is inside."""

import copy
import json

import pytest
import torch
from torch import nn

import equicolor
from equicolor.canonicalization import Canonicalized, hue_selector
from equicolor.color import shift_hue
from equicolor.conversion import ConversionError, Source
from equicolor.light import balance_light, scale_channels
from equicolor.models import CheckpointError, load_model, resnet18, save_model
from equicolor.models.cost import cost
from equicolor.models.export import export
from equicolor.models.tensor_files import read_weights, write_weights
from equicolor.nn import CEBatchNorm2d, CELiftConv2d, fold
from equicolor.training.pretrained import load_pretrained

N = 6


class Odd(nn.Module):
    """Returns whatever a function makes of images."""

    def __init__(self, function):
        super().__init__()
        self.function, self.weight = function, nn.Parameter(torch.ones(()))

    def forward(self, images):
        return self.function(images)


def reds(images):
    """How red images are: natural ones are red."""
    return images[:, 0].mean((1, 2)) - images[:, 1:].mean((1, 2, 3))


@pytest.fixture
def images(smooth_images):
    return smooth_images(3, 40, 40)


@pytest.fixture
def network():
    torch.manual_seed(0)
    return resnet18(5, width=4).double().eval()


@pytest.fixture
def canonical(settle, smooth_images):
    def make(network, select="learned", **options):
        torch.manual_seed(1)
        if select == "learned":
            select = hue_selector(rotations=N, size=32, width=4)
            settle(select, smooth_images(3, 32, 32).float())
        return equicolor.canonicalize(network, N, select, **options).double().eval()

    return make


# --- invariance ----------------------------------------------------------------------------------


@pytest.mark.parametrize("select", ["learned", "energy", "entropy", "confidence", reds])
def test_outputs_are_equal_on_all_grid_shifts(canonical, select, network, images, relative_error):
    model = canonical(network, select)
    with torch.no_grad():
        expected = model(images)
        for k in range(1, N):
            assert relative_error(model(shift_hue(images, k / N)), expected) < 1e-9


def test_the_angle_moves_with_the_hue(canonical, network, images):
    model = canonical(network)
    with torch.no_grad():
        for k in range(N):
            moved = model.angle(shift_hue(images, k / N)) - model.angle(images) - k / N
            assert (torch.remainder(moved + 0.5, 1) - 0.5).abs().max() < 1e-9


def test_a_shift_is_found_and_taken_back(canonical, images, network):
    """Scores that are highest for red: an image of one colour becomes red, whatever it was."""
    model = canonical(network, reds)
    red = torch.tensor([0.9, 0.2, 0.2], dtype=torch.float64).view(1, 3, 1, 1).expand(1, 3, 8, 8)
    for turns in (0.0, 1 / 6, 0.4, -0.21):
        natural = model.natural(shift_hue(red, turns))
        assert (natural - red).abs().max() < 0.1  # the score is no Gaussian: nearly
        assert float(model.angle(shift_hue(red, turns))) % 1 == pytest.approx(turns % 1, abs=0.03)


@pytest.mark.parametrize("gate", [None, 0.0, 0.5, 1.0])
def test_several_modes_are_invariant_and_average_probabilities(
    canonical, gate, network, images, relative_error
):
    model = canonical(network, modes=2, gate=gate)
    with torch.no_grad():
        log = model(images)
        torch.testing.assert_close(log.exp().sum(1), torch.ones(3, dtype=torch.float64))
        assert relative_error(model(shift_hue(images, 1 / N)), log) < 1e-9


def test_modes_are_averaged_by_their_probabilities(canonical, network, images):
    model = canonical(network, modes=2)
    with torch.no_grad():
        angles, weights = model._modes(images)
        share = weights / weights.sum(1, keepdim=True)
        parts = [network(shift_hue(images, -angle)).softmax(1) for angle in angles.T]
        expected = sum(part * each[:, None] for part, each in zip(parts, share.T, strict=True))
        torch.testing.assert_close(model(images).exp(), expected)


def test_a_gate_asks_again_only_for_unsure_images(canonical, network, images):
    model = canonical(network, modes=2, gate=0.5)
    with torch.no_grad():
        sure = model._modes(images)[1][:, 0]
        model = canonical(network, modes=2, gate=float(sure.median()) + 1e-6)
        batches = []
        network.register_forward_pre_hook(lambda _, args: batches.append(len(args[0])))
        one, two = canonical(network), canonical(network, modes=2)
        expected = torch.where(
            (sure < model.options.gate)[:, None], two(images), one(images).log_softmax(1)
        )
        batches.clear()
        torch.testing.assert_close(model(images), expected)
    assert batches == [3, int((sure < model.options.gate).sum())]


def test_a_gate_keeps_further_arguments_with_their_images(canonical, network, images):
    class Scaled(nn.Module):
        def forward(self, images, scale, *, shift):
            return scale * network(images) + shift

    sure = canonical(network, modes=2)._modes(images)[1][:, 0]
    gate = float(sure.median()) + 1e-6
    model = canonical(Scaled(), modes=2, gate=gate, normalization=None)
    scale, shift = (torch.rand(3, 1, dtype=torch.float64) for _ in range(2))
    for each in range(3):
        part = slice(each, each + 1)
        one = model(images[part], scale[part], shift=5 * shift[part])
        torch.testing.assert_close(model(images, scale, shift=5 * shift)[part], one)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_surest_of_very_sure_answers_is_found(canonical, dtype, images):
    """Log-softmax is 0 for all of these answers in float32."""

    def logits(images):
        red = 20 + 20 * reds(images)
        return torch.stack((red, 0 * red), 1)

    model = canonical(Odd(logits).to(dtype), "confidence", normalization=None).to(dtype)
    colours = torch.tensor([[0.9, 0.2, 0.2], [0.2, 0.9, 0.2]]).view(2, 3, 1, 1).expand(2, 3, 8, 8)
    angles = model.angle(colours.to(dtype))
    torch.testing.assert_close(angles, torch.tensor([0, 1 / 3]), atol=0.02, rtol=0)


def test_gray_images_pass_unchanged(canonical, network):
    gray = torch.rand(2, 1, 16, 16, dtype=torch.float64).expand(2, 3, 16, 16)
    assert torch.equal(canonical(network).natural(gray), gray)


# --- light ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("light", ["gray-world", "shades-of-gray"])
def test_gains_of_the_channels_change_nothing(light, network, images, relative_error, settle):
    dim = 0.6 * images
    hues = settle(hue_selector(rotations=N, size=32, width=4), images.float())
    for select in (light, (light, hues), (reds, light)):
        model = equicolor.canonicalize(network, select=select).double()
        with torch.no_grad():
            expected = model(dim)
            for gains in ((1.3, 1.0, 0.7), (0.7, 1.1, 1.3), (1.2, 1.2, 1.2)):
                assert relative_error(model(scale_channels(dim, gains)), expected) < 1e-9
            assert relative_error(model(shift_hue(dim, 1 / 3)), expected) < 1e-9 or select == light


def test_light_alone_finds_no_hue(network, images):
    model = equicolor.canonicalize(network, select="gray-world").double()
    assert torch.equal(model.natural(images), balance_light(images))
    assert model.info["passes"] == 1
    with pytest.raises(ValueError, match="takes no hue shift back"):
        model.angle(images)
    with pytest.raises(ValueError, match="nothing to train"):
        model.fit(images)


# --- what comes back -----------------------------------------------------------------------------


def test_any_output_comes_back_as_it_is(canonical, images):
    wanted = {"a": [images.mean((1, 2, 3))], "b": ("text", 1)}
    assert canonical(Odd(lambda _: wanted), normalization=None)(images) is wanted


def test_lists_of_images_of_several_sizes_pass(canonical, images):
    """As torchvision's detectors take them, with targets beside."""

    class Detector(nn.Module):
        def forward(self, images, targets=None):
            return [{"boxes": image.mean((1, 2))} for image in images], targets

    model = canonical(Detector(), normalization=None)
    both = [images[0], images[1, :, :20]]
    with torch.no_grad():
        found, targets = model(both, targets=[1, 2])
        moved, _ = model([shift_hue(image, 1 / N) for image in both])
    assert targets == [1, 2]
    for a, b in zip(found, moved, strict=True):
        torch.testing.assert_close(a["boxes"], b["boxes"])


def test_the_network_is_the_very_object_and_is_not_changed(canonical, network, images):
    before = copy.deepcopy(network.state_dict())
    model = canonical(network)
    model.float().fit(torch.rand(32, 3, 16, 16), epochs=1, batch_size=16)
    model.double()(images)
    assert model.network is network
    assert not network.training
    for key, value in network.state_dict().items():
        assert torch.equal(value, before[key]), key


def test_the_selector_stays_in_eval_mode(canonical, network):
    model = canonical(network).train()
    assert model.network.training
    assert not model.selector.training


def test_images_are_normalised_after_the_shift(canonical, images, relative_error):
    mean, std = [0.5, 0.4, 0.3], [0.2, 0.3, 0.4]
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.LazyLinear(3)).double()
    plain(images)
    model = canonical(plain, normalization=(mean, std))
    with torch.no_grad():
        shape = (3, 1, 1)
        numbers = [torch.tensor(each, dtype=torch.float64).view(shape) for each in (mean, std)]
        natural = (model.natural(images) - numbers[0]) / numbers[1]
        assert relative_error(model(images), plain(natural)) < 1e-12


@pytest.mark.parametrize("differentiable", [False, True])
def test_gradients_through_the_angle_are_optional(canonical, differentiable, network, images):
    model = canonical(network, differentiable=differentiable)
    model(images).sum().backward()
    gradients = [parameter.grad for parameter in model.selector.parameters()]
    assert all((gradient is not None) == differentiable for gradient in gradients)


@pytest.mark.parametrize("sharpness", [1.0, 1e4])
@pytest.mark.parametrize("gate", [None, 0.0, 0.5, 1.0])
def test_gradients_of_several_modes_are_finite(canonical, gate, sharpness, network, images):
    """Also where a gate or a sure selector leaves other modes no probability."""
    model = canonical(network, modes=2, gate=gate, differentiable=True)
    with torch.no_grad():
        model.selector.score.weight.mul_(sharpness)
    model(images)[:, 0].sum().backward()
    gradients = [parameter.grad for parameter in model.selector.parameters()]
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert any(gradient.any() for gradient in gradients)


def test_half_precision_networks(canonical, network, images):
    for dtype in (torch.bfloat16, torch.float16):
        model = canonical(network).to(dtype)
        with torch.no_grad():
            assert model(images.to(dtype)).dtype == dtype
            # The angle keeps more digits than the images have.
            natural = shift_hue(images.to(dtype), -model.angle(images.to(dtype)))
            assert torch.equal(model.natural(images.to(dtype)), natural)


def test_info_says_what_was_chosen(canonical, network):
    info = canonical(network, modes=2, gate=0.9).info
    assert info["passes"] == 2
    assert info["fitted"] is None
    assert {"select": "learned", "rotations": N, "modes": 2, "gate": 0.9}.items() <= info.items()
    assert canonical(network, "energy").info["passes"] == N + 1
    assert canonical(network, reds).info["select"] == "reds"


# --- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("select", ["learned", "entropy", ("gray-world", "energy")])
def test_a_saved_network_is_loaded_again(canonical, select, network, images, tmp_path):
    model = canonical(network, select, modes=2, gate=0.5).float()
    model.class_names = tuple("abcde")
    loaded = load_model(save_model(model, tmp_path / "model.safetensors"))
    assert isinstance(loaded, Canonicalized)
    assert loaded.options == model.options
    assert loaded.class_names == model.class_names
    with torch.no_grad():
        assert torch.equal(loaded(images.float()), model(images.float()))


def test_a_converted_network_is_saved_with_its_selector(canonical, network, images, tmp_path):
    converted = equicolor.convert(network.float(), 3, image_size=40)
    model = canonical(converted).float()
    loaded = load_model(save_model(model, tmp_path / "model.safetensors"))
    with torch.no_grad():
        torch.testing.assert_close(loaded(images.float()), model(images.float()))


def test_a_converted_and_canonicalised_network_is_trained_further(canonical, network, tmp_path):
    model = canonical(equicolor.convert(network.float(), 3, image_size=40, verify=False)).float()
    path = save_model(model, tmp_path / "model.safetensors")
    before = load_model(path).state_dict()
    for classes in (5, 7):
        again = load_pretrained(path, classes)
        assert again.eval()(torch.rand(2, 3, 40, 40)).shape == (2, classes)
        after = again.state_dict()
        changed = [key for key in before if not torch.equal(before[key], after[key])]
        head = [key for key in before if ".linear." in key]
        assert changed == (head if classes == 7 else [])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_files_keep_the_dtypes_of_network_and_selector(
    dtype, network, images, settle, smooth_images, tmp_path
):
    selector = hue_selector(rotations=N, size=32, width=4)
    settle(selector, smooth_images(3, 32, 32).float())
    model = equicolor.canonicalize(network.to(dtype), select=selector)
    loaded = load_model(save_model(model, tmp_path / "model.safetensors"))
    assert {key: value.dtype for key, value in loaded.state_dict().items()} == {
        key: value.dtype for key, value in model.state_dict().items()
    }
    with torch.no_grad():
        assert torch.equal(loaded(images.to(dtype)), model(images.to(dtype)))


def test_modes_of_parts_are_kept(network):
    network.train()
    network.bn1.eval()
    model = equicolor.canonicalize(network, N)
    assert model.training
    assert not model.selector.training
    assert [name for name, part in network.named_modules() if not part.training] == ["bn1"]


def test_normalisation_goes_where_the_network_is():
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.LazyLinear(3)).double()
    network(torch.rand(1, 3, 8, 8).double())
    model = equicolor.canonicalize(network, N, "energy", normalization="imagenet")
    assert model.normalize.scale.dtype == torch.float64
    network.to("meta")
    model = equicolor.canonicalize(network, N, "energy", normalization="imagenet")
    assert model(torch.empty(2, 3, 8, 8, device="meta").double()).is_meta


def test_a_canonicalised_network_is_no_source(canonical, network):
    """Files do not nest them: that the selector alone can be saved is known before the fit."""
    assert not equicolor.canonicalize(canonical(network).float(), rotations=N).config


def test_networks_of_unknown_origin_cannot_be_saved_but_their_selector_can(
    canonical, tmp_path, images
):
    model = canonical(Odd(reds), normalization=None)
    with pytest.raises(TypeError, match="source="):
        save_model(model, tmp_path / "model.safetensors")
    path = save_model(model.selector, tmp_path / "selector.safetensors")
    again = equicolor.canonicalize(Odd(reds), select=load_model(path), normalization=None)
    assert again.options.rotations == N
    torch.testing.assert_close(again.double().angle(images), model.angle(images))


def test_a_network_that_its_source_does_not_build_is_refused(canonical, network, tmp_path):
    source = Source("equicolor:resnet18", {"num_classes": 7, "width": 4})
    model = canonical(network, source=source)
    with pytest.raises(CheckpointError, match="canonicalize"):
        save_model(model, tmp_path / "model.safetensors")


@pytest.mark.parametrize("options", [{}, {"modes": 2, "gate": 0.5}])
@pytest.mark.parametrize("select", ["learned", "confidence"])
def test_folded_networks_compute_the_same(canonical, select, options, network, images):
    model = canonical(network, select, **options)
    folded = fold(model)
    assert not any(isinstance(each, nn.BatchNorm2d) for each in folded.modules())
    with torch.no_grad():
        torch.testing.assert_close(folded(images), model(images))
    assert not any(parameter.requires_grad for parameter in folded.parameters())
    with pytest.raises(ValueError, match="folded" if select == "learned" else "nothing to train"):
        folded.fit(images)


class Sorted(nn.Module):
    """Has a batch norm that can be folded, and then something that cannot."""

    def __init__(self):
        super().__init__()
        self.lift, self.norm = CELiftConv2d(3, 4, 3, rotations=4), CEBatchNorm2d(4)
        nn.init.uniform_(self.norm.running_var, 0.1, 0.5)

    def forward(self, images):
        return self.norm(self.lift(images)).sort(2)[0].mean((2, 3, 4))


class Called(nn.Sequential):
    def __call__(self, images):
        return 3 * super().__call__(images)


def with_forward():
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten())
    network.forward = lambda images: images.mean((2, 3))
    return network


@pytest.mark.parametrize(
    "make", [Sorted, with_forward, lambda: Called(nn.Conv2d(3, 4, 3), nn.Flatten())]
)
def test_a_network_that_cannot_be_folded_stays_as_it_is(canonical, make, images):
    model = canonical(make().double(), normalization=None)
    folded = fold(model)
    assert type(folded.network) is type(model.network)
    assert type(folded.selector) is not type(model.selector)
    with torch.no_grad():
        torch.testing.assert_close(folded(images), model(images))


@pytest.fixture
def small():
    """A network whose graph is short: exporters and compilers take long for every operation."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())


# The page of canonicalisation exports a learned selector to ONNX, see test_tutorial.py.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("suffix", "form", "select", "options"),
    [
        (".onnx", "auto", reds, {"modes": 2, "gate": 0.5}),
        (".pt", "auto", "learned", {"modes": 2, "gate": 0.5}),
        (".pt2", "dense", "learned", {}),  # which has fewer operations
    ],
)
def test_selector_shift_and_network_are_exported_in_one_file(
    canonical, suffix, form, select, options, small, tmp_path
):
    model = canonical(small, select, normalization=None, **options).float()
    report = export(model, tmp_path / f"model{suffix}", input_size=20, form=form)
    assert report.relative_error < 1e-4


@pytest.mark.slow
def test_compiled_networks_compute_the_same(canonical, small, images):
    model = canonical(small.double(), normalization=None)
    with torch.no_grad():
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(images), model(images))


def test_the_cost_of_the_selector_is_counted(canonical, network):
    plain = cost(network.float(), 32)
    with_selector = cost(canonical(network).float(), 32)
    assert with_selector.parameters > plain.parameters
    assert with_selector.macs > plain.macs


# --- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda x: (255 * x).to(torch.uint8), "divide 8-bit images by 255"),
        (lambda x: 255 * x, r"from \d+.* to \d+: .*divide 8-bit"),
        (lambda x: (x - 0.5) / 0.1, "leave out your own normalisation"),
        (lambda x: x * torch.nan, "nan"),
        (lambda x: x[0], r"\[B, 3, H, W\]"),
        (lambda x: x[:, :1], r"\[\.\.\., 3, H, W\]"),
    ],
)
def test_images_that_are_none(canonical, make, words, network, images):
    with pytest.raises((TypeError, ValueError), match=words):
        canonical(network)(make(images))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"select": "magic"}, "'learned', 'energy'"),
        ({"select": 3}, "function of images, got int"),
        ({"select": ()}, "or one of each"),
        ({"select": ("energy", "entropy")}, "or one of each"),
        ({"select": "gray-world"}, "selects none"),
        ({"rotations": 0}, "rotations must be at least 1"),
        ({"modes": 3}, "modes must be at most 2 for 6 rotations"),
        ({"gate": 0.5}, "modes must be 2 or more"),
        ({"gate": 1.5, "modes": 2}, r"gate must lie in \[0, 1\]"),
        ({"preset": "best"}, "'fast', 'default', 'accurate'"),
        ({"preset": "fast", "select": "energy"}, "is for select='learned'"),
        ({"source": "resnet18"}, "equicolor:NAME"),
        (
            {"select": hue_selector(rotations=4, size=16, width=4)},
            "compares 4 hues, got rotations=6",
        ),
        (
            {"select": hue_selector(rotations=N, size=16, width=4), "preset": "fast"},
            r"preset='fast' is for select='learned', got a HueSelector$",
        ),
        ({"rotations": 12, "select": "gray-world", "differentiable": True}, "selects none"),
        ({"differentiable": "no"}, "differentiable must be True or False, got 'no'"),
        ({"normalization": ([0.5] * 3, [0.0] * 3)}, "std must be positive"),
    ],
)
def test_bad_options(options, words, network):
    with pytest.raises((TypeError, ValueError), match=words):
        equicolor.canonicalize(network, **{"rotations": N, **options})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (torch.rand(3, 8, 8).numpy(), r"or a list of images \[3, H, W\]; got a ndarray"),
        ({"images": torch.rand(3, 8, 8)}, "got a dict"),
        ([torch.rand(3, 8, 8).numpy()], r"torch\.Tensor, got ndarray"),
        ([None], r"torch\.Tensor, got NoneType"),
        ([torch.rand(1, 3, 8, 8)], r"list of images \[3, H, W\], got \[1, 3, 8, 8\]"),
        ([torch.zeros(3, 8, 8, dtype=torch.uint8)], "divide 8-bit images by 255"),
        ([torch.rand(1, 8, 8)], r"\[\.\.\., 3, H, W\]"),
    ],
)
def test_lists_of_something_else(canonical, given, words, network):
    with pytest.raises((TypeError, ValueError), match=words):
        canonical(network)(given)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"select": None}, "are both None"),
        ({"image_size": "big"}, "image_size must be an int"),
        ({"resize": -3}, "resize must be at least 1"),
        ({"width": -1}, "width must be at least 1"),
        ({"differentiable": 1}, "True or False"),
        ({"mean": [0.5] * 3}, "mean and std belong together"),
        ({"mean": [0.5] * 3, "std": [0] * 3}, "std must be positive"),
        ({"rotations": 10**9}, "at most 1000"),
        ({"select": "magic"}, "'learned', 'energy'"),
        ({"source": "equicolor:canonicalized"}, "cannot be built from equicolor:canonicalized"),
    ],
)
def test_files_that_ask_for_nonsense(canonical, change, words, network, tmp_path):
    path = save_model(canonical(network, "energy").float(), tmp_path / "model.safetensors")
    header, weights = read_weights(path, weights=True)
    config = json.loads(header["config"]) | change
    write_weights(path, weights, {"config": json.dumps(config)})
    with pytest.raises(CheckpointError, match=words) as caught:
        load_model(path)
    assert "\n" not in str(caught.value)


def test_a_selector_that_nobody_trained_is_not_asked(network, images):
    model = equicolor.canonicalize(network.float(), N, preset="fast")
    for ask in (model, model.angle):
        with pytest.raises(ValueError, match=r"not trained: call fit\(images\) first"):
            ask(images.float())
    assert cost(model, 32).macs > cost(network, 32).macs


def test_a_selector_that_is_given_untrained_is_fitted_first(network, images):
    photos, small = torch.rand(16, 3, 64, 64), images.float()
    selector = hue_selector(rotations=N, size=16, width=4)
    first, second = (equicolor.canonicalize(network.float(), select=selector) for _ in range(2))
    for model in (first, second):
        with pytest.raises(ValueError, match=r"not trained: call fit\(images\) first"):
            model(small)
    first.fit(photos, epochs=1, batch_size=16)
    third = equicolor.canonicalize(network.float(), select=selector)
    with torch.no_grad():
        for model in (second, third):  # whose selector is the same
            assert torch.equal(model(small), first(small))
    with torch.device("meta"):
        equicolor.canonicalize(resnet18(5, width=4), N, preset="fast")


def test_a_state_tells_whether_its_selector_was_trained(network, images, tmp_path):
    def new():
        return equicolor.canonicalize(network.float(), N, preset="fast")

    state = new().state_dict()
    rest = {key: value for key, value in state.items() if not key.startswith("selector.")}
    for partial in (state, rest):
        model = new()
        model.load_state_dict(partial, strict=False)
        with pytest.raises(ValueError, match=r"not trained: call fit\(images\) first"):
            model(images.float())
    with pytest.raises(ValueError, match=r"not trained: call fit\(images\) first"):
        save_model(model, tmp_path / "model.safetensors")
    fitted = new().fit(torch.rand(16, 3, 64, 64), epochs=1, batch_size=16)
    model.load_state_dict(fitted.state_dict())
    model.load_state_dict(rest, strict=False)
    with torch.no_grad():
        assert torch.equal(model(images.float()), fitted(images.float()))


def test_images_without_pixels(canonical, network):
    with pytest.raises(ValueError, match=r"with pixels, got \[2, 3, 0, 8\]"):
        canonical(network)(torch.rand(2, 3, 0, 8).double())


def test_scoring_hues_leaves_batch_norms_alone(canonical, images):
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.LazyLinear(4))
    network.double()(images)  # settles the shape of the last layer
    network[1].reset_running_stats()
    model = canonical(network, "entropy", normalization=None).train()
    model(images)
    assert network.training
    assert int(network[1].num_batches_tracked) == 1


def test_an_unknown_normalisation_is_asked_for():
    with pytest.raises(ConversionError, match="normalization="):
        equicolor.canonicalize(nn.Conv2d(3, 3, 1))


def test_something_that_is_no_network():
    with pytest.raises(TypeError, match=r"torch\.nn\.Module, got function"):
        equicolor.canonicalize(reds)


def test_outputs_that_say_nothing_of_classes(canonical, images):
    with pytest.raises(ValueError, match=r"logits \[B, classes\], but it returns a dict"):
        canonical(Odd(lambda _: {}), "energy", normalization=None)(images)
    with pytest.raises(ValueError, match=r"modes=2 .* returns \[3\]"):
        canonical(Odd(reds), modes=2, normalization=None)(images)
    with pytest.raises(ValueError, match="take modes=1"):
        canonical(Odd(reds), modes=2, normalization=None)([images[0]])


def test_scores_that_are_no_numbers(canonical, network, images):
    def broken(images):
        return reds(images) * torch.tensor([1.0, torch.nan, 1.0])

    with pytest.raises(ValueError, match=r"select='broken' must score .* gave NaN for 1 of 3"):
        canonical(network, broken)(images)
    with torch.no_grad():
        assert canonical(network, lambda x: reds(x) - torch.inf)(images).isfinite().all()


def test_a_score_of_another_shape(canonical, images):
    with pytest.raises(ValueError, match=r"one score an image, \[3\], got \[3, 40\]"):
        canonical(Odd(reds), lambda x: x.mean((1, 2)), normalization=None)(images)
