"""The page on which the user turns the hue of an example, and the network's answers follow.

Everything is computed in advance: the page holds images for all angles, and numbers as JSON. The
script ``interactive.js`` shows those of one angle.
"""

import base64
import html
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from rich.console import Console
from torch import Tensor

from equicolor._files import write_whole
from equicolor._text import printable
from equicolor.analysis.inspection.inspect import SHEETS, Inspection
from equicolor.analysis.inspection.turning import (
    PHOTO,
    TILE,
    FeatureRows,
    TurnedHues,
    count_steps,
    shrunk,
    turn_hues,
)
from equicolor.analysis.layers import LayerError, find_layers, layers_left_out, stage_ends
from equicolor.evaluation.diagnose import Subject, judge
from equicolor.reporting.html import html_page, provenance_list

LARGEST = 6_000_000  # bytes of a page
_CLASSES = 5  # shown for every example, besides the right one
_BLOCK = 8  # side of the blocks of pixels that JPEG compresses together
_COLUMNS = 6  # angles side by side on a sheet of photos
# Photos and feature maps get smaller until the page is small enough.
_SIDES = ((PHOTO, TILE), (128, 20), (112, 16), (96, 12), (80, 8))
# The page may load nothing from outside.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def page_beside(page: Path) -> Path:
    """The path of the interactive page beside a page.

    Example:
        >>> page_beside(Path("runs/page.html")).as_posix()
        'runs/page-interactive.html'
    """
    return page.with_name(f"{page.stem}-interactive{page.suffix}")


def turn(
    subject: Subject,
    inspection: Inspection,
    other: Subject | None = None,
    *,
    shifts: int | Sequence[float] | Tensor = 37,
    examples: int = 6,
    console: Console | None = None,
) -> list[TurnedHues]:
    """Turn the hues of examples for a network that was inspected, and for another beside it.

    Args:
        subject: the network and its images.
        inspection: of this network; the layers are those that it drew.
        other: another network with the same images in the same order; it is judged here, if its
            outputs are their classes. Its layers are those with the same names, or else those
            that an inspection would draw.
        shifts: for the evaluation of the other network.
        examples: how many images.
        console: shows progress; None shows nothing.
    """
    drawn = [sheet.layer for sheet in inspection.sheets]
    subjects = [(subject, drawn, inspection.left_out, inspection.evaluation)]
    if other is not None:
        network, size = other.network, other.facts["size"]
        try:
            layers = find_layers(network, size, [layer.name for layer in drawn]) if drawn else {}
        except LayerError:  # another kind of network
            layers = find_layers(network, size)
            layers = {name: layers[name] for name in stage_ends(layers)[-SHEETS:]}
        evaluation = None
        if not other.class_mismatch:
            evaluation = judge(other, actions=["hsv"], shifts=shifts, console=console)
        left_out = layers_left_out(network, size)
        subjects.append((other, list(layers.values()), left_out, evaluation))
    rotations = [max([1, *(one.rotations for one in layers)]) for _, layers, _, _ in subjects]
    return [
        turn_hues(
            one,
            layers,
            left_out,
            steps=count_steps(rotations),
            examples=examples,
            evaluation=evaluation,
            console=console,
        )
        for one, layers, left_out, evaluation in subjects
    ]


def write(
    path: Path, networks: Sequence[TurnedHues], *, provenance: Mapping[str, Any] | None = None
) -> Path:
    """Write the page about one network, or about several that were shown the same examples.

    It has at most :data:`LARGEST` bytes: images get smaller, then fewer, until the page fits.

    Args:
        path: of the page.
        networks: of :func:`turn_hues`, all at the same angles.
        provenance: of :func:`equicolor.results.provenance`.
    """
    for examples, photo, tile in _sizes(len(networks[0].images)):
        page = _page(networks, examples, photo, tile, provenance or {})
        if len(page.encode()) <= LARGEST:
            return write_whole(path, page)
    raise ValueError(
        f"{path} would have {len(page.encode()):,} bytes for one example, more than {LARGEST:,}: "
        "name fewer layers"
    )


def _sizes(examples: int) -> Iterator[tuple[int, int, int]]:
    """Numbers of examples, sides of photos and sides of feature maps, the largest page first."""
    for photo, tile in _SIDES:
        yield examples, photo, tile
    for fewer in range(examples - 1, 0, -1):
        yield fewer, *_SIDES[-1]


def _page(
    networks: Sequence[TurnedHues],
    examples: int,
    photo: int,
    tile: int,
    provenance: Mapping[str, Any],
) -> str:
    first = networks[0]
    images = shrunk(first.images[:examples], photo)
    labels = first.labels[:examples]
    data = {
        "steps": images.shape[1],
        "side": images.shape[-1],
        "columns": _COLUMNS,
        "examples": [
            {"label": printable(label), "photos": _photo_sheet(turned)}
            for label, turned in zip(labels, images, strict=True)
        ],
        "networks": [
            _network(each, _shown_classes(networks, each, examples), photo, tile)
            for each in networks
        ],
    }
    # A "<" could end the script element.
    numbers = json.dumps(data, allow_nan=False).replace("<", "\\u003c")
    title = " beside ".join(each.title for each in networks)
    parts = [
        f"<header><h1>Turn the hue</h1>\n<p class='lead'>{html.escape(title)}</p></header>",
        _file("interactive.html"),
        provenance_list(provenance) if provenance else "",
        f'<script type="application/json" id="data">{numbers}</script>',
        f"<script>{_file('interactive.js')}</script>",
    ]
    return html_page(title, parts, style=_file("interactive.css"), policy=_POLICY)


def _network(
    turned: TurnedHues, classes: Sequence[Sequence[int]], photo: int, tile: int
) -> dict[str, Any]:
    """The data of a network for the script, with some classes of every example."""
    examples = len(classes)
    layers = [
        FeatureRows(layer.name, layer.channels, shrunk(layer.maps[:examples], tile))
        for layer in turned.layers
    ]
    natural = None if turned.natural is None else shrunk(turned.natural[:examples], photo)
    return {
        "title": printable(turned.title),
        "judged": turned.judged,
        "curve": turned.curve,
        "layers": [
            {
                "name": printable(layer.name),
                "channels": layer.channels,
                "rotations": layer.rotations,
                "height": layer.maps.shape[-2],
                "width": layer.maps.shape[-1],
            }
            for layer in layers
        ],
        "naturalSide": None if natural is None else natural.shape[-1],
        "examples": [
            {
                "natural": None if natural is None else _photo_sheet(natural[index]),
                "features": [_feature_sheet(layer.maps[index]) for layer in layers],
                "strongest": [_strongest(layer.maps[index]) for layer in layers],
                "best": _best(turned, index),
                "answers": _answers(turned, index, shown),
            }
            for index, shown in enumerate(classes)
        ],
    }


def _shown_classes(
    networks: Sequence[TurnedHues], turned: TurnedHues, examples: int
) -> list[list[int]]:
    """The likeliest classes of every example at any angle, the likeliest first, and the right one.

    Networks with the same classes show the same ones, in the same order.
    """
    same = [each.logits[:examples] for each in networks if each.class_names == turned.class_names]
    highest = torch.cat(same, 1).softmax(2).nan_to_num(0).amax(1)  # [E, O]
    shown: list[list[int]] = highest.topk(min(_CLASSES, highest.shape[1])).indices.tolist()
    for classes, label in zip(shown, turned.labels, strict=False):
        if turned.judged and (right := turned.class_names.index(label)) not in classes:
            classes.append(right)
    return shown


def _best(turned: TurnedHues, index: int) -> list[dict[str, Any]]:
    """The network's answer at every angle, which may not be among the classes shown."""
    likeliest = turned.logits[index].softmax(1).nan_to_num(0).max(1)
    return [
        {
            "name": printable(turned.class_names[number]),
            "probability": _finite(probability, 4),
            "right": turned.judged and turned.class_names[number] == turned.labels[index],
        }
        for probability, number in zip(*(part.tolist() for part in likeliest), strict=True)
    ]


def _answers(turned: TurnedHues, index: int, classes: Sequence[int]) -> list[dict[str, Any]]:
    """Logits and probabilities of classes over the angles."""
    logits, names = turned.logits[index], turned.class_names
    probabilities = logits.softmax(1)
    return [
        {
            "name": printable(names[number]),
            "right": turned.judged and names[number] == turned.labels[index],
            "logits": [_finite(value, 2) for value in logits[:, number].tolist()],
            "probabilities": [_finite(value, 4) for value in probabilities[:, number].tolist()],
        }
        for number in classes
    ]


def _finite(value: float, decimals: int) -> float | None:
    """A number for JSON, which has neither NaN nor infinity."""
    return round(value, decimals) if math.isfinite(value) else None


def _strongest(maps: Tensor) -> list[list[int]]:
    """The rotation with the largest mean, for every angle and channel, ``[K][C]``."""
    return maps.float().mean((-2, -1)).argmax(2).tolist()


def _photo_sheet(images: Tensor) -> str:
    """Images ``[K, 3, s, s]`` from 0 to 255, side by side in lines, as a JPEG.

    Frames are whole blocks, so that no image bleeds into the next. Colours keep their full
    resolution, since the page is about hue.
    """
    padding = -images.shape[-1] % _BLOCK
    frames = F.pad(images.float(), (0, padding, 0, padding), mode="replicate")
    empty = torch.zeros(-len(frames) % _COLUMNS, *frames.shape[1:])
    grid = torch.cat((frames, empty)).unflatten(0, (-1, _COLUMNS))
    sheet = grid.permute(0, 3, 1, 4, 2).flatten(2, 3).flatten(0, 1)
    return _encoded(sheet, "jpeg", quality=88, subsampling=0)


def _feature_sheet(maps: Tensor) -> str:
    """Maps ``[K, C, n, h, w]`` from 0 to 255, one line per angle, as a PNG in 32 greys."""
    greys = (maps.float() * (31 / 255)).round() * (255 / 31)
    sheet = greys.flatten(1, 2).permute(0, 2, 1, 3).flatten(2, 3).flatten(0, 1)
    return _encoded(sheet, "png", optimize=True)


def _encoded(pixels: Tensor, kind: str, **options: Any) -> str:
    file = io.BytesIO()
    array = pixels.round().clamp(0, 255).byte().numpy()
    Image.fromarray(np.ascontiguousarray(array)).save(file, kind, **options)
    return f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode()}"


def _file(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
