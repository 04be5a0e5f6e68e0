"""The paper's ablations (appendix D): number of rotations, strength of jitter, coset pooling.

Their rows are those of the classification experiment, with other numbers of rotations, other
strengths of hue jitter or another pooling; see :mod:`.recipe_names` for the names.
"""

import functools
from collections.abc import Callable

from equicolor.evaluation.hue_sweep import ACTIONS
from equicolor.paper import ablation_results, image_jobs
from equicolor.paper.experiment import Experiment, Job, Scope
from equicolor.paper.recipe_names import named_recipe
from equicolor.paper.variants import all_stages
from equicolor.training.recipes import default_recipe

__all__ = ["COSETPOOL", "JITTER", "ROTATIONS"]

_ORDERS, _QUICK_ORDERS = (*range(1, 11), 12), (1, 3, 6)
_STRENGTHS, _QUICK_STRENGTHS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5), (0.0, 0.1, 0.5)

# The names of an ablation's networks, of the one that is equivariant in all stages.
_Networks = Callable[[str, bool], list[str]]


def _rotations(full: str, quick: bool) -> list[str]:
    orders = _QUICK_ORDERS if quick else _ORDERS
    return [f"{lifting}-{order}" for order in orders for lifting in ("rgb", "hsv")]


def _jitter(full: str, quick: bool) -> list[str]:
    strengths = _QUICK_STRENGTHS if quick else _STRENGTHS
    return [f"{name}+jitter-{turns:g}" for turns in strengths for name in ("baseline", full)]


def _cosetpool(full: str, quick: bool) -> list[str]:
    return ["baseline", full, f"{full}+flatten", f"{full}+avg"]


def _plan(scope: Scope, networks: _Networks, actions: tuple[str, ...] = ()) -> list[Job]:
    jobs = []
    for dataset in image_jobs.main_datasets(scope):
        place = image_jobs.place(dataset, scope)
        full = f"ce-{all_stages(default_recipe(place).model)}"
        names = [named_recipe(name, place).name for name in networks(full, scope.quick)]
        jobs += image_jobs.training_jobs(dataset, names, scope, actions)
    return jobs


_ablation = functools.partial(
    Experiment,
    paper="App. D",
    data=("flowers102",),
    options=("datasets", "seeds", "epochs", "size"),
)
ROTATIONS = _ablation(
    id="ablation-rotations",
    title="Number of rotations",
    finding="More rotations make more peaks and a higher accuracy. Under rotations that are "
    "clipped to the RGB cube the peaks differ in height; without clipping they are equal.",
    what="1 to 12 rotations, both liftings, three kinds of hue shift",
    full="4 h",
    quick="2 min",
    plan=functools.partial(_plan, networks=_rotations, actions=ACTIONS),
    show=ablation_results.show_rotations,
)
JITTER = _ablation(
    id="ablation-jitter",
    title="Strength of hue jitter",
    finding="A little jitter (0.1) already helps the equivariant network everywhere; beyond 0.2 "
    "its curve is flat. The plain network's single peak only widens.",
    what="plain and equivariant networks with hue jitter of 0 to 0.5 turns",
    full="1 h a seed",
    quick="1 min",
    plan=functools.partial(_plan, networks=_jitter),
    show=ablation_results.show_jitter,
)
COSETPOOL = _ablation(
    id="ablation-cosetpool",
    title="Coset pooling",
    finding="Without pooling the equivariant network behaves like the plain one.",
    what="the rotations pooled, averaged or flattened",
    full="25 min a seed",
    quick="1 min",
    plan=functools.partial(_plan, networks=_cosetpool),
    show=ablation_results.show_pooling,
)
