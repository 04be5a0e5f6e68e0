"""Networks from everywhere: our checkpoints, a user's file, timm and torchvision."""

import sys
import types
import urllib.error
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from equicolor.models import (
    CheckpointError,
    ce_resnet18,
    cecnn,
    foreign,
    resnet18,
    save_model,
    z2cnn,
)
from equicolor.models.facts import network_facts
from equicolor.models.foreign import ForeignNetwork
from equicolor.models.loading import load_network
from equicolor.models.registry import GrayInput

USER_FILE = """
import torch

class Brightness(torch.nn.Module):
    image_size = 64

    def forward(self, images):
        return images.mean((2, 3))

def brightness():
    return Brightness().train()

def ours():
    from equicolor.models import cecnn
    return cecnn(7)

def number():
    return 3

not_callable = 4
"""


@pytest.fixture
def user_file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(USER_FILE)
    return path


# --- ours --------------------------------------------------------------------------------------


def test_checkpoint_and_run_folder(tmp_path: Path) -> None:
    network = cecnn(4, rotations=6, lifting="hsv").eval()
    save_model(network, tmp_path / "model.safetensors")
    images = torch.rand(2, 3, 28, 28)
    for spec in (tmp_path, str(tmp_path), tmp_path / "model.safetensors"):
        loaded = load_network(spec)
        assert not loaded.training
        assert torch.equal(loaded(images), network(images))
        assert network_facts(loaded)["rotations"] == 6


def test_what_is_no_network_is_said(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"is a folder without model.safetensors; expected"):
        load_network(tmp_path)
    with pytest.raises(
        FileNotFoundError, match=r"no network at missing.safetensors; expected a ch"
    ):
        load_network("missing.safetensors")
    with pytest.raises(
        FileNotFoundError, match=r"no network at resnet18; .*name of an architecture"
    ):
        load_network("resnet18")
    state = tmp_path / "last.ckpt"
    state.touch()
    message = r"last.ckpt is the state of a training run; its network will be .*model.safetensors"
    with pytest.raises(ValueError, match=message):
        load_network(state)
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(ValueError, match=r"; its network is .*model.safetensors$"):
        load_network(state)
    text = tmp_path / "text.safetensors"
    text.write_text("not a network")
    with pytest.raises(
        CheckpointError, match=r"text.safetensors is not a complete safetensors file"
    ):
        load_network(text)


@pytest.mark.slow
def test_facts_of_our_networks() -> None:
    assert network_facts(resnet18(10)) == {
        "model": "resnet18", "rotations": 1, "lifting": None, "ce_stages": 0, "width": 64,
        "coset_pool": None,
    }  # fmt: skip
    assert network_facts(ce_resnet18(102, rotations=12, lifting="hsv")) == {
        "model": "ce_resnet18", "rotations": 12, "lifting": "hsv", "ce_stages": 4, "width": 41,
        "coset_pool": "max",
    }  # fmt: skip
    hybrid = resnet18(10, rotations=3, ce_stages=2)
    assert network_facts(hybrid)["ce_stages"] == 2
    assert network_facts(hybrid)["lifting"] == "rgb"
    assert network_facts(GrayInput(resnet18(10)))["model"] == "resnet18-gray"
    pools = [resnet18(10, rotations=3, coset_pool=pool) for pool in ("max", "avg", None)]
    assert [network_facts(network)["coset_pool"] for network in pools] == ["max", "avg", "none"]
    assert network_facts(nn.Flatten())["model"] == "Flatten"


def test_grey_comes_after_the_hue_shift() -> None:
    network = z2cnn(3).eval()
    images = torch.rand(2, 3, 28, 28)
    grey = (images.sum(1, keepdim=True) / 3).repeat(1, 3, 1, 1)
    torch.testing.assert_close(GrayInput(network)(images), network(grey))


def test_grey_networks_see_images_cut_as_before() -> None:
    foreign = ForeignNetwork(nn.Flatten(), "mine", image_size=96, resize=100)
    assert (GrayInput(foreign).image_size, GrayInput(foreign).resize) == (96, 100)
    mine = nn.Flatten()
    mine.resize = nn.Upsample(8)  # something else under the same name
    assert GrayInput(mine).resize is None


# --- a user's file -----------------------------------------------------------------------------


def test_a_function_of_a_file(user_file: Path) -> None:
    network = load_network(f"{user_file}:brightness")
    assert isinstance(network, ForeignNetwork)
    assert not network.training
    assert not network.network.training
    assert (network.name, network.image_size, network.resize) == ("mine.py:brightness", 64, 73)
    images = torch.rand(2, 3, 8, 8)
    assert torch.equal(network(images), images.mean((2, 3)))
    assert network_facts(load_network(f"{user_file}:ours"))["model"] == "cecnn"


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            "brightnes",
            "mine.py has no function 'brightnes', as in .*mine.py:Brightness; it has Brightness, "
            "brightness, ours",
        ),
        ("not_callable", "has no function 'not_callable'"),
        ("number", "mine.py:number must return a torch.nn.Module, got int"),
    ],
)
def test_bad_functions(user_file: Path, function: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_network(f"{user_file}:{function}")


def test_a_file_without_a_function(user_file: Path) -> None:
    with pytest.raises(ValueError, match=r"needs the name of a function, as in .*it has Br"):
        load_network(user_file)


def test_a_file_imports_what_lies_beside_it(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "own_layers_beside.py").write_text("from torch.nn import Flatten")
    file = tmp_path / "mine.py"
    file.write_text(
        "def network():\n    from own_layers_beside import Flatten\n    return Flatten()"
    )
    assert isinstance(load_network(f"{file}:network").network, nn.Flatten)


def test_files_of_two_folders_import_their_own(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    files = {}
    for layer in ("Flatten", "Identity"):
        folder = tmp_path / layer
        (folder / "own_package").mkdir(parents=True)
        (folder / "own_package" / "inner.py").write_text(f"from torch.nn import {layer} as Layer")
        (folder / "own_layer.py").write_text("from own_package.inner import Layer")
        files[layer] = folder / "mine.py"
        files[layer].write_text("from own_layer import Layer\ndef network(): return Layer()")
    for layer in ("Flatten", "Identity", "Flatten"):
        network = load_network(f"{files[layer]}:network").network
        assert type(network) is getattr(nn, layer)


@pytest.mark.parametrize("line", ["import absent_layers", "from torch import absent_layers"])
def test_an_import_that_fails_is_told_with_its_place(
    line: str, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "own_broken.py").write_text(f"import torch\n{line}\n")
    file = tmp_path / "mine.py"
    file.write_text("import own_broken")
    with pytest.raises(ImportError, match=r"mine.py cannot.*absent_layers.*line 2 of .*own_br"):
        load_network(f"{file}:network")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("", "has no function 'network'; it has none: write one that takes no arguments"),
        ("def network(a):\n    pass", r"TypeError: network\(\) missing 1 required .* 'a'$"),
        ("def network(:\n    pass", r"SyntaxError: .* \(line 1 of .*mine.py\)$"),
        ("def network():\n    1 / 0", r"ZeroDivisionError: .* \(line 2 of .*mine.py\)$"),
        ("import torch\ntorch.rand(-1)", r"RuntimeError: .* \(line 2 of .*mine.py\)$"),
        ("import sys\nsys.exit()", r"SystemExit \(line 2 of .*mine.py\)$"),
        (
            "import torch\nclass network(torch.nn.Flatten):\n    image_size = (64, 64)",
            r"image_size of the network of mine.py:network must be an int, got tuple: \(64, 64\)$",
        ),
    ],
)
def test_an_error_of_the_users_code_is_one_line(
    code: str, message: str, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    file = tmp_path / "mine.py"
    file.write_text(code)
    with pytest.raises(ValueError, match=message) as error:
        load_network(f"{file}:network")
    assert "\n" not in str(error.value)


def test_missing_file_of_a_function(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no file .*absent.py; expected"):
        load_network(f"{tmp_path / 'absent.py'}:build")


# --- other libraries, as far as that goes without them ------------------------------------------


class Recorder(nn.Module):
    """Gives back what it was shown."""

    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1)


def test_normalisation_stands_in_front() -> None:
    images = torch.rand(2, 3, 4, 4)
    network = ForeignNetwork(Recorder(), "x", mean=(0.1, 0.2, 0.3), std=(0.5, 1.0, 2.0))
    seen = network(images).view(2, 3, 4, 4)
    for channel, (mean, std) in enumerate(((0.1, 0.5), (0.2, 1.0), (0.3, 2.0))):
        torch.testing.assert_close(seen[:, channel], (images[:, channel] - mean) / std)
    assert network.state_dict() == {}  # it adds no state of its own
    assert network.double()(images.double()).dtype == torch.float64


def test_timm_by_its_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def create_model(name: str, pretrained: bool) -> nn.Module:
        calls.append((name, pretrained))
        return Recorder()

    timm, data = types.ModuleType("timm"), types.ModuleType("timm.data")
    timm.is_model = lambda name: name == "resnet18"  # type: ignore[attr-defined]
    timm.list_models = lambda: ["resnet18", "vit_small"]  # type: ignore[attr-defined]
    timm.create_model = create_model  # type: ignore[attr-defined]
    data.resolve_model_data_config = lambda network: {  # type: ignore[attr-defined]
        "input_size": (3, 160, 160), "crop_pct": 0.8, "mean": (0.5,) * 3, "std": (0.25,) * 3,
    }  # fmt: skip
    monkeypatch.setitem(sys.modules, "timm", timm)
    monkeypatch.setitem(sys.modules, "timm.data", data)
    network = load_network("timm:resnet18.a1_in1k", pretrained=False)
    assert isinstance(network, ForeignNetwork)
    assert calls == [("resnet18.a1_in1k", False)]
    assert (network.name, network.image_size, network.resize) == ("timm:resnet18.a1_in1k", 160, 200)
    assert network(torch.ones(1, 3, 1, 1)).tolist() == [[2.0, 2.0, 2.0]]
    with pytest.raises(ValueError, match="timm has no network 'resnet8'; did you mean 'resnet18'"):
        load_network("timm:resnet8")


@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_missing_libraries_name_the_extra(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)  # as if it were not installed
    with pytest.raises(ModuleNotFoundError, match=r"pip install .* '\.\[vision\]'") as caught:
        load_network(f"{library}:resnet18")
    assert caught.value.name == library


def test_a_file_has_its_own_weights(tmp_path: Path) -> None:
    path = save_model(z2cnn(3, width=4), tmp_path / "network.safetensors")
    with pytest.raises(ValueError, match="has its own: leave --no-pretrained out"):
        load_network(path, pretrained=False)


def test_weights_that_cannot_be_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(name, pretrained, options):
        raise urllib.error.URLError("no route to host")

    monkeypatch.setitem(foreign.LIBRARIES, "timm", offline)
    with pytest.raises(OSError, match=r"weights of timm:resnet18 could not.*--no-pretrained"):
        load_network("timm:resnet18")
