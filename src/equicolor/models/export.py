"""Export a network to ONNX, TorchScript or an exported program, and prove the file right.

The network is folded first (:func:`equicolor.nn.fold`). The written file is then loaded
again by its own runtime and compared with the original network, at a batch size other than
the one it was exported with, before success is reported.
"""

import copy
import io
import json
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from equicolor import _checks
from equicolor.models.registry import usual_resize
from equicolor.nn.folding.fold import PLAIN_FORMS, fold
from equicolor.nn.folding.trace import refuse_custom_modules

__all__ = ["FORMATS", "ExportError", "ExportReport", "export"]

_SUFFIXES = {".onnx": "onnx", ".pt": "torchscript", ".pt2": "exported-program"}
#: The formats that :func:`export` writes.
FORMATS = tuple(_SUFFIXES.values())
_EXAMPLE_BATCH, _VERIFIED_BATCHES = 2, (1, 7)
ONNX_LIMIT = 1.8 * 2**30  # bytes, a little under the format's limit; more go into a second file


class ExportError(RuntimeError):
    """An exported file that does not compute what the network computes."""


class ExportReport(NamedTuple):
    """What was written and how far it is from the original network."""

    path: Path
    format: str
    relative_error: float
    operations: int  # nodes of the exported graph


def export(
    model: nn.Module,
    path: str | Path,
    to: str | None = None,
    *,
    input_size: int | Sequence[int] = 224,
    form: str = "auto",
    tolerance: float = 1e-4,
    overwrite: bool = False,
) -> ExportReport:
    """Fold a network, export it with a dynamic batch size, and verify the file.

    The file says what it takes and gives: ``image_size``, ``resize``, ``class_names`` if the
    network has them, and ``input``, each as JSON, in the metadata of ONNX and in the extra files of
    the others.

    Args:
        model: a network of images; it is not changed.
        path: the file to write.
        to: ``"onnx"``, ``"torchscript"`` or ``"exported-program"``; by default what the suffix
            of the path says: ``.onnx``, ``.pt`` or ``.pt2``.
        input_size: height and width of the images.
        form: how equivariant layers are written, one of the plain forms of
            :func:`equicolor.nn.fold`.
        tolerance: the largest relative difference of the logits allowed.
        overwrite: replace an existing file.

    Returns:
        The path, the error measured and the size of the graph.

    Example:
        >>> import tempfile
        >>> from equicolor.models import cecnn
        >>> path = Path(tempfile.mkdtemp()) / "cecnn.pt2"
        >>> report = export(cecnn(10), path, input_size=28)
        >>> report.format, report.relative_error < 1e-4
        ('exported-program', True)
    """
    path = Path(path)
    by_suffix = _SUFFIXES.get(path.suffix.lower())
    to = by_suffix if to is None else to
    if to is None:
        raise ValueError(
            f"the name {path.name} does not say the format: end it in {', '.join(_SUFFIXES)}, or "
            f"give to (--to): {', '.join(FORMATS)}"
        )
    _checks.one_of("to", to, FORMATS)
    if by_suffix not in (None, to):
        suffix = next(key for key, value in _SUFFIXES.items() if value == to)
        raise ValueError(
            f"the suffix of {path.name} means {by_suffix}, but to (--to) is {to}: name it "
            f"{path.with_suffix(suffix).name}, or leave out to"
        )
    _checks.one_of("form", form, PLAIN_FORMS)
    size = _checks.int_pair("input_size", input_size, minimum=1)
    _checks.positive_int("size", max(size))
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; name the file to write")
    if path.exists() and not overwrite:
        raise FileExistsError(f"{path} exists; overwrite=True (--force) replaces it")
    path.parent.mkdir(parents=True, exist_ok=True)
    refuse_custom_modules(model)  # before the copy, which fails for weights that hooks compute
    original = copy.deepcopy(model).cpu().float().eval()
    folded = fold(original, form)
    about = describe(model, size)
    example = _images(_EXAMPLE_BATCH, size)
    try:
        outputs: object = folded(example)
    except RuntimeError as mismatch:  # what torch raises for shapes that do not fit
        reason = str(mismatch).partition("\n")[0]
        raise ValueError(
            f"{type(model).__name__} does not take images {list(example.shape)}: {reason}"
        ) from mismatch
    if not isinstance(outputs, Tensor):
        raise ValueError(
            f"export writes networks that return one tensor, but {type(model).__name__} returns a "
            f"{type(outputs).__name__}: wrap it in a module that returns the one you want"
        )
    # Written aside under its own name, since large ONNX files refer to the weights beside them.
    with tempfile.TemporaryDirectory(prefix=".export-", dir=path.parent) as aside:
        with _quiet():
            run, operations = _EXPORTERS[to](folded, example, Path(aside) / path.name, about)
            error = _worst_error(original, run, size)
        if not error <= tolerance:
            raise ExportError(
                f"the exported file is off by {error:.1e} relative, allowed {tolerance:.1e}; "
                f"{path} was not written"
            )
        files = {file: path.parent / file.name for file in Path(aside).iterdir()}
        for target in files.values():
            # Also weights beside an earlier file, which may have been renamed since.
            if target.exists() and not overwrite:
                raise FileExistsError(f"{target} exists; overwrite=True (--force) replaces it")
        for file, target in files.items():
            file.replace(target)
    return ExportReport(path, to, error, operations)


Run = Callable[[Tensor], Tensor]


def _images(batch: int, size: tuple[int, int]) -> Tensor:
    """Noise with a tint for every image.

    Plain noise looks alike in every hue: for networks that choose a hue, rounding would decide.
    """
    generator = torch.Generator().manual_seed(batch)
    tint, noise = (
        torch.rand(batch, 3, *shape, generator=generator, device="cpu") for shape in ((1, 1), size)
    )
    return (tint + noise) / 2


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide the exporters' warnings about their own internals."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logger.setLevel(level)


def _worst_error(original: nn.Module, run: Run, size: tuple[int, int]) -> float:
    """The largest relative error of a file, over batch sizes other than the example's."""
    errors = []
    for batch in _VERIFIED_BATCHES:
        images = _images(batch, size)
        with torch.no_grad():
            expected, actual = original(images), run(images)
        # Logits of a zero-initialised head are all zero: then the error is absolute.
        scale = expected.norm() if expected.any() else torch.ones(())
        errors.append(float(((actual - expected).norm() / scale).nan_to_num(torch.inf)))
    return max(errors)


def describe(model: nn.Module, size: tuple[int, int]) -> dict[str, str]:
    """What a file says of its network, each as JSON.

    ``image_size``, height and width; ``resize``, the short side before the centre is cropped, of
    square images; ``class_names``, if the network knows them; and ``input``, in words.

    Example:
        >>> from equicolor.models import cecnn
        >>> describe(cecnn(), (28, 28))["image_size"]
        '[28, 28]'
    """
    facts: dict[str, Any] = {"input": "RGB in [0, 1], float32 [batch, 3, height, width]"}
    facts["image_size"] = size
    height, width = size
    if height == width:
        known = height == getattr(model, "image_size", None) and getattr(model, "resize", None)
        facts["resize"] = known or usual_resize(height)
    if names := getattr(model, "class_names", ()):
        facts["class_names"] = [*names]
    return {key: json.dumps(value) for key, value in facts.items()}


def _to_onnx(
    folded: nn.Module, example: Tensor, path: Path, about: dict[str, str]
) -> tuple[Run, int]:
    import onnxruntime

    size = sum(t.numel() * t.element_size() for t in folded.state_dict().values())
    program = torch.onnx.export(
        folded,
        (example,),
        input_names=["images"],
        output_names=["logits"],
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        dynamo=True,
        verbose=False,
    )
    assert program is not None
    program.model.metadata_props.update(about)
    program.save(path, external_data=size > ONNX_LIMIT)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def run(images: Tensor) -> Tensor:
        (logits,) = session.run(None, {"images": images.numpy()})
        return torch.from_numpy(logits)

    return run, len(program.model.graph)


def _to_torchscript(
    folded: nn.Module, example: Tensor, path: Path, about: dict[str, str]
) -> tuple[Run, int]:
    with torch.no_grad():
        scripted = torch.jit.freeze(torch.jit.trace(folded, example))
    # Not scripted.save(path), which ends the process on a full disk.
    path.write_bytes(scripted.save_to_buffer(_extra_files=about))
    return torch.jit.load(path), len(list(scripted.graph.nodes()))


def _to_exported_program(
    folded: nn.Module, example: Tensor, path: Path, about: dict[str, str]
) -> tuple[Run, int]:
    dynamic = ({0: torch.export.Dim("batch")},)
    program = torch.export.export(folded, (example,), dynamic_shapes=dynamic)
    buffer = io.BytesIO()
    torch.export.save(program, buffer, extra_files=about)
    path.write_bytes(buffer.getvalue())
    return torch.export.load(path).module(), len(program.graph.nodes)


_EXPORTERS: dict[str, Callable[[nn.Module, Tensor, Path, dict[str, str]], tuple[Run, int]]] = {
    "onnx": _to_onnx,
    "torchscript": _to_torchscript,
    "exported-program": _to_exported_program,
}
