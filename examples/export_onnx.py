"""Export a trained network to a file that any ONNX runtime executes.

A checkpoint says how to build its network. Folding turns the network into plain convolutions that
include the batch norms. The export is verified before the file is kept.

    python examples/export_onnx.py [FOLDER]
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime
import torch

from equicolor.models import ce_resnet44, load_model, save_model
from equicolor.models.export import export
from equicolor.nn import fold


def main(folder: Path) -> None:
    """Build, save, load, fold, export, and run without PyTorch."""
    torch.manual_seed(0)
    network = ce_resnet44(10, width=8)
    optimizer = torch.optim.SGD(network.parameters(), 0.01)
    for _ in range(2):  # your training goes here
        loss = network(torch.rand(8, 3, 32, 32)).logsumexp(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    checkpoint = save_model(network, folder / "ce_resnet44.safetensors")
    loaded = load_model(checkpoint)  # in eval mode; the file says how to build it
    print(f"{checkpoint.name}: {loaded.config['rotations']} hues, width {loaded.config['width']}")

    folded = fold(loaded)
    kinds = {type(module).__name__ for module in folded.modules() if not list(module.children())}
    print(f"folded into {', '.join(sorted(kinds - {'Module'}))}")

    report = export(loaded, folder / "ce_resnet44.onnx", input_size=32)
    print(f"{report.path.name}: {report.operations} nodes, error {report.relative_error:.0e}")

    session = onnxruntime.InferenceSession(report.path)
    images = np.random.default_rng(0).random((5, 3, 32, 32), dtype=np.float32)
    (logits,) = session.run(["logits"], {"images": images})
    print(f"onnxruntime: {images.shape} -> {logits.shape}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp()))
