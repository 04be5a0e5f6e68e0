"""Files of weights: their bytes, and what is noticed in them."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from equicolor.models import CheckpointError, cecnn, load_model, save_model


@pytest.mark.slow
def test_the_same_network_gives_the_same_bytes(
    tmp_path: Path, start_script: Callable[..., "subprocess.CompletedProcess[str]"]
) -> None:
    """Also in another process, where a hash table has another order."""
    files = [tmp_path / f"{name}.safetensors" for name in "ab"]
    script = (
        "import torch; from equicolor.models import cecnn, save_model; torch.manual_seed(0); "
        "network = cecnn(3, width=2); network.class_names = ('rød', 'b', 'c'); "
        f"save_model(network, {str(files[0])!r})"
    )
    ended = start_script(script)
    assert ended.returncode == 0, ended.stderr
    torch.manual_seed(0)
    network = cecnn(3, width=2)
    network.class_names = ("rød", "b", "c")
    save_model(network, files[1])
    assert files[0].read_bytes() == files[1].read_bytes()
    assert load_model(files[0]).class_names == ("rød", "b", "c")


def test_a_flipped_bit_in_a_weight_is_noticed(tmp_path: Path) -> None:
    network = cecnn(3, width=2)
    path = save_model(network, tmp_path / "network.safetensors")
    contents = bytearray(path.read_bytes())
    contents[contents.index(network.blocks[1][0].weight.detach().numpy().tobytes()) + 2] ^= 1
    path.write_bytes(contents)
    with pytest.raises(CheckpointError, match="is damaged: its digest does not fit"):
        load_model(path)


def test_a_changed_word_in_the_header_is_noticed(tmp_path: Path) -> None:
    network = cecnn(3, width=2)
    network.class_names = ("aaa", "bbb", "ccc")
    path = save_model(network, tmp_path / "network.safetensors")
    path.write_bytes(path.read_bytes().replace(b"bbb", b"bbc"))
    with pytest.raises(CheckpointError, match=r"network.safetensors is damaged"):
        load_model(path)


def test_files_without_a_digest_are_refused(tmp_path: Path) -> None:
    network = cecnn(3, width=2).eval()
    path = save_model(network, tmp_path / "network.safetensors")
    with safe_open(path, framework="pt") as file:
        header = {key: value for key, value in file.metadata().items() if key != "digest"}
    save_file(load_file(path), path, header)
    with pytest.raises(CheckpointError, match="is damaged: its digest"):
        load_model(path)
