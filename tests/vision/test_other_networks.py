"""Segmentation, detection, hybrids, transformers, and networks by name, of torchvision and timm."""

import copy
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import nn
from typer.testing import CliRunner

import equicolor
from equicolor import canonicalize
from equicolor.cli.app import app
from equicolor.color import shift_hue
from equicolor.conversion import ConversionError, ConvertedNetwork, Source, adapt, convert
from equicolor.data.images import ImageSet
from equicolor.evaluation import predict
from equicolor.evaluation.images import OtherClassesError, choose_preparation, match_classes
from equicolor.models import CheckpointError, load_model, save_model
from equicolor.models.facts import network_facts
from equicolor.models.foreign import ForeignNetwork, load_foreign
from equicolor.models.loading import load_network
from equicolor.models.registry import GrayInput, with_classes
from equicolor.nn import fold
from equicolor.nn.batched import BatchedCEConv2d
from equicolor.training.finetuning import finetune_recipe
from equicolor.training.pretrained import new_head

MISSING = "torchvision or timm is missing; 'make vision' has both"
torchvision = pytest.importorskip("torchvision", reason=MISSING)
timm = pytest.importorskip("timm", reason=MISSING)

from tests.vision.families import (  # noqa: E402
    MEAN,
    STD,
    TORCHVISION,
    normalize,
    randomize,
)
from torchvision.models import detection, segmentation  # noqa: E402
from torchvision.models._utils import IntermediateLayerGetter  # noqa: E402
from torchvision.models.detection.backbone_utils import BackboneWithFPN  # noqa: E402

N = 3


@pytest.fixture
def images(smooth_images):
    return nn.functional.interpolate(smooth_images(2, 8, 8), 64)


# --- segmentation and detection ------------------------------------------------------------------


def test_segmentation_networks_return_pooled_maps(images, relative_error):
    heads = segmentation.fcn.FCNHead(512, 5), segmentation.fcn.FCNHead(128, 5)
    backbone = IntermediateLayerGetter(TORCHVISION["resnet"](), {"layer2": "aux", "layer4": "out"})
    original = segmentation.FCN(backbone, *heads).double().eval()
    how = {"normalization": (MEAN, STD), "image_size": 64}
    apart = convert(original, N, coset_pool=None, **how, verify=False)
    pooled = convert(original, N, **how)
    with torch.no_grad():
        found, maps = apart(images), pooled(images)
        for k in range(N):
            expected = original(normalize(shift_hue(images, -k / N)))
            assert list(expected) == list(found) == list(maps)
            for name, tensor in expected.items():
                assert relative_error(found[name][:, k], tensor) < 1e-10
        for name, tensor in pooled(shift_hue(images, 1 / N)).items():
            assert tensor.shape == (2, 5, 64, 64)
            assert relative_error(tensor, maps[name]) < 1e-10


def test_detectors_get_an_equivariant_backbone(images, relative_error):
    network = randomize(TORCHVISION["resnet"]().double(), images)
    backbone = BackboneWithFPN(network, {"layer2": "0", "layer4": "1"}, [128, 512], 8)
    original = (
        detection.FasterRCNN(backbone, num_classes=3, min_size=64, max_size=96).eval().double()
    )
    detector = convert(original, N, coset_pool="avg")
    assert type(detector) is type(original)
    assert isinstance(detector.backbone.body, ConvertedNetwork)
    assert not any(isinstance(m, BatchedCEConv2d) for m in original.modules())
    # two images of different sizes: the smaller one is padded, and padding has no hue
    batch = [images[0], images[1, :, :48]]
    with torch.no_grad():
        seen, _ = original.transform([image.clone() for image in batch])
        found = detector.backbone.body(seen.tensors)
        shifted = [
            original.backbone.body(
                original.transform([shift_hue(image, -k / N) for image in batch])[0].tensors
            )
            for k in range(N)
        ]
        for name, tensor in found.items():
            expected = torch.stack([features[name] for features in shifted]).mean(0)
            assert relative_error(tensor, expected) < 1e-10
        turned, _ = detector.transform([shift_hue(image, 1 / N) for image in batch])
        for name, tensor in detector.backbone(turned.tensors).items():
            assert relative_error(tensor, detector.backbone(seen.tensors)[name]) < 1e-10


@pytest.mark.parametrize(
    "option",
    [
        {"normalization": "imagenet"},
        {"takes": "normalized"},
        {"match_parameters": True, "init": "random"},
        {"source": "torchvision:ssdlite320_mobilenet_v3_large"},
    ],
)
def test_detectors_refuse_what_they_would_pass_over(option):
    with torch.device("meta"):
        model = detection.ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None)
    with pytest.raises(ValueError, match=f"{next(iter(option))} cannot be given"):
        convert(model, 2, **option)


@pytest.mark.parametrize("pool", ["confidence", None])
def test_detectors_pool_features(pool):
    with torch.device("meta"):
        model = detection.ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None)
    with pytest.raises(ValueError, match=f"must be 'max' or 'avg', got {pool!r}"):
        convert(model, 2, coset_pool=pool)


def test_dictionaries_of_features_can_end_the_equivariant_part(images, relative_error):
    backbone = IntermediateLayerGetter(TORCHVISION["resnet"](), {"layer4": "out"})
    model = segmentation.FCN(backbone, segmentation.fcn.FCNHead(512, 3))
    network = convert(model.eval(), 2, until="backbone", normalization="imagenet", image_size=32)
    x = images[:1, :, :32, :32].float()
    with torch.no_grad():
        found = network(x)["out"]
        assert found.shape == (1, 3, *x.shape[-2:])
        assert relative_error(network(shift_hue(x, 0.5))["out"], found) < 1e-3
        assert relative_error(fold(network)(x)["out"], found) < 1e-3


def test_ssd_backbones_convert_whole():
    with torch.device("meta"):
        original = detection.ssd300_vgg16(weights=None, weights_backbone=None, num_classes=3)
        detector = convert(original, N)
    assert isinstance(detector.backbone, ConvertedNetwork)


def test_feature_lists_are_pooled(images, relative_error):
    original = timm.create_model(
        "resnet18", layers=(1, 1, 1, 1), channels=(8, 8, 16, 16), features_only=True
    )
    original = original.double().eval()
    network = convert(original, N, normalization="imagenet", image_size=64)
    with torch.no_grad():
        features, shifted = network(images), network(shift_hue(images, 1 / N))
    assert [f.shape[:2] for f in features] == [(2, 64), (2, 8), (2, 8), (2, 16), (2, 16)]
    for one, other in zip(features, shifted, strict=True):
        assert relative_error(other, one) < 1e-10


# --- hybrids, transformers, metadata -------------------------------------------------------------


def test_hybrids_are_plain_after_their_exit(images, relative_error):
    original = randomize(TORCHVISION["resnet"]().double(), images)
    network = convert(original, N, until="layer2", normalization=(MEAN, STD), image_size=64)
    inner = network.network
    assert isinstance(inner.layer1[0].conv1, BatchedCEConv2d)
    assert isinstance(inner.layer2.body[0].conv1, BatchedCEConv2d)
    assert type(inner.layer3[0].conv1) is nn.Conv2d
    with torch.no_grad():
        assert relative_error(network(shift_hue(images, 1 / N)), network(images)) < 1e-10
    with pytest.raises(ConversionError, match=r"until names no module.*'layer9'; did you mean"):
        convert(original, N, until="layer9", normalization=None)
    with pytest.raises(ConversionError, match=r"until='layer2.0.conv1' cannot end .* data flows"):
        convert(original, N, until="layer2.0.conv1", normalization=None, image_size=64)


@pytest.mark.parametrize("library", ["torchvision", "timm"])
def test_transformers_are_refused_with_what_works(library):
    if library == "timm":
        model = timm.create_model("test_vit", num_classes=3)
        path = "blocks.0.attn"
    else:
        make = torchvision.models.VisionTransformer
        model = make(32, 8, 2, 2, hidden_dim=16, mlp_dim=32, num_classes=3)
        path = "encoder.layers.encoder_layer_0.self_attention"
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ConversionError) as caught:
        convert(
            model, N, normalization="imagenet", image_size=32 if library == "torchvision" else None
        )
    message = str(caught.value)
    assert path in message
    assert "attention mixes places by content" in message
    assert "What works: a convolutional network" in message
    assert "equicolor.adapt(model)" in message
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


def test_transformers_take_an_adapter():
    model = timm.create_model("test_vit", num_classes=3).eval()
    size = model.pretrained_cfg["input_size"][-1]
    network = adapt(model, rotations=6)
    x = torch.rand(2, 3, size, size)
    mean, std = (torch.tensor(model.pretrained_cfg[k]).view(3, 1, 1) for k in ("mean", "std"))
    x = (x - mean) / std
    with torch.no_grad():
        assert torch.equal(network(x), model(x))
    trained = {name for name, p in network.named_parameters() if p.requires_grad}
    assert trained
    assert all(".proj.adapter" in name or ".proj.gate" in name for name in trained)


def test_normalisation_comes_from_metadata():
    model = timm.create_model("test_resnet", num_classes=3)
    lift = convert(model, N).lift
    assert lift.numbers["mean"] == tuple(model.pretrained_cfg["mean"])
    weights = torchvision.models.ResNet18_Weights.DEFAULT
    model = TORCHVISION["resnet"]()
    lift = convert(model, N, normalization=weights, image_size=64).lift
    assert lift.numbers == {"mean": MEAN, "std": STD}
    with pytest.raises(ConversionError, match=r"nothing says how ResNet expects its images"):
        convert(model, N)


def test_a_class_of_weights_is_no_member():
    weights = torchvision.models.ResNet18_Weights
    with pytest.raises(ConversionError, match=r"such as ResNet18_Weights.DEFAULT; got the class"):
        convert(TORCHVISION["resnet"](), 2, normalization=weights, image_size=64)


def test_auxiliary_heads_of_training_are_named():
    with torch.device("meta"):
        model = torchvision.models.googlenet(weights=None, init_weights=False, num_classes=3)
    with pytest.raises(ConversionError, match=r"aux1.conv.conv.*is not called in eval mode"):
        convert(model, N, normalization=None, image_size=64)


def test_dropout_functions_are_named():
    model = timm.create_model("test_resnet", num_classes=3, drop_rate=0.3)
    with pytest.raises(ConversionError, match=r"calls a dropout function.*drop_rate=0"):
        convert(model, N)


# --- matched parameters --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("torchvision:resnet18", 0.02),
        ("torchvision:vgg11", 0.02),
        ("torchvision:densenet121", 0.08),  # concatenations: all counts in steps of 1/32
        ("torchvision:mobilenet_v3_small", 0.03),
        ("torchvision:efficientnet_b0", 0.03),
        ("torchvision:resnext50_32x4d", 0.05),
        ("timm:regnety_002", 0.03),
        ("timm:convnext_atto", 0.03),
    ],
)
def test_parameters_can_be_matched(name, limit):
    # on the meta device: numbers of parameters need no parameters
    library, _, model = name.partition(":")
    if library == "torchvision":
        with torch.device("meta"):
            original = torchvision.models.get_model(model)
    else:  # timm computes widths with torch.unique, which torch 2.11 lacks on the meta device
        original = timm.create_model(model).to("meta")
    with torch.device("meta"):
        network = convert(
            original, 6, init="random", match_parameters=True, normalization="imagenet"
        )
    target = sum(p.numel() for p in original.parameters())
    found = sum(p.numel() for p in network.parameters())
    assert abs(found / target - 1) < limit


# --- by name: checkpoints, evaluation, export ----------------------------------------------------


def test_torchvision_by_name():
    network = load_network("torchvision:resnet18", pretrained=False)
    assert isinstance(network, ForeignNetwork)
    assert (network.image_size, network.resize) == (224, 256)
    preset = torchvision.models.get_model_weights("resnet18").DEFAULT.transforms()
    images = torch.rand(2, 3, 64, 64)
    normalised = torchvision.transforms.functional.normalize(images, preset.mean, preset.std)
    with torch.no_grad():
        torch.testing.assert_close(network(images), network.network(normalised))
    with pytest.raises(ValueError, match="torchvision has no network 'resnet17'; did you mean"):
        load_network("torchvision:resnet17")


def test_timm_by_name():
    network = load_network("timm:resnet18", pretrained=False)
    assert isinstance(network, ForeignNetwork)
    assert network.image_size in (224, 288)
    images = torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(network(images), network.network(normalize(images)))
    with pytest.raises(ValueError, match="timm has no network 'resnet17'"):
        load_network("timm:resnet17")


@pytest.mark.parametrize("name", ["torchvision:mobilenet_v3_small", "timm:test_resnet"])
def test_checkpoints_build_the_network_again(name, tmp_path, relative_error):
    foreign = load_network(name, pretrained=False)
    network = convert(foreign, 4, coset_pool="avg", image_size=64).eval()
    path = save_model(network, tmp_path / "converted.safetensors")
    loaded = load_network(path)
    images = torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(loaded(images), network(images))
    facts = network_facts(loaded)
    assert facts["model"] == f"converted {name.partition(':')[2]}"
    assert facts["rotations"] == 4
    # another head, everything else kept
    other = with_classes(loaded, 5).eval()
    assert other(images).shape == (2, 5)
    new = other.state_dict()
    changed = [k for k, v in loaded.state_dict().items() if not torch.equal(v, new[k])]
    assert len(changed) == 2
    save_model(other, tmp_path / "other.safetensors")
    assert load_model(tmp_path / "other.safetensors").config["source_options"]["num_classes"] == 5


def test_sources_are_given_where_nobody_knows_them(tmp_path):
    model = torchvision.models.mobilenet_v3_small(weights=None, num_classes=3)
    how = {"normalization": "imagenet", "image_size": 64, "verify": False}
    with pytest.raises(TypeError, match=r"convert it with source='torchvision:NAME'"):
        save_model(convert(model, N, **how), tmp_path / "a.safetensors")
    network = convert(model, N, **how, source="torchvision:mobilenet_v3_small")
    save_model(network, tmp_path / "b.safetensors")
    assert load_model(tmp_path / "b.safetensors").config["source_options"] == {"num_classes": 3}
    wrong = convert(model, N, **how, source="torchvision:mobilenet_v3_large")
    with pytest.raises(CheckpointError, match="was changed after it was built"):
        save_model(wrong, tmp_path / "c.safetensors")
    narrow = torchvision.models.mobilenet_v2(weights=None, num_classes=3, width_mult=0.25)
    source = Source("torchvision:mobilenet_v2", {"num_classes": 3, "width_mult": 0.25})
    save_model(convert(narrow, N, **how, source=source), tmp_path / "d.safetensors")


@pytest.mark.parametrize("options", [{"global_pool": "max"}, {"output_stride": 8}])
def test_options_without_weights_must_be_said(options, tmp_path, relative_error):
    plain = timm.create_model("test_resnet", num_classes=4, **options).eval()
    how = {"rotations": 2, "image_size": 64, "verify": False}
    with pytest.raises(
        CheckpointError, match=r"computes something else\. Its file would build timm:te"
    ):
        save_model(convert(plain, **how), tmp_path / "net.safetensors")
    source = Source("timm:test_resnet", {"num_classes": 4, **options})
    network = convert(plain, **how, source=source)
    loaded = load_model(save_model(network, tmp_path / "net.safetensors"))
    x = torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        assert relative_error(loaded(x), network(x)) < 1e-6


def test_images_are_cut_as_before(tmp_path):
    foreign = load_network("timm:resnet18.a1_in1k", pretrained=False)
    assert foreign.resize != 256 * foreign.image_size // 224
    network = convert(foreign, 2, verify=False)
    assert choose_preparation(network) == choose_preparation(foreign)
    path = save_model(network, tmp_path / "net.safetensors")
    assert choose_preparation(load_model(path)) == choose_preparation(foreign)
    assert finetune_recipe("flowers102", path).resize == foreign.resize
    assert convert(foreign.network, 2, verify=False).resize == foreign.resize


def test_matched_networks_have_checkpoints_too(tmp_path):
    model = timm.create_model("test_resnet", num_classes=3)
    network = convert(model, N, init="random", match_parameters=True)
    path = save_model(network, tmp_path / "narrow.safetensors")
    size = network.image_size
    images = torch.rand(2, 3, size, size)
    with torch.no_grad():
        assert torch.equal(load_model(path)(images), network.eval()(images))


@pytest.mark.parametrize("library", ["torchvision", "timm"])
def test_the_tutorials_other_networks(library):
    page = (Path(__file__).parents[2] / "docs" / "convert.md").read_text()
    (code,) = re.findall(rf"^```py {library}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    namespace = {"equicolor": equicolor}
    exec(code, namespace)
    assert namespace["network"].rotations == 6
    assert namespace["network"].config["source"].startswith(f"{library}:")


def test_training_can_be_imported_first_in_a_process():
    # In this process the operators of torchvision are declared, or loaded, already.
    code = "import equicolor.training.fit, torchvision, timm"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_pretrained_networks_know_the_names_of_their_classes(tmp_path, monkeypatch):
    # Random weights where the libraries look for downloaded ones.
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    weights = torchvision.models.ResNet18_Weights.DEFAULT
    file = tmp_path / "hub" / "checkpoints" / Path(weights.url).name
    file.parent.mkdir(parents=True)
    torch.save(torchvision.models.resnet18().state_dict(), file)
    named = load_network("torchvision:resnet18")
    overlay = {"file": str(tmp_path / "timm.pt")}
    torch.save(timm.create_model("resnet18").state_dict(), overlay["file"])
    also_named = load_foreign("timm:resnet18", pretrained_cfg_overlay=overlay)
    assert named.class_names[:2] == ("tench", "goldfish")
    assert also_named.class_names[1] == "goldfish, Carassius auratus"
    assert len(named.class_names) == len(also_named.class_names) == 1000
    (found,) = predict(named, torch.rand(1, 3, 64, 64))
    assert {answer.name for answer in found.answers} <= set(named.class_names)
    # The names go along, also into the checkpoint; the folders of ImageNet have codes instead.
    pixels = torch.zeros(2, 3, 64, 64, dtype=torch.uint8)
    codes = tuple(f"n{number:08}" for number in range(1000))
    coded = ImageSet("imagenet", "test", torch.tensor([0, 1]), codes, pixels=pixels)
    halves = convert(also_named, 2, image_size=64, verify=False)
    for network in (halves, canonicalize(halves, 2, "energy")):
        assert network.class_names == also_named.class_names
        assert match_classes(network.eval(), coded, 64) is coded
    assert canonicalize(GrayInput(named), 2).class_names == named.class_names
    halves = convert(named, 2, image_size=64, verify=False)
    path = save_model(halves, tmp_path / "converted.safetensors")
    saved = load_model(path)
    assert saved.class_names == named.class_names
    assert new_head(path, 1000, codes) == ""
    saved.dataset = "birds"  # as if it were trained
    with pytest.raises(OtherClassesError, match="'tench' and 'n00000000'"):
        match_classes(saved, coded, 64)
    for library in ("timm", "torchvision"):  # outputs of random weights mean nothing
        assert load_network(f"{library}:resnet18", pretrained=False).class_names == ()


def test_networks_by_name_on_the_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("train/apple", "train/pear", "test/apple", "test/pear"):
        (tmp_path / "fruit" / name).mkdir(parents=True)
        Image.new("RGB", (50, 40), "red").save(tmp_path / "fruit" / name / "0.png")
    Path("mine.py").write_text(
        "import timm\n\ndef net():\n    return timm.create_model('test_resnet', num_classes=2)\n"
        "\ndef small():\n    return timm.create_model('test_convnext', num_classes=2)\n"
    )

    def invoke(*arguments):
        return CliRunner().invoke(app, [*arguments], prog_name="equicolor")

    options = ("--no-pretrained", "--size", "40")
    result = invoke("predict", "timm:test_resnet", "fruit/test", "--json", "--hue", "90", *options)
    assert result.exit_code == 0, result.stderr
    rows = json.loads(result.stdout)
    assert [(row["image"], row["hue"]) for row in rows] == [
        (f"fruit/test/{name}/0.png", hue) for name in ("apple", "pear") for hue in (0, 90)
    ]
    assert all(answer["class"] == str(answer["number"]) for answer in rows[0]["answers"])
    result = invoke("compare", "mine.py:net", "timm:test_resnet", "--data", "fruit", *options)
    assert result.exit_code == 2
    assert (
        "timm:test_resnet: the network has 1000 outputs, but fruit has 2 classes" in result.stderr
    )
    options = ("--size", "40", "--shifts", "3", "--output", "both")
    result = invoke("compare", "mine.py:net", "mine.py:small", "--data", "fruit", *options)
    assert result.exit_code == 0, result.stderr
    rows = json.loads(Path("both/comparison.json").read_text())["rows"]
    assert [row["model"] for row in rows] == ["mine.py:net", "mine.py:small"]
    assert all(row["original"] in (0, 50, 100) for row in rows)  # of two images
    result = invoke("cost", "torchvision:resnet18")
    assert result.stdout.splitlines()[0] == "parameters: 11,689,512"
    result = invoke("cost", "timm:vit_tiny_patch16_224", "--input-size", "100")
    assert result.exit_code == 2
    assert "timm:vit_tiny_patch16_224 does not take input [1, 3, 100, 100]: " in result.stderr
