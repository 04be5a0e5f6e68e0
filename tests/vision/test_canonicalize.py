"""Canonicalised networks of torchvision and timm: transformers, detectors, segmentation."""

import copy

import pytest
import torch

import equicolor
from equicolor.canonicalization import Canonicalized, hue_selector
from equicolor.color import shift_hue
from equicolor.models import load_model, save_model
from equicolor.models.export import export
from equicolor.models.foreign import ForeignNetwork
from equicolor.models.registry import with_classes
from equicolor.nn import fold

MISSING = "torchvision or timm is missing; 'make vision' has both"
torchvision = pytest.importorskip("torchvision", reason=MISSING)
timm = pytest.importorskip("timm", reason=MISSING)

N = 6
SIZE = 64


def vit():
    return timm.create_model("vit_tiny_patch16_224", img_size=SIZE, depth=1, num_classes=5)


def segmenter():
    return torchvision.models.segmentation.lraspp_mobilenet_v3_large(
        weights=None, weights_backbone=None, num_classes=3
    )


def detector():
    detection = torchvision.models.detection
    backbone = detection.backbone_utils.resnet_fpn_backbone(backbone_name="resnet18", weights=None)
    sizes = {"min_size": SIZE, "max_size": SIZE}
    few = {"detections_per_img": 5, "topk_candidates": 40}  # slow_nms takes long for each
    return detection.RetinaNet(backbone, 3, **sizes, score_thresh=0.0, **few)


NETWORKS = {
    "vit": vit,
    "resnet": lambda: torchvision.models.resnet18(num_classes=5),
    "segmenter": segmenter,
    "detector": detector,
}


def slow_nms(boxes, scores, threshold):
    """Non-maximum suppression by its definition: keep a box unless a better one overlaps it."""
    kept = []
    for index in scores.argsort(descending=True, stable=True).tolist():
        overlaps = torchvision.ops.box_iou(boxes[index : index + 1], boxes[kept])
        if not (overlaps > threshold).any():
            kept.append(index)
    return torch.tensor(kept, dtype=torch.int64)


@pytest.fixture
def nms(monkeypatch):
    """An operator that torchvision's build for CUDA lacks beside a torch for CPUs."""
    if torchvision.extension._has_ops():
        yield
        return
    library = torch.library.Library("torchvision", "IMPL")
    library.impl("nms", slow_nms, "CPU")
    monkeypatch.setattr(torchvision.ops.boxes, "_assert_has_ops", lambda: None)
    yield
    library._destroy()


@pytest.fixture
def images(smooth_images):
    return smooth_images(2, SIZE, SIZE)


@pytest.fixture
def canonical():
    def make(network, **options):
        torch.manual_seed(0)
        selector = hue_selector(rotations=N, size=32, width=4)
        selector.bn1.num_batches_tracked += 1  # passes for a trained one
        return equicolor.canonicalize(network.double().eval(), select=selector, **options).double()

    return make


def outputs(value):
    """The tensors in what a network returns."""
    if isinstance(value, torch.Tensor):
        return [value]
    values = value.values() if isinstance(value, dict) else value
    return [tensor for each in values for tensor in outputs(each)]


@pytest.mark.parametrize("kind", NETWORKS)
def test_outputs_are_equal_on_all_grid_shifts(kind, images, canonical, relative_error, nms):
    torch.manual_seed(1)
    network, options = {
        "vit": lambda: (vit(), {}),
        "resnet": lambda: (
            torchvision.models.resnet18(num_classes=5),
            {"normalization": "imagenet"},
        ),
        "segmenter": lambda: (segmenter(), {"normalization": "imagenet"}),
        "detector": lambda: (detector(), {}),
    }[kind]()
    before = copy.deepcopy(network.double().state_dict())
    model = canonical(network, **options)
    take = list if kind == "detector" else torch.as_tensor
    with torch.no_grad():
        expected = outputs(model(take(images)))
        assert expected
        assert all(tensor.numel() for tensor in expected)
        for k in range(1, N):
            found = outputs(model(take(shift_hue(images, k / N))))
            for actual, wanted in zip(found, expected, strict=True):
                assert relative_error(actual, wanted) < 1e-6
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())


def test_timm_knows_its_normalisation_and_source(tmp_path, images, canonical):
    network = timm.create_model("resnet10t", num_classes=4)
    model = canonical(network).float()
    assert model.options.mean == pytest.approx(list(network.default_cfg["mean"]))
    loaded = load_model(save_model(model, tmp_path / "model.safetensors"))
    assert isinstance(loaded, Canonicalized)
    with torch.no_grad():
        torch.testing.assert_close(loaded(images.float()), model(images.float()))


def test_torchvisions_weights_say_how_many_classes_there_are(canonical):
    network = torchvision.models.resnet18(num_classes=3)
    named = ForeignNetwork(network, "torchvision:resnet18", class_names="abc")
    model = canonical(named).float()
    assert with_classes(model, 3) is model
    assert with_classes(model, 7)(torch.rand(2, 3, SIZE, SIZE)).shape == (2, 7)


def test_a_transformer_is_exported_with_its_selector(tmp_path, canonical):
    model = canonical(vit()).float()
    # Exporters take long for every node, and this form has the fewest.
    report = export(model, tmp_path / "vit.onnx", input_size=SIZE, form="dense")
    assert report.relative_error < 1e-4
    assert isinstance(fold(model), Canonicalized)
