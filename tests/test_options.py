"""No option of a command and no keyword of a builder is accepted without effect.

Commands and builders are walked, so that a new option needs a value here. Each is given that
value beside a base call, and something must change, or the value must be refused: for layers and
networks the weights or what is computed from them, for ``evaluate`` and the like what is found.
Of the other commands only what they print and hand to the functions in ``WORK`` is compared: what
those functions do with it is for their own tests.
"""

import dataclasses
import importlib
import inspect
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.other_values import other_value
from typer import testing
from typer.main import get_command
from typer.testing import CliRunner

from equicolor import nn as ce
from equicolor.cli.app import app
from equicolor.models import list_models, save_model, z2cnn
from equicolor.models.registry import get_builder
from equicolor.paper import quick_images
from equicolor.training.fields import settings
from equicolor.training.recipes import TrainingRecipe

Call = tuple[str, ...]


class Stop(Exception):  # noqa: N818
    """Ends a command where its work would begin."""


# Built once; Typer would do so in every call.
GROUP = get_command(app)


def commands(group: Any = None, name: Call = ()) -> Iterator[tuple[Call, Any]]:
    """Every command by its words."""
    group = GROUP if group is None else group
    if not hasattr(group, "commands"):
        yield name, group
        return
    for word, command in group.commands.items():
        yield from commands(command, (*name, word))


COMMANDS = dict(commands())

# What a command hands its options to: the work, which is not begun, and what comes before it.
WORK: dict[str, tuple[str, ...]] = {
    "train": ("equicolor.training.fit.fit", "equicolor.training.advice.advise"),
    "evaluate": (
        "equicolor.evaluation.report.refuse_existing",
        "equicolor.evaluation.report.write",  # the work is done: it takes a moment
    ),
    "compare": (
        "equicolor.evaluation.compare.refuse_existing",
        "equicolor.evaluation.compare.write",  # the work is done: it takes a moment
    ),
    "inspect": (
        "equicolor.analysis.inspection.page.refuse_existing",
        "equicolor.evaluation.diagnose.load_subject",
        "equicolor.analysis.inspection.inspect.inspect",
        "equicolor.analysis.inspection.interactive.turn",
    ),
    "convert": (
        "equicolor.conversion.report.convert_source",
        "equicolor.conversion.report.hue_table",
    ),
    "canonicalize": (
        "equicolor.canonicalization.report.refuse_existing",
        "equicolor.canonicalization.report.canonicalize_named",
    ),
    "export": ("equicolor.models.export.export",),
    "demo": ("equicolor.paper.demo.run",),
    "datasets": ("equicolor.data.download.download",),
    "reproduce": (
        "equicolor.paper.engine.launch",
        "equicolor.paper.engine.state",
        "equicolor.paper.report.read",
        "equicolor.paper.report.write",
        "equicolor.paper.report.figures",
    ),
}
GO_ON: dict[str, Any] = {
    "equicolor.evaluation.report.write": [],
    "equicolor.evaluation.compare.write": [],
    "equicolor.evaluation.diagnose.load_subject": SimpleNamespace(
        data="images", facts={"split_seed": 0}
    ),
    "equicolor.analysis.inspection.inspect.inspect": None,
    "equicolor.conversion.report.convert_source": [],
    "equicolor.paper.engine.state": "new",
    "equicolor.paper.report.read": None,
}

# The call that an option is added to; {folder} holds class folders, network and results.
BASE: dict[str, str] = {
    "train": "{folder}/images --model ce_resnet18 --width 4 --size 32 --device cpu",
    "evaluate": "{folder}/network.safetensors --data {folder}/images --shifts 3",
    "compare": "{folder}/network.safetensors {folder}/second.safetensors --data {folder}/images "
    "--shifts 3",
    "predict": "{folder}/mine.py:Net {folder}/photo.png --json",
    "inspect": "{folder}/network.safetensors",
    "convert": "{folder}/network.safetensors -o {folder}/new.safetensors",
    "canonicalize": "{folder}/network.safetensors --data {folder}/other",
    "export": "{folder}/network.safetensors -o {folder}/new.onnx",
    "cost": "cecnn --width 4 --coset-pool max",
    "reproduce": "--quick",
    "reproduce list": "",
    "reproduce all": "--quick --only ablation-jitter,equivariance",
    "datasets get": "mnist",
}
# What an option needs beside it.
WITH: dict[tuple[str, str], str] = {
    ("train", "js"): "--augmix",
    ("train", "augmix_full"): "--augmix",
    ("train", "force"): "-o {folder}/run --dry-run",
    ("train", "sync_norm"): "--devices 2",
    ("evaluate", "classes_by_index"): "--data {folder}/other",
    ("evaluate", "force"): "-o {folder}/evaluation",
    ("evaluate", "skip_corrupt"): "--data {folder}/corrupt",
    ("compare", "classes_by_index"): "--data {folder}/other",
    ("compare", "force"): "-o {folder}/evaluation",
    ("compare", "skip_corrupt"): "--data {folder}/corrupt",
    ("predict", "skip_corrupt"): "{folder}/corrupt",
    ("inspect", "force"): "-o {folder}/page.html",
    ("convert", "force"): "-o {folder}/network.safetensors",
    ("canonicalize", "force"): "-o {folder}/canonicalization",
    ("cost", "force"): "-o {folder}/rows.json",
    ("reproduce", "launcher_option"): "--launcher slurm",
    # Of several experiments, each takes the options that it has.
    ("reproduce all", "actions"): "--only classification,equivariance",
    ("reproduce all", "networks"): "--only colormnist-biased,equivariance",
    ("reproduce all", "precision"): "--only colormnist-biased,equivariance",
    ("reproduce all", "redraw"): "--only colormnist-biased,equivariance --seeds 2",
    ("reproduce all", "sigmas"): "--only colormnist-biased,equivariance",
}
# Another call than that of BASE.
INSTEAD: dict[tuple[str, str], str] = {
    ("train", "recipe"): "{folder}/images",
    ("train", "advise"): "{folder}/images --device cpu",
    ("train", "finetune"): "{folder}/images",
    ("predict", "as_json"): "{folder}/mine.py:Net {folder}/photo.png",
    ("reproduce", "quick"): "",
    ("reproduce", "sources"): "",
    ("reproduce", "figures"): "--from {folder}/rows.json",
    ("convert", "match_parameters"): BASE["convert"] + " --init random",
    ("cost", "coset_pool"): "cecnn",
    ("cost", "ce_stages"): "ce_resnet18 --width 4",
}
# A value of every option that is no flag: for one command, or for all.
VALUES: dict[str | tuple[str, str], str] = {
    "actions": "hsv,rgb", ("evaluate", "actions"): "hsv",
    "batch_size": "7",
    # Refused; another one changes no result.
    ("evaluate", "batch_size"): "0", ("compare", "batch_size"): "0",
    "cache": "{folder}/kept",
    "ce_stages": "2", ("cost", "ce_stages"): "2", "checkpoint_every": "7", "classes": "7",
    "compare": "{folder}/second.safetensors", "coset_pool": "avg", "spatial": "p4",
    "data": "{folder}/images",
    ("evaluate", "data"): "{folder}/other", ("compare", "data"): "{folder}/other",
    "data_path": "streaming",
    "dataset": "{folder}/other", "datasets": "{folder}/images",
    "device": "cpu" if torch.cuda.is_available() else "cuda", ("train", "device"): "cuda",

    "devices": "2", "epochs": "7", "examples": "3", "finetune": "{folder}/network.safetensors",
    "form": "dense", "gate": "0.5", "grey": "opponent", "hue": "120",
    "images": "{folder}/images/a/5.png", "init": "random", "input_size": "56",
    ("cost", "input_size"): "29",
    "js": "", "jitter": "0.25", "launcher": "slurm",
    "launcher_option": "timeout_min=3", "layers": "a", "lifting": "hsv",
    ("convert", "lifting"): "rgb", "limit_images": "3", "lr": "0.5",
    "model": "ce_resnet34", ("cost", "model"): "ce_resnet18", ("export", "model"): "z2cnn",
    "models": "z2cnn", "modes": "2", "name": "cifar10", "network": "timm:resnet18",
    ("evaluate", "network"): "{folder}/second.safetensors",
    ("predict", "network"): "{folder}/second.safetensors", "networks": "baseline",
    ("compare", "networks"): "{folder}/third.safetensors",
    ("reproduce all", "networks"): "z2cnn",
    ("reproduce canonicalization", "networks"): "ce-4",
    "num_nodes": "2", "only": "equivariance", "optimizer": "sgd", "output": "{folder}/elsewhere",
    ("inspect", "output"): "{folder}/elsewhere.html",
    "figures": "{folder}/drawn", "pictures": "{folder}/drawn",
    "precision": "bfloat16", "preset": "fast", "recipe": "hsv-12",
    "resize": "99", ("predict", "resize"): "299",
    "rotations": "6", ("convert", "rotations"): "4",
    "seed": "3", "seeds": "2", "select": "energy", "shard": "0/2", "sheets": "a", "shifts": "7",
    "sigmas": "12",
    "size": "48", "source": "timm:resnet18", "sources": "{folder}/rows.json", "split": "train",
    "split_seed": "3", "strategy": "ddp", "to": "torchscript",
    "top": "3", ("predict", "top"): "1",
    "units": "2", "unlabelled": "{folder}/images", "until": "blocks.2",
    "validate_every": "2",
    "width": "8", "workers": "2",
}  # fmt: skip


def found(table: dict[Any, Any], name: Call, option: str) -> Any:
    """The entry for an option of a command, of its group, or of all."""
    for key in ((" ".join(name), option), (name[0], option), option):
        if key in table:
            return table[key]
    return None


def arguments(name: Call, option: str) -> list[str]:
    """The option as it is typed."""
    (parameter,) = (p for p in COMMANDS[name].params if p.name == option)
    described = name == ("train",) and option in settings(TrainingRecipe)
    if getattr(parameter, "is_flag", False):
        # The option of a field has no default: the recipe's counts.
        on = getattr(TrainingRecipe, option) is True if described else parameter.default
        return [(parameter.secondary_opts if on else parameter.opts)[0]]
    value = found(VALUES, name, option)
    if value is None and described:
        value = str(other_value(option))
    assert value is not None, f"give VALUES an entry for {option}, of {' '.join(name)}"
    return [value] if parameter.param_type_name == "argument" else [parameter.opts[-1], value]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images, a network, a run, and files that commands must not overwrite."""
    from PIL import Image

    place = tmp_path_factory.mktemp("options")
    for data, labels in {"images": "ab", "other": "cd", "corrupt": "ab"}.items():
        for label in labels:
            (place / data / label).mkdir(parents=True)
            for index in range(6):
                file = place / data / label / f"{index}.png"
                Image.new("RGB", (40, 40), (40 * index, 0, 0)).save(file)
                if data == "corrupt":
                    file.write_bytes(file.read_bytes()[: 60 if index % 2 else None])
    for name in ("network", "second", "third"):
        network = z2cnn(2, width=4)
        network.class_names = ("a", "b")
        save_model(network, place / f"{name}.safetensors")
    (place / "mine.py").write_text(
        "import torch\n\n"
        "class Net(torch.nn.Module):\n"
        "    def forward(self, images):\n"
        "        return images[..., ::3, 1::4].square().mean((2, 3))\n"
    )
    gradients = (Image.linear_gradient("L"), Image.radial_gradient("L"), Image.new("L", (256, 256)))
    Image.merge("RGB", gradients).save(place / "photo.png")
    (place / "rows.json").write_text("{}")
    (place / "page.html").write_text("")
    (place / "run").mkdir()
    (place / "run" / "recipe.json").write_text(TrainingRecipe().to_json())
    (place / "canonicalization").mkdir()
    (place / "canonicalization" / "canonicalization.json").write_text("{}")
    (place / "evaluation").mkdir()
    (place / "evaluation" / "evaluation.json").write_text("{}")
    (place / "evaluation" / "comparison.json").write_text("{}")
    return place


def whole(value: Any) -> str:
    """A value with all that it holds, as far as it does not depend on the clock."""
    if dataclasses.is_dataclass(value):
        value = {name: each for name, each in vars(value).items() if name != "seconds"}
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {whole(each)}' for key, each in value.items())}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(whole, value))}]"
    # Where an object lies in memory says nothing, and would make any two calls differ.
    text = re.sub(r" at 0x[0-9a-f]+", "", repr(value))
    plain = type(value).__repr__ is object.__repr__ and hasattr(value, "__dict__")
    return f"{text}{whole(vars(value))}" if plain else text


@pytest.fixture
def outcome(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[Any, ...]]:
    """Runs a command as far as its work; what it handed on, printed, kept and ended with."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EQUICOLOR_DATA", str(tmp_path))
    monkeypatch.setattr(testing, "_get_command", lambda _: GROUP)
    for name, images in quick_images.IMAGES.items():
        few = images._replace(train=70, test=30)
        monkeypatch.setitem(quick_images.IMAGES, name, few)
    for variable in ("TORCHELASTIC_RUN_ID", "SLURM_STEP_NUM_TASKS", "MASTER_ADDR"):
        monkeypatch.delenv(variable, raising=False)

    def run(name: Call, given: list[str]) -> tuple[Any, ...]:
        handed: list[str] = []

        def spy(work: str, real: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                handed.append(f"{work}{whole(args)}{whole(kwargs)}")
                if work.endswith("refuse_existing"):
                    return real(*args, **kwargs)
                if work in GO_ON:
                    return GO_ON[work]
                raise Stop

            return call

        with monkeypatch.context() as patch:
            for work in WORK.get(name[0], ()):
                module, _, attribute = work.rpartition(".")
                place = importlib.import_module(module)
                patch.setattr(place, attribute, spy(work, getattr(place, attribute)))
            words = [word.format(folder=folder) for word in given]
            result = CliRunner().invoke(app, [*name, *words], prog_name="equicolor")
        error = result.exception
        assert isinstance(error, Stop | SystemExit | None), (given, repr(error))
        printed = [re.sub(r"\S+ s\b", "", text) for text in (result.stdout, result.stderr)]
        if isinstance(error, SystemExit) and result.exit_code:
            printed = ["an error"]  # in other words it is no other outcome
        kept = (folder / "kept").exists()
        shutil.rmtree(folder / "kept", ignore_errors=True)
        return result.exit_code, printed, handed, kept

    return run


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS, ids=" ".join)
def test_every_option_of_a_command_has_an_effect(
    name: Call, outcome: Callable[..., tuple[Any, ...]]
) -> None:
    usual = BASE.get(" ".join(name), BASE.get(name[0], ""))
    before: dict[str, tuple[Any, ...]] = {}
    ignored = []
    for parameter in COMMANDS[name].params:
        if parameter.name == "help":
            continue
        instead = found(INSTEAD, name, parameter.name)
        base = usual if instead is None else instead
        base = f"{base} {found(WITH, name, parameter.name) or ''}"
        if base not in before:
            before[base] = outcome(name, base.split())
        more, words = arguments(name, parameter.name), base.split()
        if parameter.param_type_name == "argument":  # in the place of that of the base
            places = [p.name for p in COMMANDS[name].params if p.param_type_name == "argument"]
            place = places.index(parameter.name)
            rest = words[place:] if base.startswith("-") else words[place + 1 :]
            changed = [*words[:place], *more, *rest]
        else:
            changed = [*words, *more]
        if outcome(name, changed) == before[base]:
            ignored.append(" ".join([*name, *changed]))
    assert not ignored


# Another value of every keyword of a network's builder.
KEYWORDS: dict[str, Any] = {
    "num_classes": 7, "width": 6, "dropout": 0.5, "rotations": 6, "ce_layers": 3, "ce_stages": 1,
    "separable": False, "coset_pool": "avg", "lifting": "hsv", "normalize": False,
    "invariant": "H", "spatial": "p4",
}  # fmt: skip


def computed(
    build: Callable[..., torch.nn.Module], shape: tuple[int, ...], **options: Any
) -> dict[str, Any]:
    """The weights of a module and what it makes of random numbers, or why it refused to.

    Not its configuration and not ``str(module)``: both hold ignored options, too.
    """
    torch.manual_seed(0)
    try:
        module, images = build(**options), torch.rand(shape)
        output = module(images)
        tensors = {**module.state_dict(), "input": images, "output": output.detach()}
        return {key: (value.dtype, value.numpy().tobytes()) for key, value in tensors.items()}
    except (NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        return {"refused": str(error)}


# The deepest ones are built by the function of the others.
@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in list_models() if not n.endswith(("101", "152"))])
def test_every_keyword_of_a_network_has_an_effect(name: str) -> None:
    build, ignored = get_builder(name), []
    shape = (2, 3, 28, 28) if name in ("cecnn", "z2cnn") else (2, 3, 32, 32)
    base: dict[str, Any] = {"width": 4, "num_classes": 3}
    if name.startswith("ce"):  # for three rotations, both liftings permute the channels
        base["rotations"] = 4
    if name == "cecnn":  # hybrids need one
        base["coset_pool"] = "max"
    before = computed(build, shape, **base)
    assert "output" in before, before
    for keyword in inspect.signature(build).parameters:
        assert keyword in KEYWORDS, f"give KEYWORDS an entry for {keyword}, of {name}"
        if computed(build, shape, **base | {keyword: KEYWORDS[keyword]}) == before:
            ignored.append(keyword)
    assert not ignored


# Another value of every argument of a layer, beside those it needs.
LAYERS: dict[str, dict[str, Any]] = {
    "CELiftConv2d": {
        "in_channels": 3, "out_channels": 4, "kernel_size": 3, "padding": 1,
        "rotations": 4,  # for three, both liftings permute the channels
    },
    "CEConv2d": {"in_channels": 4, "out_channels": 4, "kernel_size": 3, "padding": 1},
    "CEBatchNorm2d": {"num_features": 4},
    "CEMaxPool2d": {"kernel_size": 3, "padding": 1},
    "CEAvgPool2d": {"kernel_size": 3, "padding": 1},
    "CEAdaptiveAvgPool2d": {"output_size": 1},
}  # fmt: skip
ARGUMENTS: dict[str, Any] = {
    "in_channels": 6, "out_channels": 6, "kernel_size": 5, "num_features": 6, "output_size": 2,
    "stride": 2, "padding": 0, "dilation": 2, "groups": 2, "bias": False, "rotations": 6,
    "padding_mode": "circular", "device": "meta", "dtype": torch.float64, "lifting": "hsv",
    "learnable": True, "separable": False, "eps": 0.5, "momentum": 0.5,
    "affine": False, "track_running_stats": False, "p": 0.25, "inplace": True, "ceil_mode": True,
    "algorithm": "none",  # refused; another one changes how it computes, not what
    "return_indices": True, "count_include_pad": False, "divisor_override": 3, "spatial": "p4",
}  # fmt: skip


@pytest.mark.parametrize(
    "layer", [each for each in ce.__all__ if inspect.isclass(getattr(ce, each))]
)
def test_every_argument_of_a_layer_has_an_effect(layer: str) -> None:
    base, like = LAYERS.get(layer, {}), getattr(ce, layer)
    if layer == "CEMaxPool2d":  # which hands its arguments on
        like = torch.nn.MaxPool2d
    shape = (2, 3, 10, 12) if layer == "CELiftConv2d" else (2, 4, 3, 10, 12)
    before, ignored = computed(getattr(ce, layer), shape, **base), []
    assert "output" in before, before
    for name, parameter in inspect.signature(like).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue  # those of torch.nn.Module, which takes none
        assert name in ARGUMENTS, f"give ARGUMENTS an entry for {name}, of {layer}"
        if computed(getattr(ce, layer), shape, **base | {name: ARGUMENTS[name]}) == before:
            ignored.append(name)
    assert not ignored
