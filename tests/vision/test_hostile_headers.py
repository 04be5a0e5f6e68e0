"""What the header of a checkpoint may not make torchvision and timm do."""

import json
from pathlib import Path

import pytest

timm = pytest.importorskip("timm")
torchvision = pytest.importorskip("torchvision")

from tests import hostile  # noqa: E402
from tests.test_hostile_files import evil, try_headers  # noqa: E402, F401

from equicolor.conversion import Source, convert  # noqa: E402
from equicolor.models import CheckpointError, load_model, save_model  # noqa: E402
from equicolor.models.tensor_files import read_weights, write_weights  # noqa: E402


def of_timm():
    return convert(timm.create_model("test_resnet", num_classes=3), 2, image_size=64, verify=False)


def of_torchvision():
    options = {"num_classes": 3, "width_mult": 0.1}
    network = torchvision.models.mobilenet_v2(weights=None, **options)
    source = Source("torchvision:mobilenet_v2", options)
    how = {"normalization": "imagenet", "image_size": 64, "verify": False}
    return convert(network, 2, **how, source=source)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Header and weights of both networks."""
    folder = tmp_path_factory.mktemp("saved")
    return {
        make: read_weights(save_model(make(), folder / make.__name__), weights=True)
        for make in (of_timm, of_torchvision)
    }


@pytest.mark.parametrize(
    ("network", "options"),
    [
        (of_timm, {"checkpoint_path": "EVIL"}),
        (of_timm, {"pretrained": True}),
        (of_timm, {"pretrained_cfg": {"file": "EVIL"}}),
        (of_timm, {"pretrained_cfg_overlay": {"file": "EVIL"}}),
        (of_timm, {"cache_dir": "."}),
        (of_timm, {"features_only": True}),
        (of_timm, {"scriptable": True}),
        (of_timm, {"global_pool": "hf-hub:timm/resnet18"}),
        (of_timm, {"layers": [9] * 4}),
        (of_torchvision, {"weights": "DEFAULT"}),
        (of_torchvision, {"weights": "IMAGENET1K_V1", "num_classes": 1000}),
        (of_torchvision, {"weights_backbone": "DEFAULT"}),
        (of_torchvision, {"progress": True}),
        (of_torchvision, {"width_mult": {}}),
    ],
)
def test_options_a_file_may_not_set(network, options, saved, tmp_path, evil):  # noqa: F811
    header, tensors = saved[network]
    config = json.loads(header["config"])
    config["source_options"] |= json.loads(json.dumps(options).replace("EVIL", str(evil)))
    write_weights(tmp_path / "b", tensors, {"config": json.dumps(config)})
    with hostile.watched(), pytest.raises(CheckpointError, match="a checkpoint may not set"):
        load_model(tmp_path / "b")


@pytest.mark.parametrize(
    "source",
    ["timm:hf-hub:timm/test_resnet.r160_in1k", "timm:local-dir:/tmp", "equicolor:converted"],
)
def test_names_a_file_may_not_ask_for(source, saved, tmp_path):
    header, tensors = saved[of_timm]
    config = json.loads(header["config"]) | {"source": source}
    write_weights(tmp_path / "b", tensors, {"config": json.dumps(config)})
    with hostile.watched(), pytest.raises(CheckpointError, match="has no configuration"):
        load_model(tmp_path / "b")


def test_an_option_that_a_file_may_not_set_cannot_be_saved(tmp_path):
    network = timm.create_model("test_resnet", num_classes=3, layers=(1, 1, 1, 1))
    source = Source("timm:test_resnet", {"num_classes": 3, "layers": (1, 1, 1, 1)})
    converted = convert(network, 2, image_size=64, source=source)
    with pytest.raises(ValueError, match=r"may not set layers=.*keep the state_dict\(\) instead"):
        save_model(converted, tmp_path / "a.safetensors")
    assert not list(tmp_path.iterdir())


def test_changed_headers(tmp_path: Path, evil: Path) -> None:  # noqa: F811
    counted = try_headers((of_timm, of_torchvision), 10, 0, tmp_path, evil)
    assert counted["refused: CheckpointError"] > 3


@pytest.mark.parametrize("nested", [False, True])
def test_a_small_file_may_not_ask_for_a_huge_network(nested, saved, tmp_path):
    # RegNet cannot be built without weights; this one would take gigabytes.
    header, tensors = saved[of_torchvision]
    config = json.loads(header["config"]) | {"source": "torchvision:regnet_y_128gf"}
    config["source_options"] = {"num_classes": 3}
    if nested:
        del config["model"]
        outer = {"model": "canonicalized", "source": "equicolor:converted", "select": "energy"}
        config = outer | {"source_options": config}
    write_weights(tmp_path / "b", tensors, {"config": json.dumps(config)})
    with pytest.raises(CheckpointError, match="128gf has 644,812,894 parameters, the file"):
        load_model(tmp_path / "b")
