"""Options that several commands share, and functions that read them."""

import dataclasses
import inspect
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from equicolor._files import short_name
from equicolor.training.fields import settings

if TYPE_CHECKING:
    import torch

Command = TypeVar("Command", bound=Callable[..., Any])


def option(
    text: str, default: str | bool = True, *names: str, panel: str | None = None, **more: Any
) -> Any:
    """An option of a command; the help shows ``default``, and ``more`` goes to typer."""
    return typer.Option(*names, help=text, show_default=default, rich_help_panel=panel, **more)


def parameter(
    name: str, kind: Any, text: str, *names: str, value: Any = None, default: str | bool = True,
    **more: Any,
) -> inspect.Parameter:  # fmt: skip
    """An :func:`option` to add with :func:`with_options`; ``value`` is its default."""
    annotation: Any = Annotated[kind, option(text, default, *names, **more)]
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, keyword, default=value, annotation=annotation)


NETWORK = (
    "a checkpoint, the folder of a training run, timm:NAME, torchvision:NAME, or "
    "path/to/file.py:function."
)
Size = Annotated[int | None, option("Height and width of the images.", "the network's")]
Pretrained = Annotated[bool, option("Load the pretrained weights of timm or torchvision.")]
Device = Annotated[str, option("Device: auto, cpu or cuda.")]
DATA = "A dataset: a name of 'equicolor datasets', or a folder of class folders."


def _subject(
    network: Annotated[str, typer.Argument(help=f"{NETWORK[0].upper()}{NETWORK[1:]}")],
    data: Annotated[str | None, option(DATA, "what the run was trained on")] = None,
    split: Annotated[str, option("Split of the dataset: test or train.")] = "test",
    split_seed: Annotated[
        int | None,
        option("Seed of the split, for datasets that come without one.", "the run's, or 0"),
    ] = None,
    size: Size = None,
    resize: Annotated[
        int | None,
        option("Length of the short side before the centre is cropped.", "the network's"),
    ] = None,
    gray: Annotated[
        bool,
        option("Average the channels first; automatic for runs trained on grey.", True, "--gray"),
    ] = False,
    pretrained: Pretrained = True,
    device: Device = "auto",
    skip_corrupt: Annotated[
        bool, option("Leave out images that cannot be decoded.", True, "--skip-corrupt")
    ] = False,
) -> None:
    """Options of a network and its images: arguments of evaluation.diagnose.load_subject."""


def _evaluation(
    shifts: Annotated[int, option("Number of values of each action, over its range.")] = 37,
    batch_size: Annotated[
        int | None, option("Images per batch.", "256 on a GPU, fewer on a CPU")
    ] = None,
    precision: Annotated[
        str, option("Number format: float32, bfloat16, or auto (bfloat16 on a GPU).")
    ] = "auto",
    classes_by_index: Annotated[
        bool, option("Match classes by order, not by name.", True, "--classes-by-index")
    ] = False,
    cache: Annotated[
        Path | None, option("Folder for decoded images.", "equicolor/decoded in the user's cache")
    ] = None,
) -> None:
    """Options of an evaluation: arguments of evaluation.diagnose.diagnose."""


SUBJECT = tuple(inspect.signature(_subject).parameters.values())
EVALUATION = tuple(inspect.signature(_evaluation).parameters.values())

_PANELS = (None, "Network", "Images", "Training", "Running")  # in the order of the help


def field_options(described: type, *, unset: bool = False) -> list[inspect.Parameter]:
    """An option for each field of a dataclass that has a help text, and for each flag of a field.

    With ``unset``, options are None unless they are given.
    """
    fields = {field.name: field for field in dataclasses.fields(described)}
    options = []
    for name, about in settings(described).items():
        for flag, (_, text) in about.flags.items():
            options.append(_field(flag, bool, False, text, False, about.panel))
        if about.help:
            kind, default = fields[name].type, fields[name].default
            text = about.usual or f"{default}".removesuffix(".0")
            shown = default is not False and (text if unset or about.usual else True)
            value = None if unset else default
            options.append(_field(name, kind, value, about.help, shown, about.panel))
    return options


def _field(
    name: str, kind: Any, value: Any, text: str, shown: str | bool, panel: str
) -> inspect.Parameter:
    names = [f"--{name.replace('_', '-')}"] if kind is bool and not shown else []
    return parameter(name, kind | None, text, *names, value=value, default=shown, panel=panel)


def with_options(options: Sequence[inspect.Parameter]) -> Callable[[Command], Command]:
    """Add options to a command; it receives them as keyword arguments."""

    def panel(parameter: inspect.Parameter) -> int:
        (option,) = parameter.annotation.__metadata__
        return _PANELS.index(option.rich_help_panel)

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command)
        named = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        parameters = [
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for parameter in sorted([*options, *named], key=panel)
        ]
        command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return command

    return decorate


def field_values(described: type, options: Mapping[str, Any]) -> dict[str, Any]:
    """Values for the fields of a dataclass, from the options of a command that were given."""
    values = {}
    for name, about in settings(described).items():
        for flag, (value, _) in about.flags.items():
            if options.get(flag):
                values[name] = value
        if about.help and options.get(name) is not None:
            values[name] = options[name]
    return values


def network_options(**options: Any) -> dict[str, Any]:
    """Keywords of a network's builder: the options that were given, with their texts read."""
    keywords = {name: value for name, value in options.items() if value is not None}
    if "width" in keywords:
        keywords["width"] = _width(keywords["width"])
    if keywords.get("coset_pool") == "none":
        keywords["coset_pool"] = None
    return keywords


def _width(text: str) -> int | str | list[int]:
    """A width: a number, one number per stage (27,55,110), or a word."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        return text  # 'fast', or a text that the builder refuses
    return numbers if "," in text else numbers[0]


def names(text: str | None) -> list[str] | None:
    """Split names at commas.

    Example:
        >>> names("hsv, rgb,"), names(None)
        (['hsv', 'rgb'], None)
    """
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def prepare_device(name: str) -> "torch.device":
    """Choose a device; on a busy CPU, let torch use fewer threads."""
    from equicolor.devices import choose_device

    device = choose_device(name)
    limit_threads(device.type)
    return device


def limit_threads(device: str) -> None:
    """On a busy CPU, let torch use fewer threads, unless OMP_NUM_THREADS is set."""
    import torch

    from equicolor.devices import usable_threads

    if device != "cpu" or "OMP_NUM_THREADS" in os.environ:
        return
    most, threads = torch.get_num_threads(), usable_threads()
    if threads < most:
        torch.set_num_threads(threads)
        typer.echo(
            f"this machine is busy: torch uses {threads} of {most} threads, because more would be "
            "slower; OMP_NUM_THREADS sets the number",
            err=True,
        )


def slug(network: str, data: str | None) -> str:
    """A file name for results about a network and its images.

    Example:
        >>> slug("runs/first/model.safetensors", "my images")
        'first-my_images'
    """
    path = Path(network)
    paths = [path.parent if path.name == "model.safetensors" else path]
    if data is not None:
        paths.append(Path(data))
    return short_name(re.sub(r"[^\w.+-]+", "_", "-".join(map(_last_part, paths))))


def _last_part(path: Path) -> str:
    """The name of a file or folder; ``.`` and ``..`` are resolved, and the root is ``root``."""
    return (path.resolve() if path.name in ("", "..") else path).name or "root"


@contextmanager
def skip_hint(skip_corrupt: bool) -> Iterator[None]:
    """Name --skip-corrupt in the error of a corrupt image, unless the option was given."""
    from equicolor.data.images import CorruptImageError

    try:
        yield
    except CorruptImageError as error:
        if skip_corrupt:
            raise
        hint = "repair or remove it, or leave corrupt images out with --skip-corrupt"
        raise CorruptImageError(f"{error}; {hint}") from None
