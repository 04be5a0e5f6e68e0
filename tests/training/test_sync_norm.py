"""Batch norms of two processes against one that sees both slices."""

import copy
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn

from equicolor.models import resnet18
from equicolor.nn import CEBatchNorm2d
from equicolor.training.sync_norm import SyncedBatchNorm2d, sync_batch_norm

SLICES = 3, 2  # unequal on purpose


def norms() -> list[nn.BatchNorm2d]:
    made = [
        nn.BatchNorm2d(4),
        nn.BatchNorm2d(4, momentum=None),
        nn.BatchNorm2d(4, affine=False),
        nn.BatchNorm2d(4, track_running_stats=False),
        CEBatchNorm2d(4),
    ]
    torch.manual_seed(3)
    for norm in made:
        norm.double()
        if norm.affine:
            nn.init.uniform_(norm.weight, 0.5, 1.5)
            nn.init.uniform_(norm.bias, -0.5, 0.5)
    return made


def inputs(norm: nn.BatchNorm2d) -> Tensor:
    torch.manual_seed(5)
    hues = (3,) if isinstance(norm, CEBatchNorm2d) else ()
    x = torch.randn(sum(SLICES), 4, *hues, 5, 6, dtype=torch.float64)
    # Far from zero, where E[x²] − E[x]² would lose its digits, and other in each slice.
    return 2 * x + torch.arange(sum(SLICES)).view(-1, *[1] * (x.ndim - 1)) + 100


def run(norm: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """Two training steps' outputs, gradients and state, and the output in eval mode."""
    x = x.clone().requires_grad_()
    for _ in range(2):
        y = norm(x)
        (y * torch.cos(x.detach())).pow(2).sum().backward()
    found = {"y": y.detach(), "x": x.grad, "eval": norm.eval()(x.detach())}
    found |= {f"state {key}": value for key, value in norm.state_dict().items()}
    return found | {f"grad {key}": p.grad for key, p in norm.named_parameters()}


def process(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=len(SLICES))
    results = []
    for norm in norms():
        mine = inputs(norm).split(SLICES)[rank]
        results.append(run(sync_batch_norm(norm), mine))
    torch.save(results, folder / f"{rank}.pt")
    dist.destroy_process_group()


def start_processes(folder: str) -> None:
    mp.start_processes(process, (Path(folder),), nprocs=len(SLICES), start_method="fork")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, start_script) -> list[list[dict[str, Tensor]]]:
    folder = tmp_path_factory.mktemp("gloo")
    # Not forks of this process: torch refuses gradients there if autograd has threads already.
    script = f"from {__name__} import start_processes; start_processes({str(folder)!r})"
    done = start_script(script, Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    return [torch.load(folder / f"{rank}.pt") for rank in range(len(SLICES))]


@pytest.mark.parametrize("which", range(5))
def test_two_processes_are_one(found, which: int, relative_error) -> None:
    norm = norms()[which]
    expected = run(norm, inputs(norm))
    parts = [results[which] for results in found]
    for key in ("y", "x"):
        joined = torch.cat([part[key] for part in parts])
        assert relative_error(joined, expected[key]) < 1e-10, key
    if norm.track_running_stats:
        joined = torch.cat([part["eval"] for part in parts])
        assert relative_error(joined, expected["eval"]) < 1e-10
    for key in expected:
        if key.startswith("state"):
            for part in parts:
                assert relative_error(part[key], expected[key]) < 1e-12, key
        elif key.startswith("grad"):
            # Each process holds the gradient of its slice: DistributedDataParallel adds them.
            total = sum(part[key] for part in parts)
            assert relative_error(total, expected[key]) < 1e-10, key


def test_alone_it_is_the_ordinary_norm() -> None:
    for norm in norms():
        x = inputs(norm)
        expected = run(copy.deepcopy(norm), x)
        actual = run(sync_batch_norm(norm), x)
        assert expected.keys() == actual.keys()
        assert all(torch.equal(expected[key], actual[key]) for key in expected)


def test_networks_are_converted_in_place_and_keep_their_state() -> None:
    network = resnet18(5, rotations=3, ce_stages=2, width=4)
    before = dict(network.state_dict())
    names = [name for name, m in network.named_modules() if isinstance(m, nn.BatchNorm2d)]
    assert sync_batch_norm(sync_batch_norm(network)) is network
    synced = [name for name, m in network.named_modules() if isinstance(m, SyncedBatchNorm2d)]
    assert synced == names
    assert network.state_dict().keys() == before.keys()
    assert all(network.state_dict()[key] is not None for key in before)
    assert next(network.parameters()).data_ptr() == next(iter(before.values())).data_ptr()


def test_other_norms_are_refused_by_name() -> None:
    network = nn.Sequential(nn.BatchNorm2d(2), nn.Sequential(nn.BatchNorm1d(2)))
    with pytest.raises(ValueError, match=r"1\.0 is a BatchNorm1d"):
        sync_batch_norm(network)
    assert type(network[0]) is nn.BatchNorm2d
