"""Evaluations from the names of a network and a dataset."""

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
from equicolor.data.decoding import check_cache, default_cache, say_cache_growth
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
    """A network and the images to judge it on, prepared for it."""

    network: nn.Module  # in eval mode, on its device
    images: ImageSet
    batches: Batches  # the images as the network expects them; empty before they are decoded
    facts: dict[str, Any]  # dataset, split and, for a training run, how it was trained
    autocast: torch.dtype | None  # the dtype to compute in, if not that of the network
    class_mismatch: str = ""  # why the outputs are not the classes of the images, if so
    data: str | Path | None = None  # the dataset, by name or folder, if it is one
    # Set by open_subject, to decode and to compare.
    preparation: Preparation | None = None
    split_seed: int | None = None  # as given, else that of the training; None if unknown
    device: torch.device | None = None
    cache: Path | None = None

    def decode(
        self,
        *,
        batch_size: int | None = None,
        skip_corrupt: bool = False,
        console: Console | None = None,
    ) -> "Subject":
        """Decode the images; those that do not fit into memory later, batch by batch."""
        assert self.preparation is not None
        assert self.device is not None
        with (
            say_cache_growth(self.cache, console),
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
    batch_size: int | None = None,
    skip_corrupt: bool = False,
    console: Console | None = None,
    **options: Any,
) -> Subject:
    """Load a network and images by their names; ``options`` are those of :func:`open_subject`."""
    if batch_size is not None:
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
    """Load a network and list images, both by name, and check that their classes agree.

    The images are not decoded yet: see :meth:`Subject.decode`.

    Args:
        network, pretrained: see :func:`equicolor.models.loading.load_network`.
        data: a dataset by name or folder; by default what the network was trained on, if its
            run or its file names it.
        split_seed: for datasets without a split of their own; by default that of the training,
            if it was on the same data, or on a folder with the same classes.
        limit: take no more images than this, evenly from every class.
        size, resize: see :func:`equicolor.evaluation.images.choose_preparation`.
        gray: feed the network the mean of the channels; networks trained on grey always do so.
        precision: ``"float32"``, ``"bfloat16"`` (autocast), or ``"auto"``: bfloat16 on a GPU.
        any_classes: accept a network whose outputs are not the classes of the images.
        classes_by_index: see :func:`equicolor.evaluation.images.match_classes`.
        cache: folder of decoded images (default: :func:`equicolor.data.default_cache`).
        console: shows remarks (default: none).
    """
    if limit is not None:
        _checks.positive_int("limit", limit)
    cache_folder: Path | None = default_cache() if cache is None else check_cache(cache)
    device = torch.device(device)
    precision = choose_precision(precision, cuda=device.type == "cuda")

    recipe = recipe_of_run(network)
    facts: dict[str, Any] = {}
    if recipe is not None:
        facts = {"augmentation": recipe.augmentation_name}
        facts |= {"epochs": recipe.epochs, "seed": recipe.seed}
        data = recipe.dataset if data is None else data
    elif data is not None:
        find_dataset(data)  # refuses a wrong name before the network is loaded
    model = load_network(network, pretrained=pretrained, device=device)
    origin = model.origin if isinstance(model, Network) else Origin()
    if origin.dataset:
        facts["trained_on"] = origin.dataset
    if Path(network).exists():
        facts["run"] = Path(network).resolve().name
    data = _training_dataset(network, origin) if data is None else data
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
        images, cache_folder = some_images(images, limit), None
    class_mismatch = ""
    try:
        images = match_classes(model, images, preparation.size, by_index=classes_by_index)
    except OtherClassesError as error:
        if not any_classes:
            raise
        class_mismatch = error.reason
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
        class_mismatch=class_mismatch,
        cache=cache_folder,
    )


def _training_dataset(network: str | Path, origin: Origin) -> str:
    """The name of the dataset that a network was trained on."""
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
    **options: Any,
) -> Evaluation:
    """Load a network and images as :func:`load_subject`, and judge the network on them."""
    actions = list(actions)
    action_values(actions, shifts)  # refuses wrong ones before anything is loaded
    console = Console(stderr=True) if console is None else console
    subject = load_subject(network, data, console=console, **options)
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
