"""The network that a fine-tune begins with: a checkpoint, with its classifier or a new one."""

from collections.abc import Sequence
from pathlib import Path

from equicolor.models.checkpoints import checkpoint_file, load_model, read_header, weights_digest
from equicolor.models.loading import named_by_library
from equicolor.models.registry import Network, classes_of, with_classes


def new_head(
    checkpoint: str | Path, num_classes: int, class_names: Sequence[str] | None = None
) -> str:
    """Why the classifier of a checkpoint is replaced for these classes; empty if it is not."""
    config, before, origin = read_header(checkpoint_file(checkpoint))
    if classes_of(config) != num_classes:
        return "another number of classes"
    if class_names is None or len(before) != num_classes or named_by_library(config, origin):
        return ""  # there are no names to compare
    return "other classes" if before != tuple(class_names) else ""


def load_pretrained(
    checkpoint: str | Path,
    num_classes: int,
    class_names: Sequence[str] | None = None,
    *,
    digest: str = "",
) -> Network:
    """The network of a checkpoint for these classes, in training mode."""
    file = checkpoint_file(checkpoint)
    actual = weights_digest(file) if digest else ""
    if actual != digest:
        raise ValueError(
            f"{checkpoint} is not the network that the run began with: its digest is {actual}, but "
            f"that of the recipe is {digest}"
        )
    network = load_model(file)
    if classes_of(network.config) == num_classes and new_head(file, num_classes, class_names):
        # In two steps: a classifier is replaced if its number of classes changes.
        network = with_classes(network, num_classes + 1)
    return with_classes(network, num_classes).train()
