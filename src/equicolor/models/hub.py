"""Networks on the Hugging Face Hub (the ``[hub]`` extra).

Importing this module needs huggingface_hub; nothing else in the package does.
"""

from pathlib import Path
from typing import Any, Self

from huggingface_hub import ModelHubMixin, hf_hub_download
from torch import Tensor, nn

from equicolor.models.checkpoints import load_model, save_model
from equicolor.models.registry import Network
from equicolor.models.tensor_files import WEIGHTS

__all__ = ["HubModel"]

# Options of the download; the mixin passes them along with those of the network.
_DOWNLOAD = ("revision", "cache_dir", "force_download", "local_files_only", "token")


class HubModel(
    nn.Module,
    ModelHubMixin,
    library_name="equicolor",
    tags=["image-classification", "colour-equivariance", "hue-robustness"],
    license="mit",
):
    """A network with ``save_pretrained``, ``from_pretrained`` and ``push_to_hub``.

    A repository holds one file that rebuilds the network, as
    :func:`equicolor.models.save_model` writes it, with its configuration beside it.

    Args:
        network: a network built by :mod:`equicolor.models`.

    Example:
        >>> import tempfile
        >>> from equicolor.models import cecnn
        >>> folder = tempfile.mkdtemp()
        >>> HubModel(cecnn(10, rotations=6)).save_pretrained(folder)
        >>> HubModel.from_pretrained(folder).network.config["rotations"]
        6
    """

    def __init__(self, network: Network) -> None:
        if not isinstance(network, Network):
            raise TypeError(
                "HubModel expects a network of equicolor.models, or one that was converted or "
                f"canonicalised, got {type(network).__name__}"
            )
        super().__init__()
        self.network = network
        # What the mixin writes as config.json.
        self._hub_mixin_config = dict(network.config)

    def forward(self, images: Tensor) -> Tensor:
        """Images ``[B, 3, H, W]`` to logits ``[B, num_classes]``."""
        return self.network(images)

    def _save_pretrained(self, save_directory: Path) -> None:
        save_model(self.network, save_directory / WEIGHTS)

    @classmethod
    def _from_pretrained(cls, *, model_id: str, **options: Any) -> Self:
        download = {key: options.pop(key) for key in _DOWNLOAD if key in options}
        if options:
            raise TypeError(f"from_pretrained takes no network options, got {', '.join(options)}")
        if Path(model_id).is_dir():
            return cls(load_model(Path(model_id, WEIGHTS))).eval()
        path = hf_hub_download(repo_id=model_id, filename=WEIGHTS, **download)
        return cls(load_model(path)).eval()
