"""The Lightning task: what a step of training is.

Nothing here waits for the device: losses and hits are added up on it, and
:mod:`equicolor.training.monitor` reads the sums now and then.
"""

import math
import os
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LRScheduler, OneCycleLR

from equicolor._text import counted
from equicolor.data.loaders import Batch
from equicolor.devices import cores
from equicolor.models.registry import Network
from equicolor.models.tensor_files import CheckpointError
from equicolor.training.average import WeightAverage
from equicolor.training.losses import cross_entropy, jensen_shannon
from equicolor.training.recipes import TrainingRecipe
from equicolor.training.recording import record
from equicolor.training.tally import Counts, Tally

REMEDY = "delete it to train from the start, or the whole run with --force"
_OPTIMIZERS: dict[str, type[Optimizer]] = {"adam": Adam, "adamw": AdamW, "sgd": SGD}
_OWNER = "equicolor"  # the key in a checkpoint for what it belongs to


class ClassificationTask(pl.LightningModule):
    """Trains a network to name the class of an image.

    Args:
        recipe: how to train.
        network: images ``[B, 3, s, s]`` in [0, 1] to logits ``[B, C]``.
        facts: numbers and digests that a checkpoint must agree on to be continued.
        graphs: record the network as CUDA graphs where it trains on a GPU.

    Attributes:
        average: the exponential average of the network, if the recipe asks for one.
        tally: the sums of training since the monitor read them.
        learning_rates: by step, since the monitor cleared them.
        validation: the counts of the last validation.
    """

    def __init__(
        self,
        recipe: TrainingRecipe,
        network: Network,
        facts: Mapping[str, int | str] | None = None,
        *,
        graphs: bool = False,
    ) -> None:
        super().__init__()
        self._graphs = graphs
        self._recorded: Callable[[Tensor], Tensor] | None = None
        self.recipe, self.facts, self.network = recipe, dict(facts or {}), network
        self.average = WeightAverage(network, recipe.ema) if recipe.ema else None
        self.tally, self.learning_rates = Tally(), dict[int, float]()
        self.validation: Counts | None = None
        self._validation_tally = Tally()

    @property
    def trained(self) -> Network:
        """The network to keep: the average where there is one."""
        if self.average is None:
            return self.network
        assert isinstance(self.average.network, Network)
        return self.average.network

    def configure_model(self) -> None:
        """Set memory format and compilation, before DDP wraps the network."""
        if self.trainer.strategy.root_device.type == "cuda":
            for network in {self.network, self.trained}:
                network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if self.recipe.compile:
            self.network.compile()

    def on_train_epoch_start(self) -> None:
        """Key everything random to the epoch, so that a resumed run draws the same."""
        loader = self.trainer.train_dataloader
        assert loader is not None
        loader.set_epoch(self.current_epoch)
        # Dropout draws from torch's own generator, different numbers in every process.
        torch.manual_seed(hash((self.recipe.seed, self.current_epoch, self.global_rank)) % 2**63)

    def training_step(self, batch: Batch, index: int) -> Tensor:
        """The loss of a batch; with three views of every image, also their divergence."""
        images, labels = batch
        if images.ndim == 5:
            views = self._logits(images.flatten(0, 1)).float().unflatten(0, images.shape[:2])
            logits = views[0]
            loss = self._loss(logits, labels) + jensen_shannon(views, labels)
        else:
            logits = self._logits(images).float()
            loss = self._loss(logits, labels)
        step = self.global_step + 1
        self.learning_rates[step] = self.trainer.optimizers[0].param_groups[0]["lr"]
        self.tally.add(loss.detach(), logits, labels, step)
        return loss

    def _logits(self, images: Tensor) -> Tensor:
        """The logits of the network, which is recorded when the first batch comes."""
        if self._graphs and self._recorded is None and images.is_cuda:
            dtype = torch.bfloat16 if self.recipe.precision == "bfloat16" else None
            steps = int(self.trainer.estimated_stepping_batches)
            try:
                self._recorded = record(self.network, images, dtype, steps)
            except RuntimeError as error:  # a network that reads from the device
                self._graphs = False
                warnings.warn(f"trains without CUDA graphs: {error}", stacklevel=1)
        return (self._recorded or self.network)(images)

    def _loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(logits, labels, self.recipe.label_smoothing)

    def configure_gradient_clipping(self, *args: Any, **kwargs: Any) -> None:
        """Clip the gradient, with torch's function: Lightning's refuses fused optimizers."""
        if self.recipe.clip:
            torch.nn.utils.clip_grad_norm_(self.network.parameters(), self.recipe.clip)

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """Update the weights, then their average."""
        super().optimizer_step(*args, **kwargs)
        if self.average is not None:
            self.average.update(self.network, self.global_step + 1)  # counted afterwards

    def validation_step(self, batch: Batch, index: int) -> None:
        """Count a batch of test images."""
        images, labels = batch
        logits = self.trained(images).float()
        self._validation_tally.add(F.cross_entropy(logits, labels), logits, labels)

    def on_validation_epoch_end(self) -> None:
        """Add up what all processes counted."""
        totals = self._validation_tally.take().to(self.device)
        totals = self.trainer.strategy.reduce(totals, reduce_op="sum")
        self.validation = Counts.of(totals.tolist())

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """The optimizer, and the schedule of every step."""
        recipe = self.recipe
        options: dict[str, Any] = {"lr": recipe.lr, "weight_decay": recipe.weight_decay}
        # One kernel for all parameters on a GPU; None leaves the choice to torch.
        options["fused"] = True if self.trainer.strategy.root_device.type == "cuda" else None
        if recipe.optimizer == "sgd":
            options |= {"momentum": 0.9, "nesterov": True}
        optimizer = _OPTIMIZERS[recipe.optimizer](self.network.parameters(), **options)
        schedule = self._schedule(optimizer)
        if schedule is None:
            return optimizer
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def _schedule(self, optimizer: Optimizer) -> LRScheduler | None:
        recipe, steps = self.recipe, int(self.trainer.estimated_stepping_batches)
        if recipe.schedule == "onecycle":
            share = 0.3 if recipe.warmup is None else float(recipe.warmup)  # torch's default
            if share * steps == 1:  # torch would divide by zero
                share -= 1e-9
            return OneCycleLR(optimizer, recipe.lr, total_steps=steps, pct_start=share)
        rise, cosine = round((recipe.warmup or 0) * steps), recipe.schedule == "cosine"
        if not rise:
            return CosineAnnealingLR(optimizer, steps) if cosine else None

        def factor(step: int) -> float:
            if step < rise:
                return (step + 1) / (rise + 1)
            if not cosine:
                return 1.0
            # Lightning also asks for the rate after the last step, where all steps may be the rise.
            return (1 + math.cos(math.pi * (step - rise) / max(steps - rise, 1))) / 2

        return LambdaLR(optimizer, factor)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Say what the checkpoint belongs to."""
        owner = {"recipe": self.recipe.to_json(), "threads": torch.get_num_threads()}
        checkpoint[_OWNER] = owner | self.facts

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse a checkpoint that belongs to another run."""
        owner = checkpoint.get(_OWNER)
        if not isinstance(owner, dict) or not isinstance(owner.get("recipe"), str):
            raise CheckpointError(
                f"the checkpoint was not written by equicolor's training: {REMEDY}"
            )
        changed = TrainingRecipe.from_json(owner["recipe"]).differences(self.recipe)
        for name, value in self.facts.items():
            before, number = owner.get(name), isinstance(value, int)
            if value != before:
                changed.append(f"{value} {name} instead of {before}" if number else f"other {name}")
        if changed:
            raise CheckpointError(
                f"the checkpoint belongs to another run: {', '.join(changed)}. Choose another "
                "folder, or --force to delete that run"
            )
        threads = owner.get("threads")
        if isinstance(threads, int) and threads > 0 and "OMP_NUM_THREADS" not in os.environ:
            _use_threads(threads)


def _use_threads(threads: int) -> None:
    """Use as many threads as before: with another number, sums are rounded differently."""
    usable = min(threads, cores())
    if usable < threads:
        warnings.warn(
            f"the run was trained in {threads} threads, but has {counted(usable, 'core')} "
            f"here: torch uses {counted(usable, 'thread')}, and weights may differ in rounding",
            stacklevel=2,
        )
    elif usable != torch.get_num_threads():
        warnings.warn(
            f"torch uses {counted(usable, 'thread')}, as before in this run; OMP_NUM_THREADS sets "
            "another number",
            stacklevel=2,
        )
    torch.set_num_threads(usable)
