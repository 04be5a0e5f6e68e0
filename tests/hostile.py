"""Files as damage or malice would leave them: seeded changes, and what must not happen then."""

import copy
import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_NESTED = "[" * 5000 + "]" * 5000
_VALUES: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 3, 10**6, 10**12, 10**30, 0.5, -0.0, 1e308, float("nan"),
    float("inf"), "", "z2cnn", "converted", "x" * 10_000, "../../../etc/passwd", "a\nb", "\ud800",
    "http://127.0.0.1:9/weights.pth", "hf-hub:timm/resnet18", "os:system", [], {}, [[]], [1, 2, 3],
    [10**9] * 4, {"a": {"b": []}}, ["x"] * 100,
)  # fmt: skip
_KEYS = (
    "checkpoint_path", "weights", "weights_backbone", "pretrained", "pretrained_cfg",
    "pretrained_cfg_overlay", "cache_dir", "scriptable", "features_only", "progress", "gray",
    "num_classes", "width", "rotations", "model", "name", "config", "image_size", "rows", "note",
    "experiment", "__class__", "",
)  # fmt: skip
_watched: list[str] = []
_watching = False


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    """Note what code out of a file, or a download, cannot do without."""
    if _watching and (
        event in ("pickle.find_class", "socket.getaddrinfo", "socket.connect", "os.system")
        or event in ("subprocess.Popen", "urllib.Request", "os.exec")
    ):
        _watched.append(f"{event} {arguments}")


@contextmanager
def watched() -> Iterator[None]:
    """Fail if a pickle names a class, a process is started, or the network is used."""
    global _watching
    if not hasattr(sys, "_hostile_audit"):
        sys.addaudithook(_audit)
        sys._hostile_audit = True  # type: ignore[attr-defined]
    _watched.clear()
    _watching = True
    try:
        yield
    finally:
        _watching = False
    assert not _watched, _watched


def changed(value: Any, chance: random.Random, evil: Path) -> Any:
    """A copy of JSON, or of a checkpoint, with something in it replaced, added or removed."""
    box = [copy.deepcopy(value)]  # so that there is a place for the whole
    for _ in range(chance.choice((1, 1, 2, 4))):
        places = list(_places(box))
        holder, key = chance.choice(places)
        what = chance.choice(("replace", "replace", "remove", "add"))
        hints = (str(evil), {"file": str(evil), "url": "http://127.0.0.1:9"})
        new = copy.deepcopy(chance.choice((*_VALUES, *hints)))
        if what == "replace":
            holder[key] = new
        elif what == "remove" and holder is not box:
            del holder[key]
        elif isinstance(holder, dict):
            holder[chance.choice(_KEYS)] = new
        elif holder is not box:
            holder.append(new)
    return box[0]


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Everything inside, as its container and key."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in list(items):
        yield value, key
        if isinstance(item, (dict, list)):
            yield from _places(item)


def changed_text(text: str, chance: random.Random, evil: Path) -> str:
    """JSON text that was changed as data, or as text."""
    kind = chance.random()
    if kind < 0.8:
        new = json.dumps(changed(json.loads(text), chance, evil))
        return new.replace('"os:system"', _NESTED) if kind < 0.05 else new
    where = chance.randrange(len(text))
    if kind < 0.9:
        return text[:where]
    return (
        text[:where] + chance.choice(("}", '"', "0", "9" * 5000, "\0", "é", _NESTED)) + text[where:]
    )


def outcomes(count: int, seed: int, attempt: Callable[[random.Random], object]) -> Counter[str]:
    """Try as many changed files; what happened, counted.

    An attempt may succeed, or refuse the file in one line; nothing else may happen.
    """
    counted: Counter[str] = Counter()
    for number in range(count):
        try:
            with watched():
                attempt(random.Random(f"{seed} {number}"))
        except (ValueError, OSError, ImportError) as error:
            lines = str(error).strip().splitlines()
            if len(lines) != 1:
                raise AssertionError(f"change {number} of seed {seed} says {lines}") from error
            counted[f"refused: {type(error).__name__}"] += 1
        except Exception as error:
            raise AssertionError(f"change {number} of seed {seed} is a bug: {error!r}") from error
        else:
            counted["accepted"] += 1
    return counted
