"""Networks recorded as CUDA graphs compute the same as without."""

import copy
import importlib
import threading
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from equicolor.models import ce_resnet18
from equicolor.nn import capture, fold
from equicolor.nn._fused import streams

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("training", [True, False])
def test_refuses_images_elsewhere(training):
    with pytest.raises(ValueError, match="images on a GPU, got a tensor on cpu"):
        capture(ce_resnet18(5, width=8).train(training), torch.rand(2, 3, 32, 32))


def test_a_recording_that_fails_keeps_no_tensors(monkeypatch):
    others = [SimpleNamespace(kept=[torch.zeros(2)]) for _ in range(2)]

    def fail(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(streams, "_streams", lambda device: others)
    monkeypatch.setattr(importlib.import_module("equicolor.nn.capture"), "_training", fail)
    with pytest.raises(torch.OutOfMemoryError):
        capture(torch.nn.ReLU(), SimpleNamespace(is_cuda=True, device=torch.device("cuda", 0)))
    assert not any(other.kept for other in others)


@needs_gpu
@pytest.mark.parametrize(("dtype", "tolerance"), [(None, 1e-2), (torch.bfloat16, 5e-2)])
def test_gpu_steps_are_those_of_the_network(dtype, tolerance):
    ordinary = ce_resnet18(5, width=8).cuda().to(memory_format=torch.channels_last).train()
    recorded = copy.deepcopy(ordinary)
    batches = torch.rand(2, 32, 3, 64, 64, device="cuda")
    step = capture(recorded, batches[0], dtype)
    for name, buffer in recorded.named_buffers():  # warming up left no trace
        torch.testing.assert_close(buffer, ordinary.get_buffer(name))
    labels = torch.arange(32, device="cuda") % 5
    for images in batches:  # with the same weights: training would make rounding grow
        gradients = []
        for call, network in ((ordinary, ordinary), (step, recorded)):
            network.zero_grad()
            with torch.autocast("cuda", torch.bfloat16, enabled=dtype is not None):
                loss = F.cross_entropy(call(images).float(), labels)
            loss.backward()
            grads = [parameter.grad.flatten().double() for parameter in network.parameters()]
            gradients.append(torch.cat(grads).clone())
        difference = (gradients[1] - gradients[0]).norm() / gradients[0].norm()
        assert difference < tolerance
    for name, buffer in recorded.named_buffers():
        torch.testing.assert_close(
            buffer, ordinary.get_buffer(name), rtol=tolerance, atol=tolerance
        )


@needs_gpu
@pytest.mark.parametrize(("rotations", "lifting"), [(3, "rgb"), (12, "hsv")])
def test_gpu_streams_of_a_recording_do_not_overtake_each_other(rotations, lifting):
    """Kernels are large enough to run at the same time, and memory is used again."""
    options = {"rotations": rotations, "width": "fast", "lifting": lifting}
    ordinary = ce_resnet18(5, **options).cuda().to(memory_format=torch.channels_last).train()
    recorded = copy.deepcopy(ordinary)
    images = torch.rand(64, 3, 112, 112, device="cuda")
    step, labels = capture(recorded, images, torch.bfloat16), torch.arange(64, device="cuda") % 5

    def gradients(call, network):
        network.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.cross_entropy(call(images).float(), labels)
        loss.backward()
        return [parameter.grad.double().clone() for parameter in network.parameters()]

    expected = gradients(ordinary, ordinary)
    for _ in range(10):
        for gradient, value in zip(gradients(step, recorded), expected, strict=True):
            assert (gradient - value).norm() < 2e-2 * value.norm() + 1e-7


@needs_gpu
def test_gpu_a_recording_that_fails_leaves_the_network_as_it_was():
    """A copy to the CPU cannot be recorded, but can be run before, which warms up."""
    network = torch.nn.Sequential(torch.nn.BatchNorm2d(3), torch.nn.Conv2d(3, 2, 3)).cuda().train()
    network.register_forward_hook(lambda module, images, result: result * float(result.sum()))
    before = copy.deepcopy(network.state_dict())
    with pytest.raises(RuntimeError):
        capture(network, torch.rand(2, 3, 8, 8, device="cuda"))
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


@needs_gpu
def test_gpu_other_calls_go_to_the_network():
    network = ce_resnet18(5, width=8).cuda().train()
    images = torch.rand(4, 3, 64, 64, device="cuda")
    step = capture(network, images)
    seen = []
    network.register_forward_hook(lambda *_: seen.append(True))
    step(images)
    assert not seen
    step(images[:2])
    with torch.no_grad():
        step(images)
    network.eval()
    step(images)
    assert len(seen) == 3


# Inference


@needs_gpu
@pytest.mark.parametrize("folded", [True, False])
@pytest.mark.parametrize(("dtype", "tolerance"), [(None, 1e-3), (torch.bfloat16, 3e-2)])
def test_gpu_inference_is_that_of_the_network(folded, dtype, tolerance, relative_error):
    network = ce_resnet18(5, width=8).cuda().to(memory_format=torch.channels_last).eval()
    batches = torch.rand(2, 16, 3, 64, 64, device="cuda")
    predict = capture(fold(network) if folded else network, batches[0], dtype)
    results = [predict(images) for images in batches]  # new tensors: the first stays
    smaller = predict(batches[0, :3])  # by the network itself, in the same dtype
    assert not results[0].requires_grad
    assert results[0].dtype == smaller.dtype == (dtype or torch.float32)
    with torch.no_grad():
        for images, result in zip((*batches, batches[0, :3]), (*results, smaller), strict=True):
            assert relative_error(result, network(images)) < tolerance


@needs_gpu
def test_gpu_recorded_inference_outlives_changes_of_the_network(relative_error):
    network = ce_resnet18(5, width=8).cuda().eval()
    images = torch.rand(4, 3, 64, 64, device="cuda")
    folded = fold(network)
    with torch.inference_mode():
        predict = capture(folded, images, torch.bfloat16)
        before = predict(images)
    folded(images)  # in another dtype, so other filters are made
    folded.double()
    noise = [torch.randn(1 << 20, device="cuda") for _ in range(50)]  # in memory that was freed
    assert relative_error(predict(images), before) == 0
    assert len(noise) == 50


@needs_gpu
def test_gpu_what_was_not_recorded_for_inference_goes_to_the_network():
    network = ce_resnet18(5, width=8).cuda().eval()
    images = torch.rand(4, 3, 64, 64, device="cuda")
    predict = capture(network, images)
    seen = []
    network.register_forward_hook(lambda *_: seen.append(True))
    predict(images)
    assert not seen
    predict(images[:2])
    assert predict(images.clone().requires_grad_()).requires_grad
    network.train()
    predict(images)
    assert len(seen) == 3


@needs_gpu
def test_gpu_other_threads_may_ask_for_events_while_inference_is_recorded(relative_error):
    network = ce_resnet18(5, width=8).cuda().eval()
    images, event, seen = torch.rand(4, 3, 64, 64, device="cuda"), torch.cuda.Event(), []
    event.record()

    def ask(*_):
        if torch.cuda.is_current_stream_capturing():
            thread = threading.Thread(target=lambda: seen.append(event.query()))
            thread.start()
            thread.join()

    hook = network.register_forward_hook(ask)
    predict = capture(network, images)
    hook.remove()
    assert seen == [True]
    with torch.no_grad():
        assert relative_error(predict(images), network(images)) < 1e-3
