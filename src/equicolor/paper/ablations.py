"""The networks of the paper's ablations (appendix D).

Their rows are those of the classification experiment, with other numbers of rotations, other
strengths of hue jitter or another pooling; see :mod:`.recipe_names` for the names.
"""

from equicolor import _checks
from equicolor.data.datasets import find_dataset
from equicolor.paper.recipe_names import named_recipe
from equicolor.paper.variants import all_stages
from equicolor.training.recipes import default_recipe

__all__ = ["ABLATIONS", "ROTATIONS", "STRENGTHS", "networks"]

ABLATIONS = ("ablation-rotations", "ablation-jitter", "ablation-cosetpool")
ROTATIONS = (*range(1, 11), 12)
STRENGTHS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
_QUICK_ROTATIONS = (1, 3, 6)
_QUICK_STRENGTHS = (0.0, 0.1, 0.5)


def networks(experiment: str, dataset: str, *, quick: bool = False) -> list[str]:
    """The names of an ablation's recipes, each once.

    Args:
        experiment: one of :data:`ABLATIONS`.
        dataset: a name, or the path of a folder of class folders.
        quick: fewer.

    Example:
        >>> networks("ablation-jitter", "flowers102", quick=True)[:4]
        ['baseline', 'ce-4', 'baseline+jitter-0.1', 'ce-4+jitter-0.1']
        >>> len(networks("ablation-rotations", "flowers102"))
        21
    """
    _checks.one_of("experiment", experiment, ABLATIONS)
    find_dataset(dataset)
    full = f"ce-{all_stages(default_recipe(dataset).model)}"
    if experiment == "ablation-rotations":
        orders = _QUICK_ROTATIONS if quick else ROTATIONS
        names = [f"{lifting}-{order}" for order in orders for lifting in ("rgb", "hsv")]
    elif experiment == "ablation-jitter":
        strengths = _QUICK_STRENGTHS if quick else STRENGTHS
        names = [f"{name}+jitter-{turns:g}" for turns in strengths for name in ("baseline", full)]
    else:
        names = ["baseline", full, f"{full}+flatten", f"{full}+avg"]
    return list(dict.fromkeys(named_recipe(name, dataset).name for name in names))
