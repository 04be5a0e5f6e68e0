"""Fold an equivariant network for inference and export.

Batch norms are folded into the convolutions before them. The equivariant layers are then
written in one of three forms, the first two with plain torch modules only:

* **dense**: features are ``[B, C * n, H, W]`` and every layer is one ordinary convolution
  with expanded filters. The simplest graph; n² times the multiplications of a plain layer.
* **cyclic**: features are ``[n * B, C, H, W]``, rotation-major, and every hidden layer is
  about 1.5 n ordinary convolutions between two small mixes of the rotations.
* **fused**, for GPUs: first layers and residual blocks become modules of
  :mod:`equicolor.nn._fused.frozen`: convolutions and Triton kernels, with filters and norms
  prepared once.

Networks made by :func:`equicolor.convert` keep their rotations in the batch; see
:mod:`equicolor.nn.folding.batched`.

The network is traced with torch.fx, so it may be anything torch.fx can trace: the networks
of this package, or your own made of its layers.
"""

import contextlib
import copy

import torch
from torch import fx, nn

from equicolor import _checks
from equicolor.groups import cyclic_products
from equicolor.nn.conv import CEConv2d, CELiftConv2d
from equicolor.nn.folding.forms import CyclicRewriter, DenseRewriter
from equicolor.nn.folding.fused import all_can_fuse, convolutions_outside, find_stages, fuse
from equicolor.nn.folding.rewriter import Rewriter
from equicolor.nn.folding.space import expand_spatial
from equicolor.nn.folding.trace import (
    allow_any_memory,
    bake_parametrizations,
    fold_batch_norms,
    is_impure,
    refuse_custom_modules,
    trace,
)

PLAIN_FORMS = ("auto", "dense", "cyclic")  # on the CPU, "auto" is dense or cyclic
FORMS = (*PLAIN_FORMS, "fused")


# Torch does not count changes of tensors made in inference mode; see _fused/frozen.py.
@torch.inference_mode(False)
def fold(model: nn.Module, form: str = "auto") -> nn.Module:
    """Make a copy of a network for inference: it computes the same, faster, and cannot be trained.

    Args:
        model: a network of equivariant and ordinary layers that torch.fx can trace. If it is
            canonicalised, selector and network are folded separately; one that cannot be folded
            stays as it is.
        form: ``"dense"``, ``"cyclic"`` or ``"fused"`` as described above. ``"auto"`` is the
            fused form for networks on a GPU whose equivariant convolutions are all in first
            layers and residual blocks that can be fused. For all other networks it is dense for
            up to three rotations and in float16, as :func:`equicolor.nn.functional.ce_conv2d` does,
            else cyclic, where the dense form would cost more than three times the multiplications.

    Returns:
        A network in eval mode. In the dense and cyclic forms it contains only torch modules. In
        the fused form it contains modules of this package. These also run on a CPU, under
        ``torch.compile`` and with gradients, but not faster than the network itself. They
        follow changes of their weights, except changes through ``.data``, which torch does not
        count: call ``folded.load_state_dict(folded.state_dict())`` after those.

    Example:
        >>> from equicolor.models import cecnn
        >>> model = cecnn(10, rotations=4).eval()
        >>> images = torch.rand(2, 3, 28, 28)
        >>> torch.allclose(fold(model)(images), model(images), atol=1e-5)
        True
    """
    _checks.one_of("form", form, FORMS)
    refuse_custom_modules(model)
    model = copy.deepcopy(model).eval().requires_grad_(False)
    parts: tuple[str, ...] | None = getattr(model, "folded_parts", None)
    if parts is None:
        return _fold_graph(model, form)
    for name in parts:
        # A part that cannot be folded, such as a transformer, stays as it is. Folding it may fail
        # when it is half changed, so a copy is folded.
        with contextlib.suppress(ValueError):
            part = copy.deepcopy(model.get_submodule(name))
            refuse_custom_modules(part)  # such as one whose forward was assigned
            model.set_submodule(name, _fold_graph(part, form))
    return model


def _fold_graph(model: nn.Module, form: str) -> fx.GraphModule:
    """Fold a network that torch.fx can trace; the network is changed."""
    bake_parametrizations(model)
    expand_spatial(model)
    traced = trace(model)
    allow_any_memory(traced.graph)
    may_fuse = form == "fused" or (form == "auto" and all_can_fuse(traced))
    stages = find_stages(traced) if may_fuse else []
    if stages and not convolutions_outside(traced, stages):
        form = "fused"
    if form == "auto":
        layers = [m for m in model.modules() if isinstance(m, CEConv2d | CELiftConv2d)]
        n = max((layer.rotations for layer in layers), default=1)
        in_range = all(layer.weight.dtype != torch.float16 for layer in layers)
        form = "cyclic" if in_range and n * n > 3 * cyclic_products(n) else "dense"
    if form == "fused":
        fuse(Rewriter(traced), stages)
        fold_batch_norms(traced)  # of the plain layers
    else:
        fold_batch_norms(traced)
        (DenseRewriter if form == "dense" else CyclicRewriter)(traced).run()
    traced.graph.eliminate_dead_code(lambda node: is_impure(traced, node))
    traced.delete_all_unused_submodules()
    traced.graph.lint()
    traced.recompile()
    return traced.eval()
