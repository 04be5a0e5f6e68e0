"""From the name of a network and of a dataset to an evaluation."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn

from equicolor import _checks
from equicolor._text import counted
from equicolor.data.datasets import DATASETS, find_dataset, load_dataset
from equicolor.data.decoding import check_cache, default_cache, telling_cache
from equicolor.data.images import ImageSet
from equicolor.devices import choose_precision
from equicolor.evaluation.actions import HUE_ACTIONS, action_values
from equicolor.evaluation.evaluate import Evaluation, evaluate
from equicolor.evaluation.hue_sweep import Batches
from equicolor.evaluation.images import (
    OtherClassesError,
    Preparation,
    choose_preparation,
    load_batches,
    match_classes,
    some_images,
)
from equicolor.models.loading import load_network
from equicolor.models.registry import GrayInput, Network, Origin
from equicolor.reporting.progress import counting, say
from equicolor.training.run_folder import recipe_of_run
from equicolor.training.seen import find_seen, seed_of_training


@dataclasses.dataclass(frozen=True, eq=False)
class Subject:
    """A network and the images to judge it on, which fit together."""

    network: nn.Module  # in eval mode, on its device
    images: ImageSet
    batches: Batches  # the images as the network expects them; none before they are decoded
    facts: dict[str, Any]  # dataset, split and, of a training run, how it was trained
    autocast: torch.dtype | None  # the dtype to compute in, if not that of the network
    unjudged: str = ""  # why the outputs are not the classes of the images, if they are not
    data: str | Path | None = None  # the dataset, by name or folder; None of images made otherwise
    # What decoding needs, and comparing; of subjects of open_subject.
    preparation: Preparation | None = None
    split_seed: int | None = None  # that was given, or that of the training; None if unknown
    device: torch.device | None = None
    cache: Path | None = None

    def decode(
        self, *, batch_size: int = 256, skip_corrupt: bool = False, console: Console | None = None
    ) -> "Subject":
        """Decode the images, or get ready to, if they do not fit into memory."""
        assert self.preparation is not None
        assert self.device is not None
        with (
            telling_cache(self.cache, console),
            counting(console, f"decoding {self.images.name}") as decoding,
        ):
            batches = load_batches(
                self.images,
                self.preparation,
                batch_size=batch_size,
                device=self.device,
                skip_corrupt=skip_corrupt,
                cache=self.cache,
                progress=decoding,
            )
        return dataclasses.replace(self, batches=batches)


def load_subject(
    network: str | Path,
    data: str | Path | None = None,
    *,
    batch_size: int = 256,
    skip_corrupt: bool = False,
    console: Console | None = None,
    **options: Any,
) -> Subject:
    """Load a network and images by their names; see :func:`open_subject` for the ``options``."""
    _checks.positive_int("batch_size", batch_size)
    console = Console(stderr=True) if console is None else console
    subject = open_subject(network, data, console=console, **options)
    return subject.decode(batch_size=batch_size, skip_corrupt=skip_corrupt, console=console)


def open_subject(
    network: str | Path,
    data: str | Path | None = None,
    *,
    split: str = "test",
    split_seed: int | None = None,
    limit: int | None = None,
    size: int | None = None,
    resize: int | None = None,
    gray: bool = False,
    pretrained: bool = True,
    device: torch.device | str = "cpu",
    precision: str = "auto",
    any_classes: bool = False,
    classes_by_index: bool = False,
    cache: Path | None = None,
    console: Console | None = None,
) -> Subject:
    """Load a network and list the images by their names, and see that they fit together.

    The images are not decoded yet: see :meth:`Subject.decode`.

    Args:
        network, pretrained: see :func:`equicolor.models.loading.load_network`.
        data: a dataset by name or folder; by default what the network was trained on, as far as
            its run or its file says that.
        split_seed: of datasets without a split of their own; by default that of the training, if
            it was on the same data, or on a folder with the same classes.
        limit: take no more images than this, evenly from all of them.
        size, resize: see :func:`equicolor.evaluation.images.choose_preparation`.
        gray: feed the network the mean of the channels; a run that was trained so says it.
        precision: ``"float32"``, ``"bfloat16"`` (autocast), or ``"auto"``: bfloat16 on a GPU.
        any_classes: also take a network whose outputs are not the classes of the images.
        classes_by_index: see :func:`equicolor.evaluation.images.match_classes`.
        cache: where decoded images are kept (default: :func:`equicolor.data.default_cache`).
        console: shows remarks (default: none).
    """
    if limit is not None:
        _checks.positive_int("limit", limit)
    decoded: Path | None = default_cache() if cache is None else check_cache(cache)
    device = torch.device(device)
    precision = choose_precision(precision, cuda=device.type == "cuda")

    recipe = recipe_of_run(network)
    facts: dict[str, Any] = {}
    if recipe is not None:
        facts = {"augmentation": recipe.augmentation_name}
        facts |= {"epochs": recipe.epochs, "seed": recipe.seed}
        data = recipe.dataset if data is None else data
    elif data is not None:
        find_dataset(data)  # so that a wrong name is known at once
    model = load_network(network, pretrained=pretrained, device=device)
    origin = model.origin if isinstance(model, Network) else Origin()
    if origin.dataset:
        facts["trained_on"] = origin.dataset
    if Path(network).exists():
        facts["run"] = Path(network).resolve().name
    data = _data_of(network, origin) if data is None else data
    info = find_dataset(data)
    if split_seed is None:
        class_names = model.class_names if isinstance(model, Network) else ()
        split_seed = seed_of_training(origin, class_names, info)
    preparation = choose_preparation(model, info.kind, size=size, resize=resize)
    if gray and not isinstance(model, GrayInput):
        model = GrayInput(model)
    if device.type == "cuda":
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    images = load_dataset(data, split, seed=split_seed or 0)
    if split == "test":
        seen = find_seen(network, origin, data, images)
        facts |= seen.facts()
        for remark in seen.remarks:
            say(console, remark)
    if limit is not None and limit < len(images):
        images, decoded = some_images(images, limit), None
    unjudged = ""
    try:
        images = match_classes(model, images, preparation.size, by_index=classes_by_index)
    except OtherClassesError as error:
        if not any_classes:
            raise
        unjudged = error.reason
    facts |= {"dataset": info.name, "split": split, "split_seed": split_seed or 0}
    facts |= {**preparation._asdict(), "precision": precision}
    return Subject(
        network=model,
        images=images,
        batches=(),
        preparation=preparation,
        facts=facts,
        data=data,
        split_seed=split_seed,
        device=device,
        autocast=torch.bfloat16 if precision == "bfloat16" else None,
        unjudged=unjudged,
        cache=decoded,
    )


def _data_of(network: str | Path, origin: Origin) -> str:
    """The dataset that a network was trained on, by name."""
    if origin.dataset in DATASETS:
        return origin.dataset
    hint = f"; it was trained on a folder called {origin.dataset!r}" if origin.dataset else ""
    raise ValueError(
        f"{network} is not the folder of a training run: say which data (--data){hint}"
    )


def diagnose(
    network: str | Path,
    data: str | Path | None = None,
    *,
    actions: Sequence[str] = HUE_ACTIONS,
    shifts: int | Sequence[float] | Tensor = 37,
    console: Console | None = None,
    **loading: Any,
) -> Evaluation:
    """Load a network and images as :func:`load_subject`, and judge the network on them."""
    action_values(actions, shifts)  # so that wrong ones are known at once
    console = Console(stderr=True) if console is None else console
    subject = load_subject(network, data, console=console, **loading)
    return judge(subject, actions=actions, shifts=shifts, console=console)


def judge(
    subject: Subject,
    *,
    actions: Sequence[str] = HUE_ACTIONS,
    shifts: int | Sequence[float] | Tensor = 37,
    console: Console | None = None,
) -> Evaluation:
    """Judge a network on its images; see :func:`equicolor.evaluation.evaluate`."""
    images = subject.images
    with counting(console, f"judging {len(images)} images") as judging:
        evaluation = evaluate(
            subject.network,
            subject.batches,
            class_names=images.class_names,
            actions=actions,
            shifts=shifts,
            autocast=subject.autocast,
            progress=judging,
            facts=subject.facts,
        )
    skipped = len(images) - evaluation.images
    if skipped:
        say(console, f"left out {counted(skipped, 'corrupt image')} of {len(images):,}")
    return dataclasses.replace(evaluation, facts={**evaluation.facts, "skipped": skipped})
