"""The classes of single images, with probabilities, also with shifted hues."""

import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from equicolor import _checks
from equicolor.color import shift_hue
from equicolor.data.folder_datasets import images_below
from equicolor.data.images import CorruptImageError, in_threads
from equicolor.devices import cores
from equicolor.evaluation.actions import check_turns
from equicolor.evaluation.images import choose_preparation, count_outputs, prepare_image
from equicolor.evaluation.runner import Runner, check_logits, evaluating
from equicolor.models.registry import class_names_of
from equicolor.reporting.progress import Progress

if TYPE_CHECKING:
    from PIL.Image import Image

    from equicolor.reporting.tables import Table

_BATCH = 64  # images decoded and classified at once
STDIN = "-"


class Answer(NamedTuple):
    """A class and its probability.

    Attributes:
        name: of the class; its number if the network has no names.
        number: of the output.
        probability: in [0, 1]; those of all classes add up to 1.
    """

    name: str
    number: int
    probability: float


class Prediction(NamedTuple):
    """A network's answers to one image in one hue.

    Attributes:
        image: the path, or the number of an image without one.
        turns: the hue shift; 0 leaves the image unchanged.
        answers: the most probable classes, the most probable one first.
    """

    image: str
    turns: float
    answers: tuple[Answer, ...]

    def row(self) -> dict[str, Any]:
        """The prediction for JSON; the hue in degrees."""
        answers = [
            {"class": name, "number": number, "probability": round(probability, 6)}
            for name, number, probability in self.answers
        ]
        return {"image": self.image, "hue": _degrees(self.turns), "answers": answers}


def predict(
    network: nn.Module,
    images: "Tensor | Sequence[str | Path | Image]",
    *,
    top: int = 5,
    turns: Sequence[float] = (0.0,),
    size: int | None = None,
    resize: int | None = None,
    on_corrupt: str = "error",
    progress: Progress | None = None,
) -> list[Prediction]:
    """Classify images, unchanged or with shifted hues.

    Args:
        network: maps images :math:`[B, 3, H, W]` in [0, 1] to logits :math:`[B, C]`. If it has
            ``class_names``, answers have these names.
        images: paths or images of Pillow, cut by :func:`prepare_image`; or a tensor
            :math:`[B, 3, H, W]` in [0, 1], which is not cut.
        top: how many classes to name.
        turns: hue shifts to try, from -1 to 1, each by :func:`equicolor.color.shift_hue`.
        size, resize: how files are cut, see :func:`prepare_image`.
        on_corrupt: ``"error"`` to raise CorruptImageError for a file that is not a whole image, or
            ``"skip"`` to leave it out.
        progress: called with (images done, images in all).

    Returns:
        A prediction for every image and hue shift, image by image.

    Example:
        >>> from equicolor.models import cecnn
        >>> network = cecnn(2, coset_pool="max")
        >>> network.class_names = ("apple", "banana")
        >>> (prediction,) = predict(network, torch.rand(1, 3, 28, 28))
        >>> sorted(answer.name for answer in prediction.answers)
        ['apple', 'banana']
        >>> round(sum(answer.probability for answer in prediction.answers), 5)
        1.0
    """
    _checks.positive_int("top", top)
    _checks.one_of("on_corrupt", on_corrupt, ("error", "skip"))
    turns = [float(each) for each in turns]
    if not turns or not all(math.isfinite(each) for each in turns):
        raise ValueError(f"turns must be finite numbers, one or more; got {turns}")
    check_turns("hue shifts", turns)
    predictions: list[Prediction] = []
    with evaluating(network), torch.no_grad():
        if isinstance(images, Tensor):
            _checks.images_in_range("predict", images)
            batches = _split(images)
        else:
            images = [images] if isinstance(images, (str, Path)) else list(images)
            sizes = choose_preparation(network, size=size, resize=resize)
            count_outputs(network, sizes.size)  # refuses a size before images are decoded
            batches = _decoded(images, *sizes, skip=on_corrupt == "skip")
        runner = Runner(network, None)
        for done, names, batch in batches:
            shifted = (shift_hue(batch, each) if each else batch for each in turns)
            answers = [_answers(network, runner, each, names, top) for each in shifted]
            for name, *each in zip(names, *answers, strict=True):
                predictions += [Prediction(name, *one) for one in zip(turns, each, strict=True)]
            if progress:
                progress(done, len(images))
    if not predictions:
        raise ValueError("all images are corrupt" if len(images) else "there are no images")
    return predictions


_Batch = tuple[int, list[str], Tensor]  # images done after this batch, their names, the images


def _split(images: Tensor) -> Iterator[_Batch]:
    for start in range(0, len(images), _BATCH):
        batch = images[start : start + _BATCH]
        stop = start + len(batch)
        yield stop, [str(number) for number in range(start, stop)], batch


def _decoded(
    images: "Sequence[str | Path | Image]", size: int, resize: int, *, skip: bool
) -> Iterator[_Batch]:
    """Decode images batch by batch, so that memory does not limit their number."""

    def prepare(index: int) -> Tensor | None:
        try:
            return prepare_image(images[index], size=size, resize=resize)
        except CorruptImageError:
            if not skip:
                raise
            return None

    for start in range(0, len(images), _BATCH):
        numbers = range(start, min(start + _BATCH, len(images)))
        prepared = zip(numbers, in_threads(prepare, numbers, min(cores(), 32)), strict=True)
        decoded = {index: image for index, image in prepared if image is not None}
        if decoded:
            names = [
                str(images[index] if isinstance(images[index], (str, Path)) else index)
                for index in decoded
            ]
            yield numbers.stop, names, torch.stack([*decoded.values()])


def _answers(
    network: nn.Module, runner: Runner, images: Tensor, files: Sequence[str], top: int
) -> list[tuple[Answer, ...]]:
    """The most probable classes of every image of a batch."""
    logits = check_logits(runner.run(images), images)
    classes = logits.shape[1]
    names = class_names_of(network) or tuple(map(str, range(classes)))
    if len(names) != classes:
        raise ValueError(
            f"the network has {classes} outputs, but names {len(names)} classes in class_names"
        )
    probabilities = logits.double().softmax(1)
    for file, undefined in zip(files, probabilities.isnan().any(1).tolist(), strict=True):
        if undefined:
            raise ValueError(f"the network's logits are NaN or infinite for image {file}")
    highest = probabilities.topk(min(top, classes), 1)
    return [
        tuple(Answer(names[number], number, value) for number, value in zip(*each, strict=True))
        for each in zip(highest.indices.tolist(), highest.values.tolist(), strict=True)
    ]


def find_images(paths: Iterable[str | Path]) -> list[Path]:
    """The image files at some paths.

    Args:
        paths: files; folders, which stand for all images in and below them, in order; or ``-``
            for paths from stdin, one per line.

    Raises:
        FileNotFoundError: for a path that does not exist.
        ValueError: for a folder without images, and for a stdin without paths.
    """
    files: list[Path] = []
    for path in paths:
        if str(path) == STDIN:
            lines = [line.rstrip("\r\n") for line in sys.stdin]
            listed = [line for line in lines if line.strip() and line != STDIN]
            if not listed:
                raise ValueError("no path came on stdin: expected images or folders, one per line")
            files += find_images(listed)
        elif Path(path).is_dir():
            files += [file.path for file in images_below(Path(path)).files]
        elif Path(path).exists():
            files.append(Path(path))
        else:
            raise FileNotFoundError(f"no image at {path}; expected a file, a folder of images or -")
    return files


def prediction_table(predictions: Sequence[Prediction]) -> "Table":
    """Predictions for the terminal, one line per image and hue shift."""
    from equicolor.reporting.tables import MISSING, Table

    shifted = any(each.turns for each in predictions)
    lines = [
        (
            each.image,
            f"{_degrees(each.turns):g}°" if shifted else MISSING,
            each.answers[0].name,
            f"{100 * each.answers[0].probability:.1f}",
            ", ".join(f"{name} {100 * value:.1f}" for name, _, value in each.answers[1:])
            or MISSING,
        )
        for each in predictions
    ]
    columns = ("image", "hue", "class", "%", "then")
    return Table(columns, lines, text_columns=5).without_empty(["hue", "then"])


def _degrees(turns: float) -> float:
    return round(360 * turns, 6)
