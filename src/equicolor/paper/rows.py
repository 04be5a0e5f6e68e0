"""Rows of results from several files or calls: which are the same, and which contradict."""

from collections.abc import Sequence

from equicolor.results import Row

__all__ = ["distinct", "identity", "merged"]

# What a row is about, of any experiment; the rest of it was measured.
_IDENTITY = (
    "dataset", "model", "network", "rotations", "lifting", "ce_stages", "ce_layers", "width",
    "input_size", "augmentation", "weighted", "sigma", "coset_pool", "layer", "stage", "state",
    "digits", "data_seed", "seed", "epochs", "batch_size", "optimizer", "lr", "weight_decay",
    "schedule", "label_smoothing", "ema", "clip", "size", "precision", "split_seed", "finetuned",
    "finetune_epochs",
)  # fmt: skip


def identity(row: Row) -> tuple[str, ...]:
    """What a row is about, beside what was measured.

    Example:
        >>> row = {"model": "resnet18", "seed": 0, "original": 66.0}
        >>> identity(row) == identity(row | {"original": 67.0}), identity(row) == identity({})
        (True, False)
    """
    return tuple(repr(row.get(name)) for name in _IDENTITY)


def distinct(rows: Sequence[Row]) -> list[Row]:
    """Rows without those that come again.

    Args:
        rows: of one experiment.

    Raises:
        ValueError: if two are about the same and do not agree.

    Example:
        >>> row = {"model": "resnet18", "seed": 0, "original": 66.0}
        >>> len(distinct([row, dict(row), row | {"seed": 1}]))
        2
    """
    found: dict[tuple[str, ...], Row] = {}
    for row in rows:
        known = found.setdefault(identity(row), {})
        for name in known.keys() & row.keys():
            # Where the network is and how long it took may differ.
            if known[name] != row[name] and name != "run" and "second" not in name:
                about = ", ".join(
                    f"{key} {row[key]}" for key in _IDENTITY if row.get(key) is not None
                )
                raise ValueError(
                    f"two rows of {about} have different values of {name}: give one of them"
                )
        known |= row
    return list(found.values())


def merged(new: Sequence[Row], old: Sequence[Row]) -> list[Row]:
    """New rows, and after them the old ones that are about something else.

    Example:
        >>> merged([{"seed": 0, "loss": 1.0}], [{"seed": 0, "loss": 2.0}, {"seed": 1}])
        [{'seed': 0, 'loss': 1.0}, {'seed': 1}]
    """
    known = {identity(row) for row in new}
    return [*new, *(row for row in old if identity(row) not in known)]
