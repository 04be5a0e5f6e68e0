"""What tests of the fused path share."""

import pytest
import torch

from equicolor.nn._fused import conditions


@pytest.fixture(autouse=True)
def _everywhere(monkeypatch):
    """The fused path on the CPU too, and convolutions that keep float32."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    monkeypatch.setattr(conditions, "DEVICES", (device,))
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
