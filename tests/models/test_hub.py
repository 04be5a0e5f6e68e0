"""The Hugging Face mixin, against local folders and a stand-in for the Hub's interface."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import safetensors
import torch

from equicolor.models import cecnn, resnet44

huggingface_hub = pytest.importorskip("huggingface_hub")
hub = pytest.importorskip("equicolor.models.hub")

FILES = {"README.md", "config.json", "model.safetensors"}


@pytest.fixture(autouse=True)
def _offline(monkeypatch):
    """Any request that slips through fails at once."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


@pytest.fixture
def network():
    return resnet44(3, rotations=3, ce_stages=2, width=2, lifting="hsv").eval()


def test_round_trip_through_a_folder(network, tmp_path):
    hub.HubModel(network).save_pretrained(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == FILES
    loaded = hub.HubModel.from_pretrained(tmp_path)
    assert loaded.network.config == network.config
    assert not loaded.training
    images = torch.rand(2, 3, 16, 16)
    assert torch.equal(loaded(images), network(images))


def test_configuration_is_beside_the_weights_and_in_them(network, tmp_path):
    hub.HubModel(network).save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text()) == network.config
    with safetensors.safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert json.loads(file.metadata()["config"]) == network.config


def test_model_card_says_what_it_is(network, tmp_path):
    hub.HubModel(network).save_pretrained(tmp_path)
    card = huggingface_hub.ModelCard.load(tmp_path / "README.md").data
    assert card.library_name == "equicolor"
    assert card.license == "mit"
    assert "image-classification" in card.tags


def test_saved_files_load_without_the_hub(network, tmp_path):
    from equicolor.models import load_model

    hub.HubModel(network).save_pretrained(tmp_path)
    assert load_model(tmp_path / "model.safetensors").config == network.config


@pytest.mark.slow
def test_push_uploads_these_files_and_no_others(network, monkeypatch):
    seen = {}

    def create_repo(self, repo_id, **options):
        seen["created"] = repo_id
        return SimpleNamespace(repo_id=repo_id)

    def upload_folder(self, *, repo_id, folder_path, **options):
        folder = Path(folder_path)
        seen["repo"] = repo_id
        seen["files"] = {str(path.relative_to(folder)) for path in folder.rglob("*")}
        seen["network"] = hub.HubModel.from_pretrained(folder).network
        return "https://example.org/commit"

    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", create_repo)
    monkeypatch.setattr(huggingface_hub.HfApi, "upload_folder", upload_folder)
    url = hub.HubModel(network).push_to_hub("someone/ce-resnet44")
    assert url == "https://example.org/commit"
    assert seen["created"] == seen["repo"] == "someone/ce-resnet44"
    assert seen["files"] == FILES
    assert seen["network"].config == network.config
    for key, value in network.state_dict().items():
        assert torch.equal(seen["network"].state_dict()[key], value), key


def test_a_repository_is_downloaded_by_name(network, tmp_path, monkeypatch):
    hub.HubModel(network).save_pretrained(tmp_path)
    asked = []

    def download(*, repo_id, filename, revision, **options):
        asked.append((repo_id, filename, revision))
        return str(tmp_path / filename)

    monkeypatch.setattr(huggingface_hub.hub_mixin, "hf_hub_download", download)
    monkeypatch.setattr(hub, "hf_hub_download", download)
    loaded = hub.HubModel.from_pretrained("someone/ce-resnet44", revision="v1")
    assert loaded.network.config == network.config
    assert asked == [
        ("someone/ce-resnet44", "config.json", "v1"),
        ("someone/ce-resnet44", "model.safetensors", "v1"),
    ]


def test_other_networks_are_refused():
    with pytest.raises(TypeError, match=r"expects a network of equicolor\.models.* got Linear$"):
        hub.HubModel(torch.nn.Linear(1, 2))


def test_network_options_are_not_swallowed(tmp_path):
    hub.HubModel(cecnn(3, width=2)).save_pretrained(tmp_path)
    with pytest.raises(TypeError, match="takes no network options, got width"):
        hub.HubModel.from_pretrained(tmp_path, width=3)


def test_a_folder_without_weights_says_which_file_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no checkpoint at .*model\.safetensors"):
        hub.HubModel.from_pretrained(tmp_path)
