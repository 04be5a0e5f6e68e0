"""Networks: every architecture of the paper, plain, equivariant and hybrid."""

from equicolor.models.checkpoints import load_model, save_model
from equicolor.models.ciconv import ciconv_resnet18, ciconv_resnet44
from equicolor.models.cost import Cost, cost
from equicolor.models.loading import load_network
from equicolor.models.reference import load_reference
from equicolor.models.registry import Network, create_model, list_models
from equicolor.models.resnet import (
    ce_resnet18,
    ce_resnet34,
    ce_resnet44,
    ce_resnet50,
    ce_resnet101,
    ce_resnet152,
    resnet18,
    resnet34,
    resnet44,
    resnet50,
    resnet101,
    resnet152,
)
from equicolor.models.tensor_files import CheckpointError
from equicolor.models.widths import matched_widths
from equicolor.models.z2cnn import cecnn, z2cnn

__all__ = [
    "CheckpointError",
    "Cost",
    "Network",
    "ce_resnet18",
    "ce_resnet34",
    "ce_resnet44",
    "ce_resnet50",
    "ce_resnet101",
    "ce_resnet152",
    "cecnn",
    "ciconv_resnet18",
    "ciconv_resnet44",
    "cost",
    "create_model",
    "list_models",
    "load_model",
    "load_network",
    "load_reference",
    "matched_widths",
    "resnet18",
    "resnet34",
    "resnet44",
    "resnet50",
    "resnet101",
    "resnet152",
    "save_model",
    "z2cnn",
]
