"""The images of a recipe, as loaders for training and testing."""

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
import torch.distributed
from lightning.fabric.utilities import suggested_max_num_workers
from rich.console import Console

from equicolor._text import counted
from equicolor.data.augment import Augmentation
from equicolor.data.datasets import load_dataset
from equicolor.data.decoding import Decoded, decode, default_cache, say_cache_growth
from equicolor.data.images import ImageSet, find_corrupt
from equicolor.data.loaders import (
    Loader,
    ResidentLoader,
    StreamingLoader,
    check_sizes,
    choose_data_path,
    evaluation_batch,
)
from equicolor.reporting.progress import counting, say
from equicolor.training.recipes import TrainingRecipe
from equicolor.training.run_options import RunOptions


class ImageData(pl.LightningDataModule):
    """Training and test images of a recipe on the device that trains.

    Images that are too small for the recipe are refused, as far as their sizes are known.

    Attributes:
        train, test: the images, not decoded yet.
        streamed: the loader of training images that are decoded while training; None for others.
    """

    def __init__(
        self, recipe: TrainingRecipe, options: RunOptions, console: Console | None = None
    ) -> None:
        super().__init__()
        self.recipe, self.options, self.console = recipe, options, console
        self.train, self.test = (
            load_dataset(recipe.dataset, split, seed=recipe.split_seed)
            for split in ("train", "test")
        )
        if self.train.pixels is not None:
            check_sizes(recipe.augmentation, torch.tensor([self.train.pixels.shape[2:]]))
        self._decoded: dict[str, Decoded] = {}
        self._skipped: dict[str, set[str]] = {"train": set(), "test": set()}
        self.streamed: StreamingLoader | None = None
        self._on_corrupt = "skip" if options.skip_corrupt else "error"

    def prepare_data(self) -> None:
        """Decode resident images, in one process of each computer.

        Streamed test images are read, too, so that a corrupt one stops the run before training and
        not after it. A corrupt training image is found in the first epoch.
        """
        with say_cache_growth(self._cache, self.console):
            for images in (self.train, self.test):
                if self.path(images, self._device) == "resident":
                    self._decode(images)
                elif images is self.test:
                    self._verify(images)

    def skipped(self, split: str) -> tuple[str, ...]:
        """What is wrong with each corrupt image that was left out so far."""
        if split == "train" and self.streamed is not None:
            self._skipped["train"] |= self.streamed.skipped
        return tuple(sorted(self._skipped[split]))

    def state_dict(self) -> dict[str, Any]:
        """For a resumed run: the corrupt images that any process met while streaming."""
        if self.streamed is None or not self.options.skip_corrupt:
            return {}
        self._skipped["train"].update(_gathered(self.skipped("train")))
        return {"skipped": list(self.skipped("train"))}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the corrupt images that :meth:`state_dict` names."""
        self._skipped["train"].update(state_dict["skipped"])

    def say_skipped(self, split: str) -> None:
        """Print how many corrupt images were left out, if there are any."""
        name, skipped = getattr(self, split).name, self.skipped(split)
        if skipped:
            say(
                self.console,
                f"left out {counted(len(skipped), 'corrupt image')} of {name} ({split}), "
                f"the first because {skipped[0]}",
            )

    def train_dataloader(self) -> Loader:
        """This process's part of shuffled and augmented training images."""
        return self._loader(self.train, self.recipe.augmentation)

    def val_dataloader(self) -> Loader:
        """This process's part of the test images, as the network sees them."""
        return self._loader(self.test, self.recipe.augmentation.evaluation())

    def test_images(self, device: torch.device) -> Loader:
        """All test images in colour; a grey network turns them grey itself."""
        augmentation = dataclasses.replace(self.recipe.augmentation.evaluation(), gray=False)
        return self._loader(self.test, augmentation, device)

    @property
    def _cache(self) -> Path:
        return self.options.cache or default_cache()

    @property
    def _device(self) -> torch.device:
        assert self.trainer is not None
        return self.trainer.strategy.root_device

    def path(self, images: ImageSet, device: torch.device | str) -> str:
        """Where images are held on a device: ``"resident"`` or ``"streaming"``."""
        short_side = self.recipe.short_side(images.split)
        return choose_data_path(
            images, device, short_side=short_side, data_path=self.options.data_path
        )

    def _loader(
        self, images: ImageSet, augmentation: Augmentation, device: torch.device | None = None
    ) -> Loader:
        """This process's part of the images on its device, or all images on a given device."""
        training, processes = images is self.train, 1
        share: dict[str, Any] = {"batch_size": self.recipe.batch_size, "seed": self.recipe.seed}
        share["shuffle"] = training
        if device is None:
            assert self.trainer is not None
            device, processes = self._device, self.trainer.num_devices
            share |= {"rank": self.trainer.global_rank, "world_size": self.trainer.world_size}
        else:
            most = evaluation_batch(device, augmentation.size)
            share["batch_size"] = min(self.recipe.batch_size, most)
        if device.type == "cuda":  # half precision is enough there, and much faster
            augmentation = dataclasses.replace(augmentation, dtype=torch.float16)
        if self.path(images, device) == "resident":
            return ResidentLoader(self._decode(images), augmentation, device=device, **share)
        streamed = StreamingLoader(
            images,
            augmentation,
            short_side=self.recipe.short_side(images.split),
            workers=self._workers(processes),
            skip_corrupt=self.options.skip_corrupt,
            device=device,
            **share,
        )
        if training:
            self.streamed = streamed
        return streamed

    def _workers(self, processes: int = 1) -> int:
        """Workers for each of the training processes that share this computer."""
        workers = self.options.workers
        return suggested_max_num_workers(processes) if workers is None else workers

    def _decode(self, images: ImageSet) -> Decoded:
        if images.split not in self._decoded:
            title = f"decoding {images.name} ({images.split})"
            with counting(self.console, title) as progress:
                decoded = decode(
                    images,
                    short_side=self.recipe.short_side(images.split),
                    cache=self._cache,
                    progress=progress,
                    on_corrupt=self._on_corrupt,
                )
            self._skipped[images.split].update(decoded.skipped)
            self.say_skipped(images.split)
            self._decoded[images.split] = decoded
        return self._decoded[images.split]

    def _verify(self, images: ImageSet) -> None:
        title = f"reading {images.name} ({images.split})"
        with counting(self.console, title) as progress:
            corrupt = find_corrupt(
                images,
                workers=max(self._workers(), 1),
                on_corrupt=self._on_corrupt,
                progress=progress,
            )
        self._skipped[images.split].update(corrupt)
        self.say_skipped(images.split)


def _gathered(names: tuple[str, ...]) -> Iterable[str]:
    """The names of all processes together."""
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return names
    gathered: list[tuple[str, ...]] = [() for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather_object(gathered, names)
    return (name for each in gathered for name in each)
