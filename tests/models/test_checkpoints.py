import json
import pickle
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn

from equicolor import HueGroup
from equicolor.models import (
    CheckpointError,
    cecnn,
    create_model,
    load_model,
    load_reference,
    resnet18,
    resnet44,
    resnet50,
    save_model,
    z2cnn,
)
from equicolor.models.checkpoints import read_header, weights_digest
from equicolor.models.layers import IMAGENET
from equicolor.models.registry import GrayInput, Origin, build_from_config, with_classes
from equicolor.models.tensor_files import write_weights

NETWORKS = {
    "z2cnn": lambda: z2cnn(3, width=2),
    "cecnn": lambda: cecnn(3, width=2, rotations=4, lifting="hsv"),
    "cecnn hybrid": lambda: cecnn(3, width=2, ce_layers=4, coset_pool="avg", dropout=0.1),
    "resnet18": lambda: resnet18(3, width=2),
    "resnet18 hybrid": lambda: resnet18(3, rotations=3, ce_stages=2, width=[2, 3, 4, 5]),
    "resnet44": lambda: resnet44(3, rotations=6, lifting="hsv", width=2, normalize=False),
    "resnet44 full filters, flat": lambda: resnet44(
        3, rotations=3, separable=False, coset_pool=None, width=2
    ),
    "resnet50": lambda: resnet50(3, rotations=3, ce_stages=1, width=2),
}


def tiny():
    return cecnn(3, width=2)


def released(network):
    """A state dict as the paper authors' code would save it."""
    state = {network.reference_key(key): value for key, value in network.state_dict().items()}
    state["ceconv_list.0.0.transformation_matrix"] = HueGroup(3).matrix(1).float()
    return state


class Marker:
    """Unpickling this runs code: it creates a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def refusal(load, path):
    """The one line with which a file is refused."""
    with pytest.raises(CheckpointError) as caught:
        load(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    return message


# Round trips


@pytest.mark.parametrize("name", NETWORKS)
def test_round_trip(name, tmp_path, settle, blotches):
    network = NETWORKS[name]()
    images = blotches(2, network.image_size if "cnn" in name else 32)
    settle(network, images)
    path = save_model(network, tmp_path / "new folder" / "network.safetensors")
    loaded = load_model(path)
    assert loaded.config == network.config
    assert not loaded.training
    assert torch.equal(loaded(images), network(images))


def test_one_file_and_nothing_else(tmp_path):
    save_model(tiny(), str(tmp_path / "a.safetensors"))
    assert [path.name for path in tmp_path.iterdir()] == ["a.safetensors"]


def test_matched_widths_are_saved_as_numbers(tmp_path):
    network = resnet44(10, rotations=3)
    loaded = load_model(save_model(network, tmp_path / "a.safetensors"))
    assert loaded.config["width"] == [27, 55, 110]


def test_train_and_eval_save_the_same(tmp_path):
    network = tiny()
    paths = save_model(network.train(), tmp_path / "a"), save_model(network.eval(), tmp_path / "b")
    train, evaluated = (safetensors.torch.load_file(path) for path in paths)
    assert train.keys() == evaluated.keys() == network.state_dict().keys()
    assert all(torch.equal(train[key], evaluated[key]) for key in train)


def test_channels_last_networks_can_be_saved(tmp_path):
    network = resnet18(3, width=2).to(memory_format=torch.channels_last)
    loaded = load_model(save_model(network, tmp_path / "a.safetensors"))
    assert torch.equal(loaded.conv1.weight, network.conv1.weight)


def test_tied_weights_can_be_saved(tmp_path):
    network = resnet18(3, width=2)
    first, second = network.layers[0]
    second.conv1.weight = first.conv1.weight
    loaded = load_model(save_model(network, tmp_path / "a.safetensors"))
    assert torch.equal(loaded.layers[0][1].conv1.weight, first.conv1.weight)


def test_other_modules_have_no_configuration_to_save(tmp_path):
    with pytest.raises(TypeError, match=r"equicolor\.models.*got Linear: keep its weights"):
        save_model(torch.nn.Linear(2, 2), tmp_path / "a.safetensors")
    with pytest.raises(TypeError, match=r"built by equicolor\.models.*got Linear"):
        load_reference(torch.nn.Linear(2, 2), {})
    assert not list(tmp_path.iterdir())


def test_an_interrupted_save_keeps_the_good_file(tmp_path, monkeypatch):
    path = save_model(tiny(), tmp_path / "a.safetensors")
    good = path.read_bytes()

    write = Path.write_bytes

    def interrupted(file, contents):
        write(file, contents[:9])
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_bytes", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save_model(tiny(), path)
    assert path.read_bytes() == good
    assert [file.name for file in tmp_path.iterdir()] == ["a.safetensors"]


# Files that load_model refuses


def test_missing_files_are_named(tmp_path):
    for load in (load_model, lambda path: load_reference(tiny(), path)):
        with pytest.raises(FileNotFoundError, match=r"no checkpoint at .*absent"):
            load(tmp_path / "absent")
        with pytest.raises(FileNotFoundError, match="no checkpoint at"):
            load(tmp_path)


@pytest.mark.parametrize("kept", [0, 4, 100, -1])
def test_truncated_safetensors(kept, tmp_path):
    path = save_model(tiny(), tmp_path / "a.safetensors")
    path.write_bytes(path.read_bytes()[:kept])
    assert "is not a complete safetensors file saved by equicolor" in refusal(load_model, path)


def test_foreign_safetensors(tmp_path):
    path = tmp_path / "a.safetensors"
    for metadata in (None, {"format": "pt"}):
        safetensors.torch.save_file({"weight": torch.zeros(2)}, path, metadata)
        message = refusal(load_model, path)
        assert "expected format 'equicolor-1' in its header" in message
        assert message.endswith("got None)" if metadata is None else "got 'pt')")


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (None, "config"),
        ("{", "Expecting"),
        ("{}", "model"),
        ('{"model": "vit"}', "unknown model 'vit'"),
        ('{"model": "z2cnn", "wdith": 3}', "no option 'wdith'"),
        ('{"model": "z2cnn", "width": 0}', "width must be at least 1, got 0"),
        ('{"model": "z2cnn", "width": "3"}', "width must be an int"),
        ("[]", "model"),
    ],
)
def test_broken_configurations(config, reason, tmp_path):
    metadata = {} if config is None else {"config": config}
    path = tmp_path / "a.safetensors"
    write_weights(path, {"weight": torch.zeros(2)}, metadata)
    message = refusal(load_model, path)
    assert "no configuration that a network can be built from" in message
    assert reason in message


def test_configuration_of_another_network(tmp_path):
    path = tmp_path / "a.safetensors"
    metadata = {"config": json.dumps({"model": "z2cnn", "width": 3})}
    write_weights(path, tiny().state_dict(), metadata)
    message = refusal(load_model, path)
    assert "does not fit z2cnn(num_classes=10, width=3)" in message
    assert "of another shape: blocks.0.0.weight [2, 3, 1, 3, 3] instead of [3, 3, 3, 3]" in message
    assert "6 unexpected: blocks.1.0.pointwise_weight, " in message
    assert message.count("[3, 3, 3, 3]") < 4  # the first mismatches, not all


@pytest.mark.parametrize("contents", [b"", b"{}", b'{"model": "z2cnn"}', b"\0" * 100])
@pytest.mark.parametrize(
    ("load", "expected"),
    [
        (load_model, "is not a complete safetensors file saved by equicolor"),
        (
            lambda path: load_reference(tiny(), path),
            "is not a torch file: expected a torch checkpoint",
        ),
    ],
    ids=["load_model", "load_reference"],
)
def test_other_files(contents, load, expected, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(contents)
    assert expected in refusal(load, path)


def test_torch_files_are_no_saved_networks(tmp_path):
    path = tmp_path / "a.pth"
    torch.save(tiny().state_dict(), path)
    assert "is not a complete safetensors file saved by equicolor" in refusal(load_model, path)


# The paper authors' files


@pytest.mark.parametrize(
    "wrap",
    [
        lambda state: state,
        lambda state: {"state_dict": state, "epoch": 3},
        lambda state: {"model": state},
        lambda state: {f"module.{key}": value for key, value in state.items()},
        lambda state: {"state_dict": {f"model.{key}": value for key, value in state.items()}},
    ],
    ids=["plain", "state_dict", "model", "data parallel", "lightning"],
)
@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_reference_files(wrap, zipped, tmp_path):
    source, target = tiny(), tiny()
    path = tmp_path / "a.pth"
    torch.save(wrap(released(source)), path, _use_new_zipfile_serialization=zipped)
    assert load_reference(target, path) is target
    for key, value in source.state_dict().items():
        assert torch.equal(target.state_dict()[key], value), key


@pytest.mark.parametrize("rotations", [1, 6])
def test_reference_of_other_rotations(rotations):
    state = released(tiny())
    network = cecnn(3, width=2, rotations=rotations)
    with pytest.raises(CheckpointError, match=f"is not the rotation by 1/{rotations} of the hue"):
        load_reference(network, state)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("fc.bias"), r"1 missing: classifier\.bias$"),
        (lambda state: state.update(extra=torch.zeros(1)), "1 unexpected: extra$"),
        (
            lambda state: state.update({"fc.bias": torch.zeros(9)}),
            r"1 of another shape: classifier\.bias \[9\] instead of \[3\]$",
        ),
    ],
    ids=["missing", "unexpected", "shape"],
)
def test_reference_is_strict(change, message):
    network, state = tiny(), released(tiny())
    change(state)
    before = {key: value.clone() for key, value in network.state_dict().items()}
    with pytest.raises(CheckpointError, match=message) as caught:
        load_reference(network, state)
    assert "the state dict does not fit cecnn(num_classes=3, rotations=3" in str(caught.value)
    # A refused checkpoint leaves no half-loaded network.
    assert all(torch.equal(before[key], value) for key, value in network.state_dict().items())


def test_reference_of_another_architecture(tmp_path):
    path = tmp_path / "a.pth"
    torch.save(released(tiny()), path)
    message = refusal(lambda path: load_reference(resnet18(3, rotations=3, width=2), path), path)
    assert "does not fit resnet18(num_classes=3, rotations=3, ce_stages=4" in message
    assert " missing: conv1.weight, bn1.weight, bn1.bias and " in message
    assert " unexpected: ceconv_list.0.0.weight, " in message


@pytest.mark.parametrize(
    ("contents", "reason"),
    [
        ({}, "holds no state dict, but a dict"),
        ([1, 2], "holds no state dict, but a list"),
        (torch.zeros(2), "holds no state dict, but a Tensor"),
        ({"epoch": 3}, "holds entries other than named tensors: epoch"),
        ({0: torch.zeros(2)}, "holds entries other than named tensors"),
    ],
)
def test_files_without_a_state_dict(contents, reason, tmp_path):
    path = tmp_path / "a.pth"
    torch.save(contents, path)
    assert reason in refusal(lambda path: load_reference(tiny(), path), path)


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("part", [0.01, 0.3, 0.6, 0.9, 0.999])
def test_truncated_torch_files(zipped, part, tmp_path):
    path = tmp_path / "a.pth"
    torch.save(released(tiny()), path, _use_new_zipfile_serialization=zipped)
    contents = path.read_bytes()
    path.write_bytes(contents[: int(part * len(contents))])
    message = refusal(lambda path: load_reference(tiny(), path), path)
    assert "expected a torch checkpoint of tensors (.pth)" in message


def test_flipped_bits_in_a_tensor_are_noticed(tmp_path):
    path, network = tmp_path / "a.pth", tiny()
    torch.save(released(network), path)
    contents = bytearray(path.read_bytes())
    tensor = max(network.state_dict().values(), key=torch.numel).numpy().tobytes()
    contents[contents.index(tensor) + len(tensor) // 2] ^= 0x10
    path.write_bytes(contents)
    torch.load(path, weights_only=True)  # does not look
    message = refusal(lambda path: load_reference(tiny(), path), path)
    assert "the file is damaged (the checksum of " in message
    assert message.endswith("is wrong): get it again")


@pytest.mark.parametrize("kind", ["zip", "legacy", "bare pickle", "old pickle"])
def test_malicious_pickles_are_refused_and_not_run(kind, tmp_path):
    path, marker = tmp_path / "evil.pth", tmp_path / "executed"
    contents = {"conv1.weight": torch.zeros(1), "payload": Marker(marker)}
    if "pickle" in kind:
        path.write_bytes(pickle.dumps(contents["payload"], protocol=0 if "old" in kind else 4))
    else:
        torch.save(contents, path, _use_new_zipfile_serialization=kind == "zip")
    message = refusal(lambda path: load_reference(tiny(), path), path)
    assert "expected a torch checkpoint of tensors (.pth)" in message
    assert not marker.exists()
    refusal(load_model, path)
    assert not marker.exists()


def test_the_malicious_file_would_have_worked(tmp_path):
    # Without this, the test above could pass for a payload that does nothing.
    marker = tmp_path / "executed"
    pickle.loads(pickle.dumps(Marker(marker)))
    assert marker.exists()


def test_saving_below_a_file_keeps_the_reason(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="File exists"):
        save_model(tiny(), tmp_path / "file" / "a.safetensors")


def test_build_from_config():
    assert build_from_config({"model": "z2cnn", "width": 5}).config["width"] == 5


def test_networks_changed_after_they_were_built_are_refused(tmp_path):
    # Replacing the head is how people fine-tune; the file would not load.
    network = cecnn(10, width=3)
    network.classifier = nn.Linear(9, 5)
    with pytest.raises(CheckpointError, match=r"was changed after it was built.*classifier"):
        save_model(network, tmp_path / "network.safetensors")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_dtype_is_kept(dtype, tmp_path):
    network = cecnn(10, width=3).to(dtype)
    loaded = load_model(save_model(network, tmp_path / "network.safetensors"))
    assert loaded.classifier.weight.dtype == dtype
    assert torch.equal(loaded.classifier.weight, network.classifier.weight)


def test_reference_needs_the_same_lifting():
    released = cecnn(10, width=3, rotations=4).state_dict()
    reference = cecnn(10, width=3, rotations=4).reference_key
    released = {reference(key): value for key, value in released.items()}
    released["ceconv_list.0.0.transformation_matrix"] = HueGroup(4).matrix(1)
    load_reference(cecnn(10, width=3, rotations=4), released)
    with pytest.raises(CheckpointError, match="trained with lifting='rgb'"):
        load_reference(cecnn(10, width=3, rotations=4, lifting="hsv"), released)


@pytest.mark.parametrize("assign", [False, True])
def test_networks_from_the_meta_device_get_their_constants(assign):
    network = resnet44(10, rotations=3, width=4).eval()
    with torch.device("meta"):
        ghost = resnet44(10, rotations=3, width=4).eval()
    if not assign:
        ghost.to_empty(device="cpu")
    ghost.load_state_dict(network.state_dict(), assign=assign)
    images = torch.rand(2, 3, 32, 32)
    assert torch.equal(ghost(images), network(images))


def test_normalisation_is_exact_in_float64():
    network = resnet44(10, width=4).bfloat16().double()
    images = torch.rand(2, 3, 4, 4).double().to(memory_format=torch.channels_last)
    mean, std = (torch.tensor(numbers, dtype=torch.float64) for numbers in IMAGENET)
    expected = (images - mean.view(3, 1, 1)) / std.view(3, 1, 1)
    normal = network.normalize(images)
    torch.testing.assert_close(normal, expected, rtol=0, atol=1e-15)
    assert normal.is_contiguous(memory_format=torch.channels_last)


def test_class_names_travel_with_the_network(tmp_path):
    network = z2cnn(2)
    assert load_model(save_model(network, tmp_path / "a.safetensors")).class_names == ()
    network.class_names = ("fleur-de-lys", "œillet")
    assert load_model(save_model(network, tmp_path / "b.safetensors")).class_names == (
        "fleur-de-lys",
        "œillet",
    )
    # Files written by others may hold anything there.
    for strange in ("{", "3", "null"):
        header = {"config": json.dumps(network.config), "class_names": strange}
        path = tmp_path / "c.safetensors"
        write_weights(path, network.state_dict(), header)
        assert load_model(path).class_names == ()


@pytest.mark.parametrize("name", ["resnet18", "ce_resnet44", "z2cnn"])
def test_grey_networks_round_trip(name, tmp_path):
    options = {} if name == "z2cnn" else {"width": 4}
    network = create_model(name, gray=True, num_classes=5, **options).eval()
    assert isinstance(network, GrayInput)
    assert network.config["gray"] is True
    assert network.image_size == network.network.image_size
    loaded = load_model(save_model(network, tmp_path / "grey.safetensors"))
    images = torch.rand(2, 3, 32, 32) if name != "z2cnn" else torch.rand(2, 3, 28, 28)
    grey = images.mean(1, keepdim=True).repeat(1, 3, 1, 1)
    with torch.no_grad():
        assert torch.equal(loaded(images), network(images))
        torch.testing.assert_close(network(images), network.network(grey))
    wider = with_classes(loaded, 7)
    assert isinstance(wider, GrayInput)
    assert wider(images).shape == (2, 7)


def test_grey_networks_of_unknown_origin_cannot_be_saved(tmp_path):
    with pytest.raises(TypeError, match="needs to know where this GrayInput comes from"):
        save_model(GrayInput(nn.Flatten()), tmp_path / "grey.safetensors")


def test_images_of_the_training_travel_with_the_network(tmp_path):
    network = tiny()
    assert network.origin == (network.image_size, None, "", None, "")
    network.origin = Origin(48, 54, "pets", 0, "0123456789abcdef")
    path = save_model(network, tmp_path / "a.safetensors")
    loaded = load_model(path)
    assert loaded.origin == read_header(path).origin == (48, 54, "pets", 0, "0123456789abcdef")
    assert (loaded.image_size, loaded.resize) == (48, 54)
    assert loaded.config == network.config
    assert GrayInput(loaded).image_size == 48
    # headers that somebody else wrote
    header = {"config": json.dumps(network.config)}
    sizes = {"image_size": "large"}, {"image_size": "0", "resize": "0"}
    for strange in ({}, *sizes, {"training_digest": "5", "dataset": "[1]"}):
        write_weights(path, network.state_dict(), header | strange)
        assert load_model(path).origin == tiny().origin
        assert read_header(path).origin == Origin()


def test_sizes_that_training_takes_are_kept_and_others_refused(tmp_path):
    network = tiny()
    network.origin = Origin(32_768, 32_768, "pets", 0)
    path = save_model(network, tmp_path / "a.safetensors")
    assert read_header(path).origin == network.origin
    network.resize = 32_769
    with pytest.raises(ValueError, match="resize of a saved network is at most 32768, got 32769"):
        save_model(network, tmp_path / "b.safetensors")
    assert not (tmp_path / "b.safetensors").exists()


def test_sizes_are_not_part_of_what_a_network_is(tmp_path):
    network = tiny()
    first = weights_digest(save_model(network, tmp_path / "a.safetensors"))
    network.origin = Origin(48, 54, "pets", 0)
    assert weights_digest(save_model(network, tmp_path / "b.safetensors")) == first


def test_the_state_of_a_run_points_to_its_network(tmp_path):
    save_model(z2cnn(3, width=2), tmp_path / "model.safetensors")
    (tmp_path / "last.ckpt").write_bytes(b"PK no safetensors")
    with pytest.raises(
        CheckpointError, match=r"last.ckpt is the state of .* is .*model.safetensors"
    ):
        load_model(tmp_path / "last.ckpt")
