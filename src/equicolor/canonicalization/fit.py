"""Train a selector on images without labels to recognise their natural hues.

The hues of the images are taken to be natural. They are shifted at random by up to half a step of
the hue circle, and the selector learns to find this shift. Since it is equivariant, it then finds
any other shift as well.
"""

import math
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equicolor import _checks
from equicolor._random import permutation, uniform
from equicolor.color import shift_hue
from equicolor.data.datasets import DATASETS, load_dataset
from equicolor.data.folder_datasets import images_below
from equicolor.data.images import ImageSet
from equicolor.evaluation.hue_sweep import Batches
from equicolor.evaluation.images import Preparation, load_batches
from equicolor.models.selector import HueSelector, subsample
from equicolor.models.tensor_files import CheckpointError, digest, read_pickle, write_pickle
from equicolor.nn import capture
from equicolor.reporting.progress import Progress

FEWEST = 16  # images; fewer give batch norms no useful statistics
_OVERSIZE = 2  # images are kept at this multiple of the selector's input size, to take crops
_SMALLEST_CROP = 0.5  # of the side
_SPREAD = 0.5  # standard deviation of the target around the true shift, in steps of the hue circle
_CHUNK = 256  # images of a tensor at once: as floating-point numbers, all may need much memory
_LEAST_CHROMA = 1 / 255  # mean chroma below which images have no hue to learn from
_SAVE_EVERY = 10.0  # seconds
_WEIGHT_DECAY = 0.1
_EPOCHS, _STEPS = 240, 4000  # by default, as many epochs, or fewer that make as many steps


class Fit(NamedTuple):
    """How a selector was trained."""

    images: int  # their number
    epochs: int  # how often each was seen
    loss: float  # mean of the last epoch, in nats; math.log(rotations) is chance
    seconds: float  # the time it took, without that of earlier, interrupted calls
    resumed: int = 0  # the epochs that earlier, interrupted calls had done


def load_unlabelled(name: str | Path) -> ImageSet:
    """The training images of a dataset by name, or all images in a folder and below."""
    if str(name) in DATASETS and not isinstance(name, Path):
        return load_dataset(name, "train")
    return images_below(Path(name).expanduser())


def load_for_selector(images: ImageSet, size: int, *, skip_corrupt: bool = False) -> Batches:
    """Batches for :func:`collect`: the central square of every image."""
    side = _OVERSIZE * size
    return load_batches(images, Preparation(side, side), skip_corrupt=skip_corrupt)


def collect(
    images: Tensor | Iterable[Any] | ImageSet,
    size: int,
    prepare: Callable[[Tensor], Tensor] = lambda images: images,
) -> Tensor:
    """Images as one tensor, uint8 ``[N, 3, s, s]``, where s is at most twice the size.

    Args:
        images: a tensor :math:`[N, 3, H, W]`, or batches of that shape, or pairs that begin with
            such a batch, as data loaders give them; floating-point numbers in [0, 1] or uint8. Or
            the images of a dataset, see :func:`load_for_selector`.
        size: of the selector's input.
        prepare: what happens to images ``[B, 3, H, W]`` in [0, 1] before a selector sees them.
    """
    side = _OVERSIZE * size
    if isinstance(images, ImageSet):
        images = load_for_selector(images, size)
    if not (hasattr(images, "__iter__") or hasattr(images, "__getitem__")):
        raise TypeError(
            "fit expects images [N, 3, H, W] as a tensor, batches of them, a dataset by name or a "
            f"folder; got {type(images).__name__}"
        )
    parts = [
        _to_bytes(batch[0] if isinstance(batch, (tuple, list)) else batch, side, prepare)
        for batch in (images.split(_CHUNK) if isinstance(images, Tensor) else images)
    ]
    count = sum(map(len, parts))
    if count < FEWEST:
        raise ValueError(f"fit needs at least {FEWEST} images, got {count}")
    return torch.cat(parts)


def _to_bytes(batch: object, side: int, prepare: Callable[[Tensor], Tensor]) -> Tensor:
    if not isinstance(batch, Tensor):
        raise TypeError(
            "fit expects batches of images [B, 3, H, W] as tensors, or pairs that begin with one; "
            f"got {type(batch).__name__}"
        )
    if batch.dtype == torch.uint8:
        batch = batch / 255
    _checks.images_in_range("fit", batch)
    natural = prepare(batch.detach().float().clamp(0, 1))
    bytes_ = natural.mul(255).round().to(torch.uint8).cpu()
    # All of one size, so that they fit into one tensor. Smaller images are enlarged.
    return subsample(bytes_, side)


def fit_selector(
    selector: HueSelector,
    images: Tensor,
    *,
    epochs: int | None = None,
    batch_size: int = 128,
    learning_rate: float = 3e-3,
    seed: int = 0,
    checkpoint: Path | None = None,
    progress: Progress | None = None,
) -> Fit:
    """Train a selector, its weights drawn anew, on images of :func:`collect`.

    Args:
        selector: is trained in place, and left in eval mode.
        images: uint8 :math:`[N, 3, s, s]`.
        epochs: by default 240, or fewer that make 4,000 steps.
        batch_size, learning_rate: of AdamW, with one cycle of the learning rate.
        seed: of the weights, the order and the crops.
        checkpoint: a file that keeps the state, so that an interrupted call can be repeated.
        progress: called with (steps done, steps in all).
    """
    _checks.positive_int("batch_size", batch_size)
    per_epoch = max(len(images) // batch_size, 1)
    if epochs is None:
        epochs = min(_EPOCHS, max(_STEPS // per_epoch, 1))
    _checks.positive_int("epochs", epochs)
    if isinstance(learning_rate, bool) or not isinstance(learning_rate, (int, float)):
        raise TypeError(f"learning_rate must be a number, got {learning_rate!r}")
    if not 0 < learning_rate < math.inf:
        raise ValueError(f"learning_rate must be positive, got {learning_rate!r}")
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise TypeError(f"seed must be an int, got {seed!r}")
    if not 0 <= seed <= _checks.MOST["seed"]:
        raise ValueError(f"seed must lie between 0 and {_checks.MOST['seed']:,}, got {seed}")
    if checkpoint is not None and checkpoint.is_dir():
        raise IsADirectoryError(f"checkpoint must be a file, but {checkpoint} is a folder")
    start = time.perf_counter()
    weight = next(selector.parameters())
    device, dtype = weight.device, weight.dtype
    images = images.to(device)
    if _mean_chroma(images) < _LEAST_CHROMA:
        raise ValueError("fit needs images with colours, but these are all grey")
    settings = f"{epochs} {batch_size} {learning_rate} {seed} {selector.config}"
    identity = digest(settings, {"images": images}) if checkpoint else ""
    state = _read_state(checkpoint, identity)  # before the selector changes
    done, loss, saved = 0, math.nan, time.perf_counter()
    key = torch.tensor([seed], device=device)
    run: Callable[[Tensor], Tensor] | None = None
    try:
        selector.float().train()  # it is trained in float32, as its views are
        _draw(selector, seed)
        optimizer = torch.optim.AdamW(
            selector.parameters(),
            lr=learning_rate,
            weight_decay=_WEIGHT_DECAY,
            fused=True if device.type == "cuda" else None,  # one kernel for all weights
        )
        cycle = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=learning_rate, total_steps=epochs * per_epoch
        )
        parts: dict[str, Any] = {"selector": selector, "optimizer": optimizer, "schedule": cycle}
        if state is not None:
            for name, part in parts.items():
                part.load_state_dict(state[name])
            done, loss = int(state["epoch"]), float(state["loss"])
        for epoch in range(done, epochs):
            order = permutation(key, 0, epoch, len(images))[0]
            total = torch.zeros((), device=device)
            for number in range(per_epoch):
                step = epoch * per_epoch + number
                batch = images[order[number * batch_size : (number + 1) * batch_size]]
                views, targets = _examples(selector, batch, key, step)
                if run is None:  # on a GPU, most of the time would go into launching kernels
                    run = capture(selector, views, torch.bfloat16) if views.is_cuda else selector
                error = F.cross_entropy(run(views).float(), targets)
                optimizer.zero_grad()
                error.backward()
                optimizer.step()
                cycle.step()
                total += error.detach()
                if progress:
                    progress(step + 1, epochs * per_epoch)
            loss = float(total) / per_epoch
            if not math.isfinite(loss):
                raise ValueError(
                    f"the selector's loss is {loss} in epoch {epoch + 1}: take a smaller "
                    f"learning_rate than {learning_rate}"
                )
            due = time.perf_counter() - saved > _SAVE_EVERY or epoch + 1 == epochs
            if checkpoint is not None and due:
                states = {name: part.state_dict() for name, part in parts.items()}
                state = {"run": identity, "epoch": epoch + 1, "loss": loss, **states}
                write_pickle(checkpoint, state)
                saved = time.perf_counter()
    except BaseException:
        _draw(selector, seed)  # half-trained, it would count as trained
        raise
    finally:
        selector.eval().to(dtype)
    return Fit(len(images), epochs, loss, time.perf_counter() - start, done)


def _mean_chroma(images: Tensor) -> float:
    return float((images.amax(1).float() - images.amin(1).float()).mean() / 255)


def _draw(selector: nn.Module, seed: int) -> None:
    """Draw all weights anew; torch's own generator stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for module in selector.modules():
            if callable(reset := getattr(module, "reset_parameters", None)):
                reset()


def _read_state(checkpoint: Path | None, identity: str) -> dict[str, Any] | None:
    """The state that an earlier call kept."""
    if checkpoint is None or not checkpoint.is_file():
        return None
    remedy = "delete it to begin again"
    state = read_pickle(checkpoint, remedy)
    if not isinstance(state, dict) or state.get("run") != identity:
        raise CheckpointError(
            f"{checkpoint} belongs to other images or settings: {remedy}, or name another file"
        )
    return state


def _examples(
    selector: HueSelector, images: Tensor, key: Tensor, step: int
) -> tuple[Tensor, Tensor]:
    """Views of images in randomly shifted hues, and the scores they should get, ``[B, n]``."""
    n, batch = selector.rotations, len(images)
    random = uniform(key, 1, step, 5 * batch)[0].view(5, batch)
    views = _random_views(images, random[:4], selector.size).float() / 255
    offsets = random[4] - 0.5  # in steps
    return shift_hue(views, offsets / n), _targets(offsets, n)


def _targets(offsets: Tensor, rotations: int) -> Tensor:
    """A Gaussian over the steps of the hue circle around offsets ``[B]``: ``[B, n]``."""
    places = torch.arange(rotations, device=offsets.device)
    away = torch.remainder(places - offsets[:, None] + rotations / 2, rotations) - rotations / 2
    return (-0.5 * (away / _SPREAD).square()).softmax(1)


def _random_views(images: Tensor, random: Tensor, size: int) -> Tensor:
    """Square crops of ``[B, 3, s, s]``, half of them mirrored, subsampled to the size.

    ``random`` holds numbers in [0, 1) for side, top, left and mirroring, ``[4, B]``.
    """
    side, top, left, flip = random[:, :, None]
    length = images.shape[-1]
    crop = length * (_SMALLEST_CROP + (1 - _SMALLEST_CROP) * side)
    steps = (torch.arange(size, device=images.device) + 0.5) / size
    rows = top * (length - crop) + steps * crop
    columns = left * (length - crop) + torch.where(flip < 0.5, steps, 1 - steps) * crop
    rows, columns = (place.long().clamp(0, length - 1) for place in (rows, columns))
    number = torch.arange(len(images), device=images.device).view(-1, 1, 1)
    return images.movedim(1, -1)[number, rows[:, :, None], columns[:, None]].movedim(-1, 1)
