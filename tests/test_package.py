"""The package as its users see it: what importing costs, and the recorded public names."""

import ast
import importlib.resources
import inspect
import re
import sys
import tomllib
from pathlib import Path

import pytest
import torch

import equicolor
import equicolor.color
import equicolor.groups
import equicolor.light
import equicolor.models
import equicolor.models.export
import equicolor.nn
import equicolor.nn.functional
import equicolor.testing
from equicolor._packages import how_to_install
from equicolor.data import default_cache

ROOT = Path(__file__).parents[1]
OPTIONAL = {
    "PIL", "huggingface_hub", "kornia", "lightning", "matplotlib", "mlxtend", "onnx", "rich",
    "safetensors", "scipy", "sklearn", "timm", "torchvision", "typer",
}  # fmt: skip

# Changing a line here is changing the public interface.
SURFACE = {
    equicolor: {
        "HueGroup": "(order)",
        "convert": "(model, rotations=3, lifting='hsv', until=None, init='pretrained', "
        "coset_pool='max', *, normalization='auto', takes='images', image_size=None, "
        "match_parameters=False, source=None, check_range=True, verify=True, spatial='p1')",
        "adapt": "(model, stem='auto', rotations=6, lifting='hsv', coset_pool='max', *, "
        "normalization='auto', image_size=None, check_range=True)",
        "canonicalize": "(model, rotations=12, select='learned', modes=1, gate=None, *, "
        "preset='default', normalization='auto', differentiable=False, image_size=None, "
        "source=None)",
    },
    equicolor.HueGroup: {"matrix": "(self, k)"},
    equicolor.color: {
        "rgb_to_hsv": "(images)",
        "hsv_to_rgb": "(images)",
        "shift_hue": "(images, turns)",
        "rotate_hue": "(images, turns, clip=False)",
        "rotation_matrix": "(turns)",
    },
    equicolor.groups: {
        "HueGroup": "(order)",
        "SpatialGroup": "(name='p1')",
        "CyclicAlgorithm": "(analysis, filters, synthesis)",
        "cyclic_algorithm": "(n, *, dtype=torch.float64)",
        "cyclic_products": "(n)",
        "dense_algorithm": "(n, *, dtype=torch.float64)",
    },
    equicolor.light: {
        "srgb_to_linear": "(images)",
        "linear_to_srgb": "(images)",
        "scale_channels": "(images, gains, clip=False)",
        "cast_light": "(images, turns, strength, clip=False)",
        "change_brightness": "(images, stops, clip=False)",
        "change_gamma": "(images, gamma)",
        "change_saturation": "(images, factor, clip=False)",
        "balance_light": "(images, power=1.0)",
    },
    equicolor.nn: {
        "CELiftConv2d": "(in_channels, out_channels, kernel_size, stride=1, padding=0, dilation=1, "
        "bias=True, padding_mode='zeros', *, rotations=3, lifting='rgb', learnable=False, "
        "spatial='p1', device=None, dtype=None)",
        "CEConv2d": "(in_channels, out_channels, kernel_size, stride=1, padding=0, dilation=1, "
        "groups=1, bias=True, padding_mode='zeros', *, rotations=3, separable=True, "
        "algorithm='auto', spatial='p1', device=None, dtype=None)",
        "CEBatchNorm2d": "(num_features, eps=1e-05, momentum=0.1, affine=True, "
        "track_running_stats=True, device=None, dtype=None, *, spatial='p1')",
        "CEDropout2d": "(p=0.5, inplace=False, *, spatial='p1')",
        "CosetMaxPool": "(*, spatial='p1')",
        "CosetAvgPool": "(*, spatial='p1')",
        "fold": "(model, form='auto')",
        "set_algorithm": "(model, algorithm)",
    },
    equicolor.nn.functional: {
        "hue_orbit": "(images, rotations, lifting='rgb', *, matrices=None)",
        "ce_lift_conv2d": "(images, weight, bias=None, stride=1, padding=0, dilation=1, *, "
        "rotations=3, lifting='rgb', matrices=None, spatial='p1')",
        "ce_conv2d": "(x, weight, pointwise_weight=None, bias=None, stride=1, padding=0, "
        "dilation=1, groups=1, *, algorithm='auto', tables=None, spatial='p1')",
        "spatial_bank": "(weight, spatial, *, of_images=False)",
        "coset_max_pool": "(x, spatial='p1')",
        "coset_avg_pool": "(x, spatial='p1')",
        "coset_flatten": "(x)",
    },
    equicolor.models: {
        "z2cnn": "(num_classes=10, *, width=20, dropout=0.3)",
        "cecnn": "(num_classes=10, *, width=17, rotations=3, ce_layers=7, coset_pool=None, "
        "lifting='rgb', dropout=0.3, spatial='p1')",
        **{
            f"{kind}resnet{depth}": f"(num_classes={10 if depth == 44 else 1000}, *, "
            f"rotations={rotations}, ce_stages=None, separable=True, coset_pool='max', "
            "width=None, lifting='rgb', normalize=True, spatial='p1')"
            for kind, rotations in (("", 1), ("ce_", 3))
            for depth in (18, 34, 44, 50, 101, 152)
        },
        "Cost": "(parameters, macs)",
        "cost": "(model, input_size=224)",
        "create_model": "(name, *, gray=False, **options)",
        "list_models": "()",
        "load_model": "(path, *, device='cpu')",
        "load_network": "(spec, *, pretrained=True, device='cpu')",
        "load_reference": "(model, checkpoint)",
        "matched_widths": "(depth, rotations, ce_stages, separable=True, *, spatial='p1')",
        "save_model": "(model, path)",
    },
    equicolor.models.export: {
        "export": "(model, path, to=None, *, input_size=224, form='auto', tolerance=0.0001, "
        "overwrite=False)",
    },
    equicolor.testing: {
        "equivariance_error": "(module, images, rotations=3, action='rgb', *, output='auto', "
        "spatial='p1')",
        "assert_equivariant": "(module, images, rotations=3, action='rgb', *, output='auto', "
        "tolerance=1e-05, spatial='p1')",
    },
}
# These take what their torch base takes, so the signature is torch's to change.
INHERITED = {
    "CEMaxPool2d": "MaxPool2d",
    "CEAvgPool2d": "AvgPool2d",
    "CEAdaptiveAvgPool2d": "AdaptiveAvgPool2d",
    "CosetFlatten": "Module",
}


@pytest.fixture
def run(start_script):
    """Run a script in a fresh interpreter that finds the same package; its output."""

    def call(script, *folders):
        done = start_script(script, *folders)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return call


@pytest.fixture
def fails(start_script):
    """Run a script that fails; what it says."""

    def call(script, *folders):
        done = start_script(script, *folders)
        assert done.returncode == 1
        return done.stderr

    return call


def signature(function):
    """The signature as text, without annotations."""
    full = inspect.signature(function)
    bare = [p.replace(annotation=p.empty) for p in full.parameters.values()]
    return str(full.replace(parameters=bare, return_annotation=full.empty))


@pytest.mark.parametrize(
    ("owner", "name", "expected"),
    [(owner, name, text) for owner, names in SURFACE.items() for name, text in names.items()],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_public_signatures_are_as_recorded(owner, name, expected):
    assert signature(getattr(owner, name)) == expected


@pytest.mark.parametrize(("name", "plain"), INHERITED.items())
def test_layers_with_an_inherited_signature_are_torch_layers(name, plain):
    assert issubclass(getattr(equicolor.nn, name), getattr(torch.nn, plain))


@pytest.mark.parametrize(
    "module",
    [
        equicolor,
        equicolor.color,
        equicolor.groups,
        equicolor.light,
        equicolor.models,
        equicolor.models.export,
        equicolor.nn,
        equicolor.nn.functional,
        equicolor.testing,
    ],
    ids=lambda module: module.__name__,
)
def test_public_names_exist_and_are_documented(module):
    recorded = set(SURFACE[module]) | (set(INHERITED) if module is equicolor.nn else set())
    assert recorded <= set(module.__all__)
    for name in set(module.__all__) - {"__version__"}:
        assert inspect.getdoc(getattr(module, name)), name


def test_dir_shows_what_is_public():
    import equicolor.data  # which is not

    assert dir(equicolor) == sorted(equicolor.__all__)
    assert "data" not in dir(equicolor)
    page = (ROOT / "docs/architecture.md").read_text()
    (line,) = re.findall(r"^\| `equicolor` \| (.+) \|$", page, re.MULTILINE)
    assert {*re.findall(r"`(\w+)`", line)} == set(equicolor.__all__) - {"__version__"}


@pytest.mark.slow
def test_public_packages_need_no_import_of_their_own(run, fails):
    script = "import equicolor as e; print(*map(type, (e.models, e.evaluation, e.analysis)))"
    assert run(script).count("<class 'module'>") == 3
    assert "has no attribute 'modles'" in fails("import equicolor; equicolor.modles")


def test_the_group_has_its_documented_attributes():
    assert equicolor.HueGroup(4).order == 4
    assert equicolor.HueGroup(4).matrices.shape == (4, 3, 3)


def test_version_is_a_release_number():
    assert re.fullmatch(r"\d+\.\d+\.\d+", equicolor.__version__)


def test_type_hints_are_shipped():
    assert importlib.resources.files("equicolor").joinpath("py.typed").is_file()


@pytest.mark.slow
def test_importing_needs_torch_and_numpy_alone_and_changes_no_global_state(run):
    # Refusing the imports shows that nothing needs them, even where nothing would load them.
    script = f"""
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {OPTIONAL!r}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Refuse())
import torch
before = torch.get_rng_state()
import equicolor
assert torch.equal(torch.get_rng_state(), before)
print(torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_default_device())
layer = equicolor.nn.CELiftConv2d(3, 2, 3)
print(tuple(layer(torch.rand(1, 3, 4, 4)).shape))
print({OPTIONAL!r} & {{name.split(".")[0] for name in sys.modules}})
"""
    assert run(script).splitlines() == ["torch.float32 True cpu", "(1, 2, 3, 2, 2)", "set()"]


def test_these_tests_keep_out_of_the_users_cache(tmp_path_factory):
    assert default_cache().is_relative_to(tmp_path_factory.getbasetemp())


def imported(path):
    """The packages that a module of ours imports or looks for."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module
    yield from re.findall(r"(?:find_spec|import_vision)\(\"([\w.]+)\"\)", path.read_text())


def test_every_package_that_is_used_is_in_the_extra_that_errors_name():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {
        extra: {re.match(r"[\w-]+", package)[0] for package in packages}
        for extra, packages in project["optional-dependencies"].items()
    }
    used = {name.split(".")[0] for path in ROOT.glob("src/**/*.py") for name in imported(path)}
    # torch brings Triton, where it can; who logs to Weights & Biases has wandb.
    used -= {*sys.stdlib_module_names, "equicolor", "torch", "numpy", "triton", "wandb"}
    assert {"lightning", "sklearn", "submitit", "timm"} <= used
    called = {"PIL": "pillow", "sklearn": "scikit-learn"}
    for package in used:
        extra = re.search(r"\.\[(\w+)\]", how_to_install(package))[1]
        assert called.get(package, package) in extras[extra]


@pytest.mark.parametrize("extra", ["train", "hub"])
def test_extras_that_save_networks_install_safetensors(extra):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    packages = project["optional-dependencies"][extra]
    assert "safetensors" in {re.match(r"[\w-]+", package)[0] for package in packages}


@pytest.mark.slow
def test_an_old_torch_is_refused_with_a_sentence(run):
    versions = "2.10.2+cpu", "1.13.1", "2.11.0a0+git", "2.15.0"
    script = f"""
import os, torch
for version in {versions!r}:
    if not os.fork():  # torch is imported once, and our package by every process
        torch.__version__ = version
        try:
            import equicolor
            print(version, "is fine", flush=True)
        except ImportError as error:
            print(error, flush=True)
        os._exit(0)
    os.wait()
"""
    told = (
        "equicolor needs torch 2.11 or newer, and torch {0} is installed: pip install 'torch>=2.11'"
    )
    assert run(script).splitlines() == [
        *(told.format(version) for version in versions[:2]),
        *(f"{version} is fine" for version in versions[2:]),
    ]


def test_the_oldest_torch_is_the_one_that_is_refused_below():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "torch>=2.11" in project["dependencies"]


# As torchvision is: its import registers functions for operators that its library defines.
TORCHVISION = """
import torch

@torch.library.register_fake("torchvision::nms")
def nms(dets, scores, iou_threshold):
    return dets

@torch.library.register_fake("torchvision::qnms")
def qnms(dets, scores, iou_threshold):
    return dets
"""


@pytest.fixture
def torchvision(tmp_path):
    """A torchvision whose library was built for another torch, and the folder it is in."""
    folder = tmp_path / "torchvision"
    folder.mkdir()
    (folder / "__init__.py").write_text(TORCHVISION)
    (folder / "_C.so").write_text("not a library")
    return folder


@pytest.mark.slow
def test_training_works_beside_a_torchvision_that_does_not_load(torchvision, run, fails):
    # lightning imports torchvision wherever it is installed, and so do these scripts.
    assert "torchvision::nms does not exist" in fails("import torchvision", torchvision.parent)
    script = """
import equicolor.training, torch, torchvision
try:
    torch.ops.torchvision.nms(torch.zeros(1, 4), torch.zeros(1), 0.5)
except NotImplementedError:
    print("nms is not there")
"""
    assert run(script, torchvision.parent) == "nms is not there\n"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["torchvision", "timm"])
def test_a_broken_torchvision_is_named_with_its_cause_and_the_command_that_mends_it(
    name, torchvision, run
):
    (torchvision / "__init__.py").write_text("raise RuntimeError('other CUDA')")
    (torchvision.parent / "timm.py").write_text("import torchvision")
    script = f"""
import torch
torch.__version__ = "2.13.0+cpu"
from equicolor.models.foreign import load_foreign
try:
    load_foreign("{name}:resnet18")
except ImportError as error:
    print(error)
"""
    assert run(script, torchvision.parent) == (
        "torchvision is installed, but not for torch 2.13.0+cpu (other CUDA): pip uninstall -y "
        "torchvision && pip install torch==2.13.0 torchvision --index-url "
        "https://download.pytorch.org/whl/cpu\n"
    )
