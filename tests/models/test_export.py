"""Exported files are run by their own runtimes and compared with the network."""

import json

import pytest
import torch
from torch import nn

from equicolor.models import cecnn, export, resnet44
from equicolor.models.export import FORMATS, ExportError
from equicolor.models.registry import GrayInput
from equicolor.nn import CELiftConv2d

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")

SIZE = 16  # of which the four layers of the network leave one pixel
SUFFIXES = {"onnx": ".onnx", "torchscript": ".pt", "exported-program": ".pt2"}


@pytest.fixture
def network(settle, blotches):
    """A small network with HSV lifting, the hardest part to export."""
    network = cecnn(5, width=3, lifting="hsv", coset_pool="max")
    del network.blocks[3:-1]  # exporters take long for every layer
    network.ce_layers, network.image_size = len(network.blocks), SIZE
    return settle(network, blotches(4, SIZE))


def run(path, to):
    """The file as a function of images, without this package's help."""
    if to == "torchscript":
        return torch.jit.load(path)
    if to == "exported-program":
        return torch.export.load(path).module()
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert [node.name for node in session.get_inputs()] == ["images"]
    assert [node.name for node in session.get_outputs()] == ["logits"]
    return lambda images: torch.from_numpy(session.run(None, {"images": images.numpy()})[0])


@pytest.mark.slow
def test_onnx_of_an_equivariant_resnet44(tmp_path, settle, blotches, shallow, relative_error):
    onnx = pytest.importorskip("onnx")
    network = settle(shallow(resnet44(10, rotations=3, width=4)), blotches(4, 32))
    report = export.export(network, tmp_path / "network.onnx", input_size=32)
    nodes = onnx.load(report.path).graph.node
    assert report.operations == len(nodes) < 42  # 31; one more for every convolution is too many
    assert sum(node.op_type == "Conv" for node in nodes) == 11
    session = run(report.path, "onnx")
    for batch in (1, 7):
        images = blotches(batch, 32)
        assert relative_error(session(images), network(images)) <= 1e-4
    assert [path.name for path in tmp_path.iterdir()] == ["network.onnx"]


@pytest.mark.parametrize(
    "to", [pytest.param(to, marks=[pytest.mark.slow] * (to == "onnx")) for to in FORMATS]
)
def test_formats(to, network, tmp_path, blotches, relative_error):
    network.class_names = ("apple", "banana", "cherry", "dattel", "élan")
    network.resize = 31
    path = tmp_path / f"network{SUFFIXES[to]}"
    report = export.export(network, path, input_size=SIZE)  # the suffix decides the format
    assert report.format == to
    assert report.path == path
    assert report.format == to
    assert report.relative_error <= 1e-4
    assert report.operations > 10
    function = run(path, to)
    for batch in (1, 3):
        images = blotches(batch, SIZE)
        with torch.no_grad():
            assert relative_error(function(images), network(images)) <= 1e-4
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    # It says what it takes and gives.
    keys = "input", "image_size", "resize", "class_names"
    found = dict.fromkeys(keys, "")
    if to == "onnx":
        import onnxruntime

        found = onnxruntime.InferenceSession(path).get_modelmeta().custom_metadata_map
    elif to == "torchscript":
        torch.jit.load(path, _extra_files=found)
    else:
        torch.export.load(path, extra_files=found)
    about = {key: json.loads(found[key]) for key in keys}
    assert about["class_names"] == [*network.class_names]
    assert (about["image_size"], about["resize"]) == ([SIZE, SIZE], 31)
    assert about["input"].startswith("RGB in [0, 1]")


@pytest.mark.slow
@pytest.mark.parametrize("to", FORMATS)
def test_a_grey_network_is_exported_grey(to, network, tmp_path, blotches, relative_error):
    grey = GrayInput(network).eval()
    path = tmp_path / f"network{SUFFIXES[to]}"
    export.export(grey, path, to, input_size=SIZE)
    function, images = run(path, to), blotches(3, SIZE)
    assert relative_error(function(images), grey(images)) <= 1e-4
    assert relative_error(function(images.roll(1, 1)), grey(images)) <= 1e-4  # other colours
    assert relative_error(function(images), network(images)) > 1e-2


@pytest.mark.slow
@pytest.mark.parametrize("form", ["dense", "cyclic"])
def test_forms(form, tmp_path):
    network = cecnn(5, width=2, rotations=3).eval()
    report = export.export(network, tmp_path / "a.pt", "torchscript", input_size=28, form=form)
    kinds = [node.kind() for node in torch.jit.load(report.path).graph.nodes()]
    assert kinds.count("aten::_convolution") == (7 if form == "dense" else 1 + 6 * 4)


def test_images_need_not_be_square(make_network, tmp_path):
    path = tmp_path / "network.pt2"
    network = make_network(3, head="avg").eval()
    export.export(network, path, "exported-program", input_size=(12, 20))
    assert run(path, "exported-program")(torch.rand(3, 3, 12, 20)).shape == (3, 5)


def test_the_network_is_not_changed(network, tmp_path):
    network.train()
    before = {key: value.clone() for key, value in network.state_dict().items()}
    export.export(network, tmp_path / "a.pt", "torchscript", input_size=SIZE)
    assert network.training
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())


def test_existing_files_are_kept_unless_told(network, tmp_path):
    path = tmp_path / "network.pt"
    path.write_text("mine")
    with pytest.raises(FileExistsError, match=r"network\.pt exists; overwrite=True \(--force\)"):
        export.export(network, path, "torchscript", input_size=SIZE)
    assert path.read_text() == "mine"
    export.export(network, path, "torchscript", input_size=SIZE, overwrite=True)
    assert run(path, "torchscript")(torch.rand(2, 3, SIZE, SIZE)).shape == (2, 5)


@pytest.mark.parametrize(("to", "existing"), [("torchscript", True), ("exported-program", False)])
def test_wrong_exports_are_caught_and_leave_no_file(to, existing, network, tmp_path, monkeypatch):
    real = export._EXPORTERS[to]

    def corrupting(folded, example, path, about):
        with torch.no_grad():
            next(folded.parameters()).mul_(1.5)
        return real(folded, example, path, about)

    monkeypatch.setitem(export._EXPORTERS, to, corrupting)
    path = tmp_path / f"network{SUFFIXES[to]}"
    if existing:
        path.write_text("mine")
    with pytest.raises(ExportError, match=r"is off by .* allowed 1\.0e-04; .* was not written"):
        export.export(network, path, to, input_size=SIZE, overwrite=existing)
    assert [file.read_text() for file in tmp_path.iterdir()] == ["mine"] * existing


def test_exports_that_are_not_numbers_are_caught(network, tmp_path, monkeypatch):
    def broken(folded, example, path, about):
        path.touch()
        return lambda images: torch.full((len(images), 5), torch.nan), 1

    monkeypatch.setitem(export._EXPORTERS, "onnx", broken)
    with pytest.raises(ExportError, match="is off by inf"):
        export.export(network, tmp_path / "a.onnx", input_size=SIZE)
    assert not list(tmp_path.iterdir())


def test_failing_exporters_leave_no_file(network, tmp_path, monkeypatch):
    def failing(folded, example, path, about):
        path.write_text("half")
        raise KeyboardInterrupt

    monkeypatch.setitem(export._EXPORTERS, "onnx", failing)
    with pytest.raises(KeyboardInterrupt):
        export.export(network, tmp_path / "a.onnx", input_size=SIZE)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"to": "tflite"}, "to must be one of 'onnx', 'torchscript', .* got 'tflite'"),
        ({"form": "fft"}, "form must be one of 'auto', 'dense', 'cyclic'; got 'fft'"),
        ({"input_size": 0}, "input_size must be at least 1, got 0"),
        ({"input_size": 40}, r"Z2CNN does not take images \[2, 3, 40, 40\]: "),
    ],
)
def test_bad_options(options, message, network, tmp_path):
    options = {"to": "torchscript", "input_size": SIZE, **options}
    with pytest.raises(ValueError, match=message):
        export.export(network, tmp_path / "a.pt", **options)
    assert not list(tmp_path.iterdir())


def test_a_name_must_say_the_format(network, tmp_path):
    message = r"a\.pth does not say the format: end it in \.onnx, \.pt, \.pt2, or give to \(--to\)"
    with pytest.raises(ValueError, match=message):
        export.export(network, tmp_path / "a.pth", input_size=SIZE)
    assert not list(tmp_path.iterdir())
    assert export.export(network, tmp_path / "a.pth", "torchscript", input_size=SIZE)


def test_networks_that_cannot_be_folded_say_why(tmp_path):
    with pytest.raises(ValueError, match="this one returns features"):
        export.export(nn.Sequential(CELiftConv2d(3, 2, 3)), tmp_path / "a.onnx", input_size=8)


@pytest.mark.slow
def test_large_weights_go_beside_the_onnx_file(tmp_path, monkeypatch, relative_error):
    # The format holds 2 GB; a lower limit takes the same path without such a network.
    monkeypatch.setattr(export, "ONNX_LIMIT", 1000)
    network = nn.Sequential(nn.Conv2d(3, 16, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    path = tmp_path / "network.onnx"
    export.export(network, path, input_size=SIZE)
    assert sorted(file.name for file in tmp_path.iterdir()) == [path.name, f"{path.name}.data"]
    images = torch.rand(3, 3, SIZE, SIZE)
    assert relative_error(run(path, "onnx")(images), network(images)) <= 1e-4
    path.rename(tmp_path / "renamed.onnx")  # still reads network.onnx.data
    before = (tmp_path / f"{path.name}.data").read_bytes()
    network[0].reset_parameters()
    with pytest.raises(FileExistsError, match=r"network\.onnx\.data exists"):
        export.export(network, path, input_size=SIZE)
    assert (tmp_path / f"{path.name}.data").read_bytes() == before


def test_a_name_and_a_format_that_contradict_each_other(network, tmp_path):
    message = r"suffix of a.pt2 means exported-program, but .* is onnx: name it a.onnx, or leave"
    with pytest.raises(ValueError, match=message):
        export.export(network, tmp_path / "a.pt2", "onnx", input_size=SIZE)
    assert not list(tmp_path.iterdir())


def test_what_is_unknown_is_not_said():
    assert "class_names" not in export.describe(resnet44(), (32, 32))
    assert json.loads(export.describe(resnet44(), (56, 56))["resize"]) == 64  # as usual
    assert "resize" not in export.describe(resnet44(), (32, 48))
