"""The interactive page in Chromium: keys and mouse turn the hue, and everything follows.

Runs where PyQt6-WebEngine is installed (``make browser``), which holds a whole Chromium.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from equicolor.analysis import find_layers
from equicolor.analysis.inspection import interactive
from equicolor.analysis.inspection.turning import turn_hues
from equicolor.color import shift_hue
from equicolor.data.images import ImageSet
from equicolor.evaluation.diagnose import Subject, judge
from equicolor.models import cecnn, z2cnn

NAMES = ("apple", "<b>banana</b></script><script>window.injected = true</script>")
LAYERS = ["blocks.0.2", "blocks.1.2"]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory, settle: Callable[..., nn.Module]) -> Path:
    """A page about a network with three rotations, beside a plain one."""
    if find_spec("PyQt6") is None or find_spec("PyQt6.QtWebEngineCore") is None:
        pytest.skip("needs a browser: pip install PyQt6-WebEngine")
    torch.manual_seed(0)
    hues = torch.linspace(0, 1, 8).tolist()
    coarse = torch.rand(8, 3, 7, 7) * torch.tensor([1.0, 0.6, 0.2]).view(3, 1, 1)
    images = nn.functional.interpolate(coarse, (28, 28), mode="bilinear").clamp(0, 1)
    images = torch.stack([shift_hue(x, hue) for x, hue in zip(images, hues, strict=True)])
    networks = []
    for network in (cecnn(2, width=8, rotations=3, coset_pool=None), z2cnn(2, width=16)):
        settle(network, images)
        labels = torch.arange(8) % 2
        image_set = ImageSet("toy", "test", labels, NAMES, pixels=(255 * images).byte())
        facts = {"dataset": "<i>toy</i>", "split": "test", "size": 28}
        subject = Subject(network, image_set, [(images, labels)], facts, None)
        layers = list(find_layers(network, 28, LAYERS).values())
        judged = judge(subject, actions=["hsv"], shifts=9)
        networks.append(turn_hues(subject, layers, examples=3, evaluation=judged))
    return interactive.write(tmp_path_factory.mktemp("page") / "page.html", networks)


def drive(page: Path, width: int, theme: str) -> dict[str, Any]:
    script = Path(__file__).with_name("drive.py")
    # Fonts, and where a browser keeps its files: nothing of the user's is touched.
    environment = {**os.environ, "HOME": str(page.parent), "XDG_RUNTIME_DIR": str(page.parent)}
    result = subprocess.run(
        [sys.executable, script, page, str(width), theme],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
    )
    assert result.returncode == 0, result.stderr
    return dict(json.loads(result.stdout))


@pytest.mark.parametrize(("width", "theme"), [(1200, "light"), (390, "dark")])
def test_everything_follows_the_slider(page: Path, width: int, theme: str) -> None:
    result = drive(page, width, theme)
    assert result["console"] == []
    assert result["requests"] == [page.as_uri()]  # the page itself, and nothing else
    seen = result["seen"]
    start = seen["start"]
    assert start["titles"] == ["cecnn, n = 3, rgb lifting on <i>toy</i>", "z2cnn on <i>toy</i>"]
    assert start["labels"].count(NAMES[1]) >= 1
    assert start["curve"]
    assert start["columns"] == (2 if width == 1200 else 1)
    inner, scrolled = start["width"]
    assert inner == width
    assert scrolled <= width  # nothing sticks out
    assert (start["paper"] == "rgb(255, 255, 255)") == (theme == "light")
    assert not any(state["injected"] for state in seen.values())

    angles = {action: int(state["angle"].removesuffix("°")) for action, state in seen.items()}
    assert 80 <= angles.pop("slider") <= 110  # the handle has a width
    assert 0 < angles["play"] == angles.pop("resized") < 180
    angles.pop("play")
    assert angles == {
        "start": 0, "keys": 30, "third": 120, "home": -180, "reset": 0, "photo": 180, "example": 0
    }  # fmt: skip
    assert all(state["spoken"] == state["angle"] for state in seen.values())
    assert seen["keys"]["focus"] == "hue"
    check_verdicts(seen.values())
    assert start["lefts"] == [3, 3]  # two layers, whose channels line up
    for action in ("keys", "home", "slider", "photo", "example"):
        for part in ("photo", "rows", "answers", "legend"):
            if (action, part) != ("example", "legend"):  # all examples have one curve
                assert seen[action][part] != start[part], (action, part)
        assert all(now != then for now, then in zip(
            seen[action]["answers"], start["answers"], strict=True
        )), "both networks follow"  # fmt: skip
    for part in ("photo", "rows", "answers", "legend"):
        assert seen["reset"][part] == start[part]
    check_that_rows_roll(start, seen["third"])
    # Both ends of the slider are one hue.
    assert seen["home"]["photo"] == seen["photo"]["photo"]
    assert seen["home"]["rows"] == seen["photo"]["rows"]


def check_verdicts(states: Iterable[dict[str, Any]]) -> None:
    """A right answer is called so; beside a wrong one stands what would be right."""
    texts = [text for state in states for text in state["verdicts"]]
    right = [name for name in NAMES for text in texts if text.endswith("%, right") and name in text]
    wrong = [
        text for text in texts if text.endswith(tuple(f"wrong: it is {each}" for each in NAMES))
    ]
    assert len(right) + len(wrong) == len(texts)
    assert wrong


def check_that_rows_roll(before: dict[str, Any], after: dict[str, Any]) -> None:
    """By a third of a turn: two layers of three channels with three rotations."""
    for channel in range(6):
        row = slice(3 * channel, 3 * channel + 3)
        then, now = before["strongest"][row], after["strongest"][row]
        assert sum(then) == 1
        assert now == [then[2], *then[:2]]
    # The very same pixels, but where an activation lies between two of the 32 greys.
    assert sum(before["rows"].count(tile) > 0 for tile in after["rows"][:18]) >= 9
    assert after["rows"][18:] != before["rows"][18:]
