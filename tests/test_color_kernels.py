"""The hue shift by a kernel is that of torch operations."""

import pytest
import torch

from equicolor import color

pytest.importorskip("triton")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SHAPES = {
    "one image": (3, 5, 7),
    "a batch": (4, 3, 6, 5),
    "batches": (2, 2, 3, 3, 4),
    "more pixels than a tile": (2, 3, 33, 41),
}


@pytest.fixture
def both(monkeypatch):
    """Results of torch operations and of the kernel."""

    def shift(images, turns):
        results = []
        for devices in ((), (DEVICE,)):
            monkeypatch.setattr(color, "DEVICES", devices)
            results.append(color.shift_hue(images, turns))
        return results

    return shift


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_it_equals_torch_operations(shape, dtype, both):
    images = torch.rand(shape, device=DEVICE).to(dtype)
    images[..., 0, :2] = images[..., 0, :1, :2].mean(-1, keepdim=True)
    images[..., :, 0, 1] = 0.5  # grey
    images[..., :, 0, 2] = 0.0  # black
    turns = torch.randn(shape[:-3], device=DEVICE)
    for each in (turns, 0.3, -1.75):
        expected, actual = both(images, each)
        assert actual.dtype == dtype
        exact = dtype == torch.float32
        torch.testing.assert_close(
            actual, expected, rtol=0, atol=1e-6 if exact else torch.finfo(dtype).eps
        )


def test_images_may_lie_in_memory_anyhow(both):
    images = torch.rand(4, 3, 10, 12, device=DEVICE)
    last = images.contiguous(memory_format=torch.channels_last)
    for each in (last, images[:, :, ::2, 1:], images[:1].expand(4, -1, -1, -1)):
        expected, actual = both(each, torch.linspace(0, 1, 4, device=DEVICE))
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-6)
    assert both(last, 0.2)[1].is_contiguous(memory_format=torch.channels_last)
    swapped = torch.rand(2, 3, 3, 4, 5, device=DEVICE).transpose(0, 1)  # no view has them in a row
    expected, actual = both(swapped, torch.rand(3, 2, device=DEVICE))
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-6)


def test_nan_stays_in_its_pixel(both):
    images = torch.rand(1, 3, 4, 4, device=DEVICE)
    images[0, 1, 2, 2] = torch.nan
    expected, actual = both(images, 0.4)
    assert torch.equal(expected.isnan(), actual.isnan())


def test_gradients_do_not_take_the_kernel(monkeypatch):
    monkeypatch.setattr(color, "DEVICES", (DEVICE,))
    images = torch.rand(1, 3, 4, 4, device=DEVICE, requires_grad=True)
    color.shift_hue(images, 0.1).sum().backward()
    assert images.grad is not None
    turns = torch.tensor([0.1], device=DEVICE, requires_grad=True)
    color.shift_hue(images.detach(), turns).square().sum().backward()
    assert turns.grad is not None
