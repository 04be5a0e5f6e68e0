"""Time whole networks: training step, forward pass and folded inference, plain and equivariant.

The baseline is the fastest plain network of the same run: eager, captured as CUDA graphs,
compiled, or compiled with CUDA graphs. ``--reference`` adds the networks that the authors of the
paper released, from a checkout of their code.
"""

import argparse
import importlib
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from _timing import Call, Case, Settings, Steps, parser, run, settings_of
from equicolor.canonicalization import canonicalize, hue_selector
from equicolor.canonicalization.network import PRESETS
from equicolor.models import Network, create_model
from equicolor.nn import capture, fold, set_algorithm
from equicolor.results import Row

MODES = ("training", "forward", "folded")
FORMS = ("eager", "captured", "compiled", "compiled-graphs")
NETWORKS = ("n3-fast", "n3-matched", "n3-fast-hsv", "n12-fast", "n12-matched")
CLASSES = 1000
COLUMNS = ("name", "variant", "form", "mode", "ms", "images_per_s", "over_plain", "peak_mib",
           "memory_over_plain", "tflops", "peak_fraction")  # fmt: skip


def network_named(name: str) -> Row:
    """A network by its name: ``n3-fast``, ``n12-matched-hsv``, ``n6-56-p4``, ``default-selector``.

    The second part is the width: ``fast`` for tensor cores, ``matched`` for the parameters of
    the plain network, or channels of the first stage. The last may be a spatial group. A selector,
    named after its preset, stands in front of the plain network.
    """
    preset = name.removesuffix("-selector")
    if preset != name and preset in PRESETS:
        return {"name": name, "selector": preset}
    parts = re.fullmatch(r"n([1-9]\d*)-(fast|matched|[1-9]\d*)(-hsv)?(?:-(p4m?))?", name)
    if parts is None or (parts[1] == "1" and not parts[4]):
        raise argparse.ArgumentTypeError(
            "expected names such as n3-fast, n12-matched-hsv, n6-56, n3-fast-p4 or "
            f"default-selector, got {name!r}"
        )
    number, width, hsv, spatial = parts.groups()
    widths = {"fast": "fast", "matched": None}
    return {
        "name": name,
        "rotations": int(number),
        "width": widths[width] if width in widths else int(width),
        "lifting": "hsv" if hsv else "rgb",
        **({"spatial": spatial} if spatial else {}),
    }


def checkout(path: str) -> Path:
    """The folder of the authors' code."""
    folder = Path(path).resolve()
    for file in ("models/resnet.py", "ceconv/ceconv2d.py"):
        if not (folder / file).is_file():
            raise argparse.ArgumentTypeError(f"expected a checkout of CEConv with {file}: {path}")
    return folder


def cases(given: argparse.Namespace, mode: str, settings: Settings) -> Iterator[Case]:
    """Plain networks first, then those of the authors, then ours."""
    for form in given.plain_forms:
        yield _case(given.network, {"name": "plain"}, "plain", form, mode, settings)
    if given.reference is not None:
        numbers = {network.get("rotations", 1) for network in given.networks} - {1}
        for n in sorted(numbers):
            for form in given.plain_forms:
                yield _released_case(given.reference, given.network, n, form, mode, settings)
    for variant in given.variants:
        for form in given.forms:
            for network in given.networks:
                model = given.network if network.get("rotations", 1) == 1 else f"ce_{given.network}"
                yield _case(model, network, variant, form, mode, settings)


def _case(model: str, network: Row, variant: str, form: str, mode: str, settings: Settings) -> Case:
    name, options = network["name"], {key: network[key] for key in network if key != "name"}
    build = partial(_build, model, **options)
    with torch.device("meta"):  # only shapes are needed
        width = build(selector=None).config["width"][0]
    row: Row = {"name": name, "model": model, "rotations": 1, "lifting": None, **options}
    row |= {"width": width, "size": settings.size, "variant": variant, "form": form, "mode": mode}
    return Case(row, partial(network_steps, build, mode, variant, form, settings))


def _released_case(
    folder: Path, model: str, n: int, form: str, mode: str, settings: Settings
) -> Case:
    row: Row = {"name": f"released-n{n}", "model": model, "rotations": n, "lifting": "rgb"}
    row |= {"size": settings.size, "variant": "released", "form": form, "mode": mode}
    build = partial(_build_released, folder, model, n)
    return Case(row, partial(network_steps, build, mode, "released", form, settings))


def _build_released(folder: Path, model: str, n: int) -> nn.Module:
    """The network of the authors' tables: separable filters, and a maximum over the rotations."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    builder = getattr(importlib.import_module("models.resnet"), model.replace("resnet", "ResNet"))
    network: nn.Module = builder(
        rotations=n, separable=True, groupcosetmaxpool=True, num_classes=CLASSES
    )
    return network


def _build(model: str, *, selector: str | None = None, **options: Any) -> Network:
    network = create_model(model, num_classes=CLASSES, **options)
    if selector is None:
        return network
    in_front = hue_selector(rotations=12, **PRESETS[selector])
    in_front(torch.rand(2, 3, 32, 32))  # canonicalize refuses a selector that has seen no image
    return canonicalize(network, select=in_front)


def network_steps(
    build: Callable[[], nn.Module], mode: str, variant: str, form: str, settings: Settings
) -> Steps:
    """A network on its device in one of ``FORMS``, with a batch of random images."""
    torch.manual_seed(0)
    images = torch.rand(settings.batch, 3, settings.size, settings.size, device=settings.device)
    images = images.contiguous(memory_format=torch.channels_last)
    network, compiled = build(), form.startswith("compiled")
    if variant == "released":  # its filters have five dimensions and cannot be folded
        images = images.contiguous()
        network = network.to(settings.device).train(mode == "training")
    else:
        folding = "dense" if variant == "dense" else "auto"
        if variant != "plain":
            set_algorithm(network, variant)
        if mode == "folded" and compiled:  # on the CPU: plain modules, which can be compiled
            network = fold(network, folding)
        network = settings.place(network).train(mode == "training")
        if mode == "folded" and not compiled:
            network = fold(network, folding)
    if mode == "training":
        labels = torch.arange(settings.batch, device=settings.device) % 10
        step = partial(update, adam(network, settings), images, labels, settings)
    else:
        step = partial(infer, images, settings)
    return Steps(
        partial(step, network), lambda: partial(step, called(network, form, images, settings))
    )


def called(network: nn.Module, form: str, images: Tensor, settings: Settings) -> Call:
    """The callable to time: the network, its CUDA graphs, or its compiled form."""
    if form == "captured":
        dtype = settings.dtype if settings.dtype is torch.bfloat16 else None
        return capture(network, images, dtype)
    if form == "eager":
        return network
    from torch import _dynamo as dynamo  # slow to import

    # Every case may be compiled; by default torch stops after 8.
    dynamo.config.recompile_limit, dynamo.config.accumulated_recompile_limit = 1024, 8192
    mode = "reduce-overhead" if form == "compiled-graphs" else "default"
    # dynamic=False: shapes must not become symbolic because those of the next case differ.
    return torch.compile(network, dynamic=False, mode=mode)


def infer(images: Tensor, settings: Settings, call: Call) -> Tensor:
    """The forward pass without gradients."""
    with torch.no_grad(), settings.autocast():
        return call(images)


def adam(network: nn.Module, settings: Settings, lr: float = 1e-3) -> torch.optim.Adam:
    """Adam; on a GPU with one kernel for all parameters."""
    fused = True if settings.device.type == "cuda" else None  # None leaves the choice to torch
    return torch.optim.Adam(network.parameters(), lr=lr, fused=fused)


def update(
    optimizer: torch.optim.Optimizer,
    images: Tensor,
    labels: Tensor,
    settings: Settings,
    call: Call,
) -> Tensor:
    """One training step; returns the loss. Gradients are freed at the end."""
    with settings.autocast():
        logits = call(images)
    loss = F.cross_entropy(logits.float(), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach()


def main() -> None:
    """Run the script."""
    options = parser(__doc__)
    options.add_argument("--network", default="resnet18", help="plain network: resnet18, resnet44")
    options.add_argument("--networks", nargs="+", type=network_named, metavar="NAME",
                         default=[network_named(name) for name in NETWORKS],
                         help="n3-fast, n12-matched-hsv, n6-56-p4, default-selector")  # fmt: skip
    options.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    options.add_argument("--variants", nargs="+", choices=("auto", "dense"), default=("auto",))
    options.add_argument("--forms", nargs="+", choices=FORMS,
                         help="default: captured and eager on a GPU, else eager")  # fmt: skip
    options.add_argument("--plain-forms", nargs="+", choices=FORMS,
                         help="default: all on a GPU, else eager")  # fmt: skip
    options.add_argument("--reference", type=checkout, metavar="FOLDER",
                         help="checkout of the authors' CEConv; its networks are measured in the "
                         "forms of plain ones")  # fmt: skip
    given = options.parse_args()
    settings = settings_of(given, batch={"cpu": 4, "cuda": 256})
    on_gpu = settings.device.type == "cuda"
    given.forms = given.forms or (("captured", "eager") if on_gpu else ("eager",))
    given.plain_forms = given.plain_forms or (FORMS if on_gpu else ("eager",))
    run((cases(given, mode, settings) for mode in given.modes), COLUMNS, settings)


if __name__ == "__main__":
    main()
