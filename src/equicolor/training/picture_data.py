"""The pictures of a recipe, as loaders for training and testing."""

import dataclasses
from pathlib import Path

import lightning.pytorch as pl
import torch
from lightning.fabric.utilities import suggested_max_num_workers
from rich.console import Console

from equicolor.data.augment import Augmentation
from equicolor.data.datasets import load_dataset
from equicolor.data.decoded import Decoded, decode, default_cache
from equicolor.data.loaders import Loader, ResidentLoader, StreamingLoader, choose_data_path
from equicolor.data.pictures import Pictures
from equicolor.reporting.progress import counting
from equicolor.training.recipes import TrainingRecipe

__all__ = ["PictureData"]


class PictureData(pl.LightningDataModule):
    """Training and test pictures on the device that trains.

    Args:
        recipe: which pictures, and how they are augmented.
        data_path: ``"resident"``, ``"streaming"``, or ``"auto"``:
            see :func:`~equicolor.data.loaders.choose_data_path`.
        workers: processes that decode what is streamed, for each device; None divides the
            processor's cores among the devices.
        skip_corrupt: leave corrupt pictures out instead of stopping at them.
        root: the data folder (default: :func:`equicolor.data.data_root`).
        console: shows progress; None shows nothing.

    Attributes:
        train, test: the pictures, not decoded yet.
    """

    def __init__(
        self,
        recipe: TrainingRecipe,
        *,
        data_path: str = "auto",
        workers: int | None = None,
        skip_corrupt: bool = False,
        root: Path | str | None = None,
        console: Console | None = None,
    ) -> None:
        super().__init__()
        self.recipe, self.data_path, self.workers = recipe, data_path, workers
        self.skip_corrupt, self.console = skip_corrupt, console
        self.train, self.test = (
            load_dataset(recipe.dataset, split, root=root, seed=recipe.split_seed)
            for split in ("train", "test")
        )
        self._decoded: dict[str, Decoded] = {}

    def prepare_data(self) -> None:
        """Decode what will be resident, in one process of each computer."""
        assert self.trainer is not None
        if self._path(self.train, self._device) == "resident":
            self._decode(self.train)

    def train_dataloader(self) -> Loader:
        """This process's part of shuffled and augmented training pictures."""
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
        """This process's part of the test pictures, as the network shall see them."""
        assert self.trainer is not None
        return self._loader(
            self.test,
            self.recipe.augmentation.evaluation(),
            self._device,
            rank=self.trainer.global_rank,
            world_size=self.trainer.world_size,
        )

    def test_pictures(self, device: torch.device) -> Loader:
        """All test pictures in colour; a grey network turns them grey itself."""
        evaluation = dataclasses.replace(self.recipe.augmentation.evaluation(), gray=False)
        return self._loader(self.test, evaluation, device)

    @property
    def _device(self) -> torch.device:
        assert self.trainer is not None
        return self.trainer.strategy.root_device

    def _path(self, pictures: Pictures, device: torch.device) -> str:
        short_side = self.recipe.short_side
        return choose_data_path(pictures, device, short_side=short_side, wanted=self.data_path)

    def _loader(
        self,
        pictures: Pictures,
        augmentation: Augmentation,
        device: torch.device,
        *,
        shuffle: bool = False,
        rank: int = 0,
        world_size: int = 1,
    ) -> Loader:
        recipe = self.recipe
        if device.type == "cuda":  # where half precision is enough, and much faster
            augmentation = dataclasses.replace(augmentation, precision="float16")
        if self._path(pictures, device) == "resident":
            return ResidentLoader(
                self._decode(pictures),
                augmentation,
                batch_size=recipe.batch_size,
                seed=recipe.seed,
                shuffle=shuffle,
                rank=rank,
                world_size=world_size,
                device=device,
            )
        return StreamingLoader(
            pictures,
            augmentation,
            short_side=recipe.short_side,
            workers=self._workers(world_size),
            skip_corrupt=self.skip_corrupt,
            batch_size=recipe.batch_size,
            seed=recipe.seed,
            shuffle=shuffle,
            rank=rank,
            world_size=world_size,
            device=device,
        )

    def _workers(self, world_size: int) -> int:
        if self.workers is not None:
            return self.workers
        neighbours = 1 if self.trainer is None or world_size == 1 else self.trainer.num_devices
        return suggested_max_num_workers(neighbours)

    def _decode(self, pictures: Pictures) -> Decoded:
        if pictures.split not in self._decoded:
            title = f"decoding {pictures.name} ({pictures.split})"
            with counting(self.console, title) as progress:
                decoded = decode(
                    pictures,
                    short_side=self.recipe.short_side,
                    cache=default_cache(),
                    progress=progress,
                    on_corrupt="skip" if self.skip_corrupt else "error",
                )
            if decoded.skipped and self.console is not None:
                self.console.print(
                    f"left out {len(decoded.skipped)} corrupt pictures of {pictures.name}, "
                    f"beginning with {decoded.skipped[0]}",
                    highlight=False,
                )
            self._decoded[pictures.split] = decoded
        return self._decoded[pictures.split]
