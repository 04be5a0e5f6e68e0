"""Looking into networks: receptive fields, colour selectivity and neuron features.

For any network that takes images, plain or equivariant, of this package or not.
"""

from equicolor.analysis.activations import (
    RandomHues,
    TopActivations,
    activations_at,
    top_activations,
)
from equicolor.analysis.equivariance import layer_equivariance
from equicolor.analysis.filters import FirstFilters, first_filters
from equicolor.analysis.hue_rows import HueRows, hue_rows
from equicolor.analysis.layers import (
    Layer,
    find_layers,
    layers_left_out,
    receptive_fields,
    stage_ends,
)
from equicolor.analysis.neuron_features import NeuronFeatures, neuron_features
from equicolor.analysis.receptive_field import ReceptiveField
from equicolor.analysis.selectivity import Selectivity, selectivity, selectivity_index

__all__ = [
    "FirstFilters",
    "HueRows",
    "Layer",
    "NeuronFeatures",
    "RandomHues",
    "ReceptiveField",
    "Selectivity",
    "TopActivations",
    "activations_at",
    "find_layers",
    "first_filters",
    "hue_rows",
    "layer_equivariance",
    "layers_left_out",
    "neuron_features",
    "receptive_fields",
    "selectivity",
    "selectivity_index",
    "stage_ends",
    "top_activations",
]
