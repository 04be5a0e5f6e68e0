"""From the name of a network to a converted checkpoint, and to what that gained."""

import contextlib
from pathlib import Path
from typing import Any

import torch

from equicolor.conversion.converting import convert
from equicolor.conversion.cost_report import cost_report, cost_rows
from equicolor.conversion.supported import ConversionError
from equicolor.data.datasets import find_dataset, load_dataset
from equicolor.evaluation.diagnose import diagnose
from equicolor.evaluation.evaluate import Evaluation
from equicolor.evaluation.images import choose_preparation
from equicolor.models.checkpoints import load_model, save_model
from equicolor.models.foreign import LIBRARIES
from equicolor.models.loading import load_network
from equicolor.models.registry import Network
from equicolor.models.tensor_files import WEIGHTS
from equicolor.nn import fold
from equicolor.reporting.tables import Table

__all__ = ["check_names", "convert_source", "hue_table"]

_EVERY = 3  # of the 37 shifts, 10 degrees apart
_SUFFIX = ".safetensors"
_SOURCES = (
    f"a checkpoint of equicolor (*{_SUFFIX}), a folder that holds {WEIGHTS}, timm:NAME or "
    "torchvision:NAME"
)
_IN_PYTHON = "use equicolor.convert in Python, and keep the state_dict() of what it returns"


def check_names(source: str | Path, output: Path, data: str | None = None) -> None:
    """Refuse what cannot be read or written, before anything is computed.

    Args:
        source: the network that will be converted.
        output: the checkpoint that will be written.
        data: the dataset or folder both will be judged on.

    Example:
        >>> check_names("timm:resnet18", Path("converted.txt"))
        Traceback (most recent call last):
            ...
        ValueError: a checkpoint is written as *.safetensors, got converted.txt
    """
    if output.suffix not in ("", _SUFFIX):
        raise ValueError(f"a checkpoint is written as *{_SUFFIX}, got {output}")
    library, colon, _ = str(source).partition(":")
    path = Path(source)
    if not (colon and library in LIBRARIES):
        if ".py" in (path.suffix, Path(str(source).rpartition(":")[0]).suffix):
            raise ConversionError(
                f"the network of {source} could not be built again from a checkpoint, so none can "
                f"be written: {_IN_PYTHON}. This command takes {_SOURCES}"
            )
        if not path.exists():
            raise FileNotFoundError(f"no network at {source}; expected {_SOURCES}")
        if path.is_file() and path.suffix not in ("", ".ckpt", _SUFFIX):
            raise ValueError(f"{source} is no checkpoint; expected {_SOURCES}")
    if data is not None:
        load_dataset(data, "test")


def convert_source(
    source: str | Path,
    output: Path,
    *,
    pretrained: bool = True,
    size: int | None = None,
    device: torch.device | str = "cpu",
    **options: Any,
) -> list[tuple[str, ...]]:
    """Convert a network by name, write it, and count what it costs.

    Args:
        source: see :func:`equicolor.models.loading.load_network`.
        output: the checkpoint to write.
        pretrained: load the weights that timm or torchvision offer.
        size: height and width of the images; by default those the network was trained on, or made
            for. Costs are counted at it, and the checkpoint keeps it.
        device: where to take the time.
        options: of :func:`equicolor.convert`.

    Returns:
        The rows of a table of costs, before and after.

    Example:
        >>> import tempfile
        >>> from equicolor.models import z2cnn
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = save_model(z2cnn(10), folder / "plain.safetensors")
        >>> rows = convert_source(folder / "plain.safetensors", folder / "new.safetensors")
        >>> [row[1] for row in rows]
        ['25,570', '32,770 (1.28×)', '25,290 (0.99×)']
    """
    network = load_network(source, pretrained=pretrained)
    converted = convert(network, image_size=size, **options)
    if not isinstance(converted, Network) or not converted.config:
        raise ConversionError(
            f"{source} could not be built again from a checkpoint, so none is written: {_IN_PYTHON}"
        )
    save_model(converted, output)
    how = f"{converted.rotations} hues, {converted.config['lifting']}"
    networks = {"before": network, f"converted: {how}": converted}
    with contextlib.suppress(ValueError):  # not every network can be folded
        networks["converted, folded"] = fold(converted)
    return cost_rows(cost_report(networks, converted.image_size, device=device))


def hue_table(
    source: str | Path,
    output: Path,
    data: str,
    *,
    pretrained: bool = True,
    device: torch.device | str = "cpu",
) -> tuple[Table, str]:
    """Accuracy under HSV hue shifts before and after, as a table and in one line.

    Both see the same images, cut as the converted network's file says: what differs is due to
    the networks, and ``equicolor evaluate`` finds the same of that file.

    Args:
        source: what was converted.
        output: the checkpoint that :func:`convert_source` wrote.
        data: a dataset by name, or a folder of class folders.
        pretrained: load the weights that timm or torchvision offer.
        device: where to compute.

    Returns:
        The table, and what it says in short.
    """
    size, resize = choose_preparation(load_model(output), find_dataset(data).kind)
    before = diagnose(
        source,
        data,
        actions=["hsv"],
        size=size,
        resize=resize,
        pretrained=pretrained,
        device=device,
    )
    after = diagnose(
        output,
        data,
        actions=["hsv"],
        size=size,
        resize=resize,
        split_seed=before.facts["split_seed"],
        device=device,
    )
    degrees = before.sweeps["hsv"].shifts.mul(360).round().int().tolist()[::_EVERY]
    names = ["original", "mean over hue shifts", *(f"shifted by {angle}°" for angle in degrees)]
    rows = list(zip(names, _column(before), _column(after), strict=True))
    columns = ("accuracy in %", "before", "converted")
    headline = (
        f"{before.original:.2f} % before and {after.original:.2f} % after conversion on "
        f"{before.facts['dataset']}; {before.sweeps['hsv'].mean:.2f} % and "
        f"{after.sweeps['hsv'].mean:.2f} % on average over hue shifts"
    )
    return Table(columns, rows), headline


def _column(found: Evaluation) -> list[str]:
    sweep = found.sweeps["hsv"]
    numbers = [found.original, sweep.mean, *sweep.accuracy.tolist()[::_EVERY]]
    return [f"{value:.2f}" for value in numbers]
