"""Devices by name."""

import pytest
import torch

from equicolor.devices import choose_device


@pytest.mark.parametrize("name", ["auto:3", "cpu:abc", "cuda:x", "tpu"])
def test_unknown_devices_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        choose_device(name)


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device() == torch.device("cpu")
    with pytest.raises(ValueError, match="torch sees no CUDA device"):
        choose_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_device() == torch.device("cuda")
    assert choose_device("cuda:1") == torch.device("cuda:1")
    assert choose_device("cpu") == torch.device("cpu")
