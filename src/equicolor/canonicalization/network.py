"""A canonicalised network: it sees every image in its natural hue."""

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from equicolor import _checks
from equicolor._observed import is_captured, is_traced
from equicolor.canonicalization.fit import Fit, collect, fit_selector, load_unlabelled
from equicolor.color import shift_hue
from equicolor.conversion.network import compute_same
from equicolor.data.images import ImageSet
from equicolor.evaluation.runner import evaluating
from equicolor.light import balance_light
from equicolor.models.layers import Normalize
from equicolor.models.registry import Network
from equicolor.models.selector import HueSelector, find_modes, hue_selector
from equicolor.nn.batched import RangeCheck, confidence
from equicolor.reporting.progress import Progress

Score = Callable[[Tensor], Tensor]

# The size of images and the first width of learned selectors.
PRESETS: dict[str, dict[str, int]] = {
    "fast": {"size": 64, "width": 16},
    "default": {"size": 72, "width": 32},
    "accurate": {"size": 128, "width": 32},
}
SELECTOR_OPTIONS = "rotations", "size", "width"
# How sure a network is of its class, [B], by its logits [B, C].
_SURENESS: dict[str, Score] = {
    "energy": lambda logits: logits.logsumexp(1),
    "entropy": lambda logits: (logits.softmax(1) * logits.log_softmax(1)).sum(1),
    # The largest log-softmax. Computed directly, it rounds to 0 for all confident logits.
    "confidence": lambda logits: F.logsigmoid(confidence(logits)[:, 0]),
}
SELECTIONS = ("learned", *_SURENESS)
# Ways to take the colour of the light away, with the power of equicolor.light.balance_light.
LIGHTS = {"gray-world": 1.0, "shades-of-gray": 6.0}
_NAME = "a canonicalised network"
_OUT_OF_RANGE = (
    f"{_NAME} takes images in [0, 1] and normalises them itself, but got {{came}}: "
    "leave out your own normalisation, and divide 8-bit images by 255"
)


@dataclass(frozen=True)
class Options:
    """The arguments of :func:`equicolor.canonicalize`, and what is known of the network."""

    select: str | None  # None if no hue shift is taken back
    light: str | None  # one of LIGHTS; None if the light is left as it is
    rotations: int
    modes: int
    gate: float | None
    differentiable: bool
    size: int  # of a learned selector
    width: int  # of a learned selector
    # Of the normalisation in front of the network; None if there is none.
    mean: list[float] | None
    std: list[float] | None
    # How images are cut for the network.
    image_size: int
    resize: int | None

    def __post_init__(self) -> None:
        for name in (*SELECTOR_OPTIONS, "image_size"):
            _checks.positive_int(name, getattr(self, name))
        if self.resize is not None:
            _checks.positive_int("resize", self.resize)
        if not isinstance(self.differentiable, bool):
            raise TypeError(f"differentiable must be True or False, got {self.differentiable!r}")
        if (self.mean is None) != (self.std is None):
            raise ValueError(f"mean and std belong together, got {self.mean} and {self.std}")
        if self.std is not None and not min(self.std) > 0:
            raise ValueError(f"std must be positive, got {self.std}")
        if self.select is not None and self.rotations == 1:
            raise ValueError("rotations must be 2 or more, to compare hues; got 1")
        if self.select is None and self.light is None:
            raise ValueError("select and light are both None: nothing would be taken back")
        if self.light is not None:
            _checks.one_of("select", self.light, tuple(LIGHTS))
        most = max(self.rotations // 3, 1)
        if _checks.positive_int("modes", self.modes) > most:
            raise ValueError(
                f"modes must be at most {most} for {self.rotations} rotations, got {self.modes}"
            )
        if self.gate is not None:
            _checks.probability("gate", self.gate)
            if self.modes == 1:
                raise ValueError(
                    f"gate={self.gate} says when one mode is enough, so modes must be 2 or more"
                )


class Canonicalized(Network):
    r"""A network that sees every image in its natural hue; made by :func:`equicolor.canonicalize`.

    A selector finds the angle :math:`c(x)` by which the hue of an image is shifted. The angle moves
    with the hue, :math:`c(T_a x) = c(x) + a`, so :math:`f(T_{-c(x)} x)` is invariant for any
    network :math:`f`: exactly for shifts by multiples of :math:`1/n`, nearly so between them. If
    the two best scores of an image are equal, rounding decides. Images without colour pass
    unchanged.

    If the light is balanced, that comes first. It takes back gains of the channels exactly, but
    then only hue shifts by thirds of a turn are exact: balancing does not commute with others.

    Args:
        network: any network of images; it is not changed.
        options: see :class:`Options`.
        select: a selector that was trained before, or a function that scores images
            :math:`[B, 3, H, W]` in [0, 1] by how natural they look, :math:`[B]`.

    Attributes:
        network: the network itself, not a copy.
        selector: the learned selector; None if there is none.
        fitted: how :meth:`fit` trained it; None if it did not.
    """

    def __init__(
        self, network: nn.Module, options: Options, select: Score | HueSelector | None = None
    ) -> None:
        super().__init__()
        self.options, self.network = options, network
        self.selector: HueSelector | None = None
        self.score: Score | None = None
        if isinstance(select, HueSelector):
            self.selector = select
        elif select is not None:
            self.score = select
        elif options.select == "learned":
            self.selector = hue_selector(**{key: getattr(options, key) for key in SELECTOR_OPTIONS})
        self._untrained = self.selector is not None and not _is_trained(self.selector.state_dict())
        self.fitted: Fit | None = None
        self.normalize: nn.Module = nn.Identity()
        if options.mean is not None and options.std is not None:
            self.normalize = Normalize(tuple(options.mean), tuple(options.std))
        self.image_size, self.resize = options.image_size, options.resize
        self._check = RangeCheck(_OUT_OF_RANGE)
        self.training = network.training  # not train(), which would change modes in the network
        if self.selector is not None:
            self.selector.eval()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *args)
        self._untrained = self._untrained and not _is_trained(state_dict, f"{prefix}selector.")

    def train(self, mode: bool = True) -> Self:
        """Set the mode of the network; the selector is in eval mode, except while it is fitted."""
        super().train(mode)
        if self.selector is not None:
            self.selector.eval()
        return self

    def forward(self, images: Tensor | Sequence[Tensor], *args: Any, **kwargs: Any) -> Any:
        """Images in [0, 1] to what the network returns for them in their natural hues.

        Args:
            images: ``[B, 3, H, W]``; or a list of images ``[3, H, W]``, for a network that takes
                such a list, as torchvision's detectors do.
            args, kwargs: are passed on, such as the targets of a detector in training.

        Returns:
            The network's own outputs. With several modes, the logarithms of class probabilities
            instead of logits.
        """
        if isinstance(images, Tensor) and self.options.modes > 1:
            return self._mixed(self._balanced(images), *args, **kwargs)
        if isinstance(images, Tensor):
            return self.network(self.normalize(self.natural(images)), *args, **kwargs)
        if not isinstance(images, (list, tuple)):
            raise TypeError(
                f"{_NAME} expects images [B, 3, H, W] as a tensor, or a list of images [3, H, W]; "
                f"got {_shape(images)}"
            )
        if self.options.modes > 1:
            raise ValueError(
                f"modes={self.options.modes} averages class probabilities of a batch of images, "
                "but got a list: take modes=1"
            )
        natural = [self.normalize(self.natural(_as_batch(image))[0]) for image in images]
        return self.network(natural, *args, **kwargs)

    def natural(self, images: Tensor) -> Tensor:
        """Images ``[B, 3, H, W]`` in [0, 1] as the network sees them, before its normalisation."""
        images = self._balanced(images)
        if self.options.select is None:
            return images
        return shift_hue(images, -self._modes(images)[0][:, 0])

    def angle(self, images: Tensor) -> Tensor:
        """By how many turns, from -0.5 to 0.5, the hues of images ``[B, 3, H, W]`` are shifted.

        Returns:
            One number an image, ``[B]``.

        Example:
            >>> import equicolor
            >>> from equicolor.color import shift_hue
            >>> from equicolor.models import resnet18
            >>> def warmth(images):  # in place of a selector that was trained
            ...     return (images[:, 0] - images[:, 2]).mean((1, 2))
            >>> network = equicolor.canonicalize(resnet18(10, width=4), 6, select=warmth)
            >>> sunset = torch.rand(1, 3, 64, 64) * torch.tensor([1.0, 0.5, 0.2]).view(3, 1, 1)
            >>> moved = network.angle(shift_hue(sunset, 1 / 6)) - network.angle(sunset)
            >>> round(float(moved) % 1, 3)
            0.167
        """
        if self.options.select is None:
            raise ValueError(f"select={self.options.light!r} takes no hue shift back")
        return self._modes(self._balanced(images))[0][:, 0]

    def _balanced(self, images: Tensor) -> Tensor:
        """Check images, and balance their light if the options say so."""
        _checks.image_batch(_NAME, images)
        if 0 in images.shape[2:]:
            raise ValueError(f"{_NAME} expects images with pixels, got {list(images.shape)}")
        self._check(images)
        light = self.options.light
        return images if light is None else balance_light(images, LIGHTS[light])

    def scores(self, images: Tensor) -> Tensor:
        """How natural balanced images ``[B, 3, H, W]`` look, shifted by -k/n turns: ``[B, n]``."""
        if self.selector is not None:
            if self._untrained and not _cannot_branch(images):  # it may have been trained since
                self._untrained = not _is_trained(self.selector.state_dict())
            if self._untrained and not images.is_meta:  # where only costs are counted
                raise ValueError(
                    f"the selector of {_NAME} is not trained: call fit(images) first, or pass "
                    "a trained one as select"
                )
            weight = next(self.selector.parameters())
            scores: Tensor = self.selector(images.to(weight.dtype))
        else:
            # Hue by hue, which needs no more memory than the network itself.
            n = self.options.rotations
            scores = torch.stack([self._score(shift_hue(images, -k / n)) for k in range(n)], 1)
            if self.score is not None and not _cannot_branch(images) and scores.isnan().any():
                bad = int(scores.isnan().any(1).sum())
                raise ValueError(
                    f"select={self.options.select!r} must score how natural images look, but gave "
                    f"NaN for {bad} of {len(images)}"
                )
        return _at_least_float32(scores)

    def _score(self, images: Tensor) -> Tensor:
        """Scores ``[B]`` of images as they are."""
        if self.score is not None:
            scores = self.score(images)
            if not isinstance(scores, Tensor) or scores.shape != images.shape[:1]:
                raise ValueError(
                    f"select must give one score an image, [{len(images)}], got {_shape(scores)}"
                )
            return scores
        # In eval mode: a network in training must not learn from images that are only scored.
        with evaluating(self.network) if self.network.training else contextlib.nullcontext():
            logits = self.network(self.normalize(images))
        if not isinstance(logits, Tensor) or logits.ndim != 2:
            raise ValueError(
                f"select={self.options.select!r} asks how sure the network is of a class, which "
                f"needs logits [B, classes], but it returns {_shape(logits)}: take 'learned'"
            )
        return _SURENESS[str(self.options.select)](_at_least_float32(logits))

    def _modes(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Angles of balanced images and their probabilities, both ``[B, modes]``."""
        if self.options.differentiable:
            return find_modes(self.scores(images), self.options.modes)
        # Exported programs cannot hold a change of the gradient's mode.
        with contextlib.nullcontext() if _cannot_branch(images) else torch.no_grad():
            angles, probabilities = find_modes(self.scores(images), self.options.modes)
        return angles.detach(), probabilities.detach()

    def _mixed(self, images: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Logarithms of class probabilities, averaged over the modes."""
        angles, weights = self._modes(images)
        gate = self.options.gate
        # The gradient of the logarithm is infinite at 0.
        logs = weights.clamp(min=torch.finfo(weights.dtype).tiny).log()
        if gate is not None:  # by the best mode's probability, which no hue shift changes
            unsure = weights[:, :1] < gate
            rest = logs[:, 1:].masked_fill(~unsure, -torch.inf)
            logs = torch.cat((logs[:, :1], rest), 1)
        shares = logs.log_softmax(1)
        mixed = self._log_probabilities(images, angles[:, 0], shares[:, 0], *args, **kwargs)
        # Further arguments may hold something for every image, so they go with all images.
        together = gate is None or args or kwargs or _cannot_branch(images)
        for turns, share in zip(angles.T[1:], shares.T[1:], strict=True):
            if together:
                other = self._log_probabilities(images, turns, share, *args, **kwargs)
                mixed = torch.logaddexp(mixed, other)
            elif len(rows := unsure[:, 0].nonzero()[:, 0]):
                parts = images[rows], turns[rows], share[rows]
                other = self._log_probabilities(*parts, *args, **kwargs)
                mixed = mixed.index_copy(0, rows, torch.logaddexp(mixed[rows], other))
        return mixed

    def _log_probabilities(
        self, images: Tensor, turns: Tensor, log_share: Tensor, *args: Any, **kwargs: Any
    ) -> Tensor:
        """Log probabilities for images shifted back by ``turns``, plus the log of their share."""
        natural = self.normalize(shift_hue(images, -turns))
        logits = self.network(natural, *args, **kwargs)
        if not isinstance(logits, Tensor) or logits.ndim < 2:
            raise ValueError(
                f"modes={self.options.modes} averages class probabilities, which needs logits "
                f"[B, classes, ...], but the network returns {_shape(logits)}: take modes=1"
            )
        return logits.log_softmax(1) + log_share.to(logits).view(-1, *[1] * (logits.ndim - 1))

    def fit(
        self,
        images: Tensor | Iterable[Any] | ImageSet | str | Path,
        *,
        epochs: int | None = None,
        batch_size: int = 128,
        learning_rate: float = 3e-3,
        seed: int = 0,
        checkpoint: str | Path | None = None,
        progress: Progress | None = None,
    ) -> Self:
        """Train the selector on images in their natural hues; labels are not needed.

        The network is neither changed nor run. On a CPU, the same images and settings give the
        same weights.

        Args:
            images: a tensor :math:`[N, 3, H, W]` in [0, 1] or uint8; batches of such images, or
                pairs that begin with one, as data loaders give them; a dataset by name, for its
                training images; or a folder, for all images in it and below.
            epochs: by default 240, or fewer that make 4,000 steps.
            batch_size, learning_rate: of AdamW, with one cycle of the learning rate.
            seed: of the weights, the order of the images and their crops.
            checkpoint: a file for the state; after an interruption, the same call resumes from it.
            progress: called with (steps done, steps in all).

        Returns:
            Itself.

        Example:
            >>> import equicolor
            >>> from equicolor.models import z2cnn
            >>> network = equicolor.canonicalize(z2cnn(10), rotations=6, preset="fast")
            >>> network.fit(torch.rand(32, 3, 28, 28), epochs=1, batch_size=16).fitted.images
            32
        """
        if self.selector is None:
            how = self.options.select or self.options.light
            raise ValueError(f"select={how!r} has nothing to train; 'learned' has")
        if isinstance(self.selector, fx.GraphModule):
            raise ValueError("a folded network cannot be trained: fit it before it is folded")
        if isinstance(images, (str, Path)):
            images = load_unlabelled(images)
        collected = collect(images, self.selector.size, self._balanced)
        try:
            self.fitted = fit_selector(
                self.selector,
                collected,
                epochs=epochs,
                batch_size=batch_size,
                learning_rate=learning_rate,
                seed=seed,
                checkpoint=None if checkpoint is None else Path(checkpoint),
                progress=progress,
            )
        finally:  # a fit that ends early leaves new weights
            self._untrained = not _is_trained(self.selector.state_dict())
            self.fitted = None if self._untrained else self.fitted
        return self

    @property
    def info(self) -> dict[str, Any]:
        """How hues are selected, what that costs and how the selector was trained."""
        names = "select", "light", "rotations", "modes", "gate"
        info: dict[str, Any] = {name: getattr(self.options, name) for name in names}
        asks_network = self.score is None and self.options.select in _SURENESS
        info["passes"] = self.options.modes + asks_network * self.options.rotations
        if self.selector is not None:
            info["selector_parameters"] = sum(p.numel() for p in self.selector.parameters())
            info["selector_size"] = self.options.size
            info["fitted"] = None if self.fitted is None else self.fitted._asdict()
        return info

    @property
    def folded_parts(self) -> tuple[str, ...]:
        """What :func:`equicolor.nn.fold` folds: torch.fx cannot trace the whole."""
        return ("network",) if self.selector is None else ("selector", "network")

    def same_outputs(self, rebuilt: Network) -> bool:
        """Whether a network with equal names and shapes of weights computes the same from them."""
        return compute_same(self, rebuilt)


def _is_trained(state: Mapping[str, Any], prefix: str = "") -> bool:
    """Whether a selector, by its keys with this prefix, was trained: batch norms count batches."""
    end = ".num_batches_tracked"
    batches = [v for k, v in state.items() if k.startswith(prefix) and k.endswith(end)]
    return any(count for count in batches if not count.is_meta)


def _at_least_float32(values: Tensor) -> Tensor:
    """Values in at least float32: in half precision, scores of several hues would be equal."""
    return values if values.dtype == torch.float64 else values.float()


def _shape(value: object) -> str:
    """The shape of a tensor, or the type of another value, for errors."""
    return str(list(value.shape)) if isinstance(value, Tensor) else f"a {type(value).__name__}"


def _as_batch(image: Tensor) -> Tensor:
    """An image ``[3, H, W]`` of a list as a batch of one."""
    _checks.rgb_images(_NAME, image)
    if image.ndim != 3:
        raise ValueError(f"{_NAME} takes a list of images [3, H, W], got {list(image.shape)}")
    return image.unsqueeze(0)


def _cannot_branch(images: Tensor) -> bool:
    """Whether code must not depend on values: it is traced, captured or on the meta device."""
    return is_traced() or is_captured(images) or images.is_meta
