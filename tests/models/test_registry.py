import inspect
import json

import pytest
import torch

from equicolor import models
from equicolor.models import create_model, list_models
from equicolor.models.registry import OptionError, register_model

DEPTHS = (18, 34, 44, 50, 101, 152)
# Small enough to build every one, with options that all of them take.
TINY = {"width": 2}


def test_all_networks_of_the_paper_are_listed():
    expected = {"z2cnn", "cecnn", *(f"{kind}resnet{d}" for kind in ("", "ce_") for d in DEPTHS)}
    expected |= {"ciconv_resnet18", "ciconv_resnet44"}
    assert set(list_models()) == expected
    assert list_models() == sorted(list_models())


@pytest.mark.parametrize("name", list_models())
def test_names_build_what_the_function_builds(name):
    by_name = create_model(name, num_classes=7, **TINY)
    by_function = getattr(models, name)(7, **TINY)
    assert by_name.config == by_function.config
    assert by_name.config["model"] == name
    assert by_name.state_dict().keys() == by_function.state_dict().keys()


@pytest.mark.parametrize("name", list_models())
def test_configurations_hold_every_argument_and_survive_json(name):
    network = create_model(name, **TINY)
    config = json.loads(json.dumps(network.config))
    assert config.keys() - {"model"} == inspect.signature(getattr(models, name)).parameters.keys()
    again = create_model(config.pop("model"), **config)
    assert again.config == network.config


def test_configurations_record_what_was_settled():
    config = create_model("ce_resnet18", rotations=12, lifting="hsv").config
    assert config["width"] == [41, 83, 167, 335]
    assert config["ce_stages"] == 4
    assert config["lifting"] == "hsv"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("ce-resnet18", "did you mean 'ce_resnet18'"),
        ("ResNet18", "did you mean 'resnet18'"),
        ("cecn", "did you mean 'cecnn'"),
        ("transformer", "see 'equicolor models'"),
    ],
)
def test_unknown_names_suggest_the_nearest(name, hint):
    with pytest.raises(ValueError, match="unknown model") as caught:
        create_model(name)
    assert repr(name) in str(caught.value)
    assert hint in str(caught.value)


def test_unknown_options_are_not_swallowed():
    with pytest.raises(OptionError) as caught:
        create_model("cecnn", rotation=3)
    assert str(caught.value).startswith(
        "cecnn has no option 'rotation' (did you mean 'rotations'?); it takes num_classes, width"
    )
    # Both what Python raises for a wrong argument and what a command shows as one line.
    assert isinstance(caught.value, TypeError)
    assert isinstance(caught.value, ValueError)
    with pytest.raises(OptionError, match="z2cnn has no option 'lifting'; it takes num_classes"):
        create_model("z2cnn", lifting="hsv")


@pytest.mark.parametrize("name", ["z2cnn", "cecnn", "resnet18", "ce_resnet44", "resnet50"])
def test_image_size_is_one_the_network_takes(name):
    with torch.device("meta"):
        network = create_model(name, num_classes=7, **TINY).eval()
        images = torch.empty(2, 3, network.image_size, network.image_size)
    assert network(images).shape == (2, 7)
    assert network.image_size == (28 if "cnn" in name else 32 if "44" in name else 224)


def test_registering_keeps_the_builder_callable_and_remembers_the_call(monkeypatch):
    from equicolor.models import registry

    monkeypatch.setattr(registry, "_BUILDERS", dict(registry._BUILDERS))

    @register_model
    def mine(num_classes: int = 3, *, width: int = 8) -> registry.Network:
        """A network."""
        return registry.Network()

    assert "mine" in list_models()
    assert mine.__doc__ == "A network."
    expected = {"model": "mine", "num_classes": 4, "width": 8}
    assert mine(4).config == create_model("mine", num_classes=4).config == expected
