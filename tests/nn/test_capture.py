"""Networks as CUDA graphs compute what they compute without."""

import copy

import pytest
import torch
import torch.nn.functional as F

from equicolor.models import ce_resnet18
from equicolor.nn import capture

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def test_refuses_a_network_that_evaluates():
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    images = torch.rand(2, 3, 32, 32, device="cuda")
    with pytest.raises(ValueError, match="expected network"):
        capture(ce_resnet18(5, width=8).cuda().eval(), images)


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
