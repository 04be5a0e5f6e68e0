"""Every figure and table of the paper, by the id that ``equicolor reproduce`` knows it by."""

from collections.abc import Sequence
from dataclasses import dataclass

from equicolor._text import did_you_mean
from equicolor.data.datasets import DATASETS, dataset_state
from equicolor.data.mnist import missing_files

__all__ = ["EXPERIMENTS", "Experiment", "find_experiment", "missing_data"]


@dataclass(frozen=True)
class Experiment:
    """A figure or table.

    Attributes:
        name: its id.
        title: what it is called in print.
        paper: where it is in the paper; empty for ours.
        what: what it measures, in a few words.
        data: the datasets of the full protocol.
        full: about how long the full protocol takes on one H200.
        quick: about how long ``--quick`` takes on two CPU cores.
        finding: what the paper says of it.
    """

    name: str
    title: str
    paper: str
    what: str
    data: tuple[str, ...]
    full: str
    quick: str
    finding: str


EXPERIMENTS = {
    experiment.name: experiment
    for experiment in (
        Experiment(
            "equivariance", "Equivariance of the layers", "", "random networks over the hue circle",
            (), "seconds", "½ min",
            "A property of the layers, which needs no training; the paper proves it (section 3) "
            "and does not plot it.",
        ),
        Experiment(
            "colormnist-longtailed", "Long-tailed ColorMNIST", "Fig. 2a, App. B",
            "30 classes of unequal size: shapes shared over colours", ("mnist",), "6 min", "3 min",
            "CECNN 91.35 % against 71.59 % of a plain network; whatever cannot tell colours "
            "apart stays below a third. Weighing classes makes no difference; hue jitter takes "
            "CECNN to the level of the pooled one.",
        ),
        Experiment(
            "colormnist-biased", "Biased ColorMNIST", "Fig. 2b, App. B",
            "every digit has its own hue, with more or less spread", ("mnist",), "19 min", "3 min",
            "CECNN is above the plain network at every spread of the hue; the pooled CECNN leads "
            "from σ = 48° on.",
        ),
        Experiment(
            "classification", "Image classification", "Tables 1, 3, Fig. 1b, App. C",
            "real images, original and with shifted hues",
            ("flowers102", "cifar10", "cifar100", "stl10", "oxford_pet", "caltech101",
             "stanford_cars", "imagenet"),
            "2 h a seed and dataset", "2 min",
            "Equivariant networks are on par with plain ones on the original test sets and far "
            "more robust to hue shifts; with hue jitter they are best of all.",
        ),
        Experiment(
            "configurations", "Configurations", "Table 4", "parameters and multiply-accumulates",
            (), "seconds", "½ min",
            "Networks of about equal parameters; their multiply-accumulates grow by 1.6 to 2.9 "
            "times. The MACs are a counter's figure, not what is executed: see the documentation.",
        ),
        Experiment(
            "selectivity", "Colour selectivity", "Fig. 4",
            "how colour-selective units are, and what equivariance gains by it", ("flowers102",),
            "40 min a dataset", "1 min",
            "Datasets whose networks are colour-selective gain from equivariance up to late "
            "stages, others do not.",
        ),
        Experiment(
            "neuron-features", "Neuron features", "Fig. 5, App. C",
            "what units respond to, a row for each rotation", ("flowers102",), "10 min", "½ min",
            "Each row of a neuron feature shows the same shape in another colour.",
        ),
        Experiment(
            "ablation-rotations", "Number of rotations", "App. D",
            "1 to 12 rotations, both liftings, three kinds of hue shift", ("flowers102",),
            "4 h", "2 min",
            "More rotations make more peaks and a higher accuracy. Under rotations that are "
            "clipped to the RGB cube the peaks differ in height; without clipping they are equal.",
        ),
        Experiment(
            "ablation-jitter", "Strength of hue jitter", "App. D",
            "plain and equivariant networks with hue jitter of 0 to 0.5 turns", ("flowers102",),
            "1 h a seed", "1 min",
            "A little jitter (0.1) already helps the equivariant network everywhere; beyond 0.2 "
            "its curve is flat. The plain network's single peak only widens.",
        ),
        Experiment(
            "ablation-cosetpool", "Coset pooling", "App. D",
            "the rotations pooled, averaged or flattened", ("flowers102",), "25 min a seed",
            "1 min",
            "Without pooling the equivariant network behaves like the plain one.",
        ),
        Experiment(
            "conversion", "Conversion of a trained network", "",
            "a plain network made equivariant, without training and after a little",
            ("flowers102",), "15 min", "1 min",
            "Not in the paper.",
        ),
    )
}  # fmt: skip


def find_experiment(name: str) -> Experiment:
    """An experiment by its id.

    Raises:
        ValueError: if there is none, with the nearest ids.

    Example:
        >>> find_experiment("ablation-jitter").paper
        'App. D'
        >>> find_experiment("clasification")
        Traceback (most recent call last):
            ...
        ValueError: unknown experiment 'clasification'; did you mean 'classification'?
    """
    if name in EXPERIMENTS:
        return EXPERIMENTS[name]
    hint = did_you_mean(name, EXPERIMENTS, "see 'reproduce list'")
    raise ValueError(f"unknown experiment {name!r}; {hint}")


def missing_data(experiment: Experiment) -> Sequence[str]:
    """The datasets of the full protocol that are not in the data folder.

    Example:
        >>> missing_data(EXPERIMENTS["configurations"])
        []
    """
    absent = []
    for name in experiment.data:
        if name == "mnist":
            there = not missing_files()
        else:
            there = not dataset_state(DATASETS[name]).missing
        if not there:
            absent.append(name)
    return absent
