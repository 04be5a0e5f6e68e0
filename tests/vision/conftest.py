"""torchvision and timm: their tests run where they are installed (``make vision``)."""

import importlib.util

import torch

collect_ignore = ["families.py"]  # holds no tests, and is imported by those that need it

if importlib.util.find_spec("torchvision") is not None and torch.version.cuda is None:
    # torchvision's wheel for Linux is built for CUDA: beside a CPU build of torch its operators
    # cannot be loaded. Declaring the two that its import asks for makes the rest of it usable.
    LIBRARY = torch.library.Library("torchvision", "DEF")  # keeps the declarations alive
    for name in ("nms", "qnms"):
        LIBRARY.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
