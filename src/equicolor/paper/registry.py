"""Every experiment, by the id that ``equicolor reproduce`` takes."""

from equicolor._text import did_you_mean
from equicolor.data.datasets import DATASETS, dataset_state
from equicolor.data.mnist import missing_files
from equicolor.paper import (
    ablations,
    brightness,
    canonicalization,
    classification,
    colormnist,
    colour_matters,
    configurations,
    conversion,
    equivariance,
    neuron_features,
    selectivity,
    space,
)
from equicolor.paper.experiment import Experiment

EXPERIMENTS: dict[str, Experiment] = {
    experiment.id: experiment
    for experiment in (
        equivariance.EXPERIMENT,
        colormnist.LONGTAILED_EXPERIMENT,
        colormnist.BIASED_EXPERIMENT,
        classification.EXPERIMENT,
        configurations.EXPERIMENT,
        selectivity.EXPERIMENT,
        neuron_features.EXPERIMENT,
        ablations.ROTATIONS,
        ablations.JITTER,
        ablations.COSETPOOL,
        conversion.EXPERIMENT,
        canonicalization.EXPERIMENT,
        brightness.EXPERIMENT,
        colour_matters.EXPERIMENT,
        space.TURNS,
        space.EXPERIMENT,
    )
}


def find_experiment(name: str) -> Experiment:
    """An experiment by its id.

    Example:
        >>> find_experiment("selectivty")
        Traceback (most recent call last):
            ...
        ValueError: unknown experiment 'selectivty'; did you mean 'selectivity'?
    """
    if name in EXPERIMENTS:
        return EXPERIMENTS[name]
    hint = did_you_mean(name, EXPERIMENTS, "see 'reproduce list'")
    raise ValueError(f"unknown experiment {name!r}; {hint}")


def missing_data(experiment: Experiment) -> list[str]:
    """The datasets of the full protocol that are not in the data folder."""
    return [
        name
        for name in experiment.data
        if (missing_files() if name == "mnist" else dataset_state(DATASETS[name]).missing)
    ]
