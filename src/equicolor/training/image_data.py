"""The images of a recipe, as loaders for training and testing."""

import dataclasses
from collections.abc import Iterable
from typing import Any

import lightning.pytorch as pl
import torch
import torch.distributed
from lightning.fabric.utilities import suggested_max_num_workers
from rich.console import Console

from equicolor._text import counted
from equicolor.data.augment import Augmentation
from equicolor.data.datasets import load_dataset
from equicolor.data.decoding import Decoded, decode, default_cache
from equicolor.data.images import ImageSet, find_corrupt
from equicolor.data.loaders import (
    Loader,
    ResidentLoader,
    StreamingLoader,
    check_sizes,
    choose_data_path,
)
from equicolor.reporting.progress import counting, say
from equicolor.training.recipes import TrainingRecipe
from equicolor.training.run_options import RunOptions

__all__ = ["ImageData", "check_images"]


def check_images(recipe: TrainingRecipe, images: ImageSet) -> None:
    """Refuse images that a recipe cannot train on, as far as they are known undecoded."""
    if images.pixels is not None:
        check_sizes(recipe.augmentation, torch.tensor([images.pixels.shape[2:]]))


class ImageData(pl.LightningDataModule):
    """Training and test images on the device that trains.

    Args:
        recipe: which images, and how they are augmented.
        options: where they lie, and how they are read.
        console: shows progress; None shows nothing.

    Attributes:
        train, test: the images, not decoded yet.
    """

    def __init__(
        self, recipe: TrainingRecipe, options: RunOptions, console: Console | None = None
    ) -> None:
        super().__init__()
        self.recipe, self.options, self.console = recipe, options, console
        self.train, self.test = (
            load_dataset(recipe.dataset, split, root=options.root, seed=recipe.split_seed)
            for split in ("train", "test")
        )
        check_images(recipe, self.train)
        self.cache = default_cache() if options.cache is None else options.cache
        self._decoded: dict[str, Decoded] = {}
        self._skipped: dict[str, set[str]] = {"train": set(), "test": set()}
        self._streamed: StreamingLoader | None = None  # what is trained on

    def prepare_data(self) -> None:
        """Decode what will be resident, in one process of each computer.

        Test images that will be streamed are read, too: a corrupt one shall not be found
        after all the training. One of those to train on is found in the first epoch.
        """
        assert self.trainer is not None
        for images in (self.train, self.test):
            if self._path(images, self._device) == "resident":
                self._decode(images)
        if self._path(self.test, self._device) == "streaming":
            self._verify(self.test)

    def skipped(self, split: str) -> tuple[str, ...]:
        """What is wrong with the corrupt images that were left out, as far as they were met."""
        if split == "train" and self._streamed is not None:
            self._skipped["train"] |= self._streamed.skipped
        return tuple(sorted(self._skipped[split]))

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run has to know: the corrupt images that any process met streaming."""
        if self._streamed is None or not self.options.skip_corrupt:
            return {}
        self._skipped["train"].update(_gathered(self.skipped("train")))
        return {"skipped": list(self.skipped("train"))}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue to count."""
        self._skipped["train"].update(state_dict["skipped"])

    @property
    def skips_while_training(self) -> bool:
        """Whether corrupt images are met, and left out, only in training."""
        return self._streamed is not None

    def say_skipped(self, split: str) -> None:
        """Print how many corrupt images were left out, if any were."""
        images = {"train": self.train, "test": self.test}[split]
        skipped = self.skipped(split)
        if skipped:
            say(
                self.console,
                f"left out {counted(len(skipped), 'corrupt image')} of {images.name} ({split}), "
                f"beginning with {skipped[0]}",
            )

    def train_dataloader(self) -> Loader:
        """This process's part of shuffled and augmented training images."""
        assert self.trainer is not None
        return self._loader(
            self.train,
            self.recipe.augmentation,
            self._device,
            shuffle=True,
            rank=self.trainer.global_rank,
            world_size=self.trainer.world_size,
        )

    def val_dataloader(self) -> Loader:
        """This process's part of the test images, as the network shall see them."""
        assert self.trainer is not None
        return self._loader(
            self.test,
            self.recipe.augmentation.evaluation(),
            self._device,
            rank=self.trainer.global_rank,
            world_size=self.trainer.world_size,
        )

    def test_images(self, device: torch.device) -> Loader:
        """All test images in colour; a grey network turns them grey itself."""
        evaluation = dataclasses.replace(self.recipe.augmentation.evaluation(), gray=False)
        return self._loader(self.test, evaluation, device)

    @property
    def _device(self) -> torch.device:
        assert self.trainer is not None
        return self.trainer.strategy.root_device

    def _path(self, images: ImageSet, device: torch.device) -> str:
        short_side = self.recipe.short_side(images.split)
        return choose_data_path(
            images, device, short_side=short_side, data_path=self.options.data_path
        )

    def _loader(
        self,
        images: ImageSet,
        augmentation: Augmentation,
        device: torch.device,
        *,
        shuffle: bool = False,
        rank: int = 0,
        world_size: int = 1,
    ) -> Loader:
        share: dict[str, Any] = {"rank": rank, "world_size": world_size, "shuffle": shuffle}
        share |= {"batch_size": self.recipe.batch_size, "seed": self.recipe.seed}
        if device.type == "cuda":  # where half precision is enough, and much faster
            augmentation = dataclasses.replace(augmentation, dtype=torch.float16)
        if self._path(images, device) == "resident":
            return ResidentLoader(self._decode(images), augmentation, device=device, **share)
        streamed = StreamingLoader(
            images,
            augmentation,
            short_side=self.recipe.short_side(images.split),
            workers=self._workers(world_size),
            skip_corrupt=self.options.skip_corrupt,
            device=device,
            **share,
        )
        if shuffle:
            self._streamed = streamed
        return streamed

    def _workers(self, world_size: int) -> int:
        if self.options.workers is not None:
            return self.options.workers
        neighbours = 1 if self.trainer is None or world_size == 1 else self.trainer.num_devices
        return suggested_max_num_workers(neighbours)

    def _decode(self, images: ImageSet) -> Decoded:
        if images.split not in self._decoded:
            title = f"decoding {images.name} ({images.split})"
            with counting(self.console, title) as progress:
                decoded = decode(
                    images,
                    short_side=self.recipe.short_side(images.split),
                    cache=self.cache,
                    progress=progress,
                    on_corrupt="skip" if self.options.skip_corrupt else "error",
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
                workers=max(self._workers(1), 1),
                on_corrupt="skip" if self.options.skip_corrupt else "error",
                progress=progress,
            )
        self._skipped[images.split].update(corrupt)
        self.say_skipped(images.split)


def _gathered(names: tuple[str, ...]) -> Iterable[str]:
    """The names that all processes know."""
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return names
    gathered: list[tuple[str, ...]] = [() for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather_object(gathered, names)
    return (name for each in gathered for name in each)
