"""The hue sweep against a loop over single images, and its effects on the network."""

import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from equicolor.color import rotate_hue, shift_hue
from equicolor.evaluation import ACTIONS, HUE_ACTIONS, HueSweep, hue_shifts, hue_sweep, runner
from equicolor.evaluation.actions import action_named
from equicolor.evaluation.hue_sweep import sweep_actions
from equicolor.light import (
    balance_light,
    cast_light,
    change_brightness,
    change_gamma,
    change_saturation,
)
from equicolor.models import ce_resnet18, cecnn, z2cnn

SHIFT = {
    "hsv": shift_hue,
    "rgb": rotate_hue,
    "rgb-clip": lambda image, turns: rotate_hue(image, turns, clip=True),
    "cast": lambda image, turns: cast_light(image, turns, 0.3, clip=True),
    "gamma": change_gamma,
    "brightness": lambda image, stops: change_brightness(image, stops, clip=True),
    "saturation": lambda image, factor: change_saturation(image, factor, clip=True),
}
COLOURS = [action for action in ACTIONS if action != "turn"]  # what acts on single pixels
# The values of a sweep, as the documentation gives them.
RANGE = {action: [step / 36 - 0.5 for step in range(37)] for action in (*HUE_ACTIONS, "cast")} | {
    "gamma": [2 ** (step / 18 - 1) for step in range(37)],
    "brightness": [step / 9 - 2 for step in range(37)],
    "saturation": [step / 18 for step in range(37)],
}


class MeanColour(nn.Module):
    """Five classes by fixed directions of the mean colour; records its inputs."""

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.directions = nn.Parameter(torch.randn(3, 5, dtype=dtype))
        self.norm = nn.BatchNorm2d(3, affine=False)
        self.seen: list[Tensor] = []
        self.modes: list[tuple[bool, bool, bool]] = []

    def forward(self, images: Tensor) -> Tensor:
        self.seen.append(images)
        self.modes.append((self.training, self.norm.training, torch.is_grad_enabled()))
        # The tone counts, too: by the hue alone, nothing would tell saturations apart.
        means = images.mean((2, 3))
        return (means - 0.8 * means.mean(1, keepdim=True)) @ self.directions


@pytest.fixture
def batches() -> list[tuple[Tensor, Tensor]]:
    """Twenty-three images of a few colours each, in batches of eight; class 4 has none."""
    colours = torch.rand(23, 3, 1, 1, dtype=torch.float64)
    images = (0.8 * colours + 0.2 * torch.rand(23, 3, 6, 5, dtype=torch.float64)).clamp(0, 1)
    labels = torch.randint(4, (23,))
    return list(zip(images.split(8), labels.split(8), strict=True))


def slow_counts(model: nn.Module, batches: list[tuple[Tensor, Tensor]], turns: list[float], action):
    """Counts by their definition, one image and one shift at a time."""
    correct, changed = torch.zeros(len(turns), 5).long(), torch.zeros(len(turns), 5).long()
    original, counts = torch.zeros(5).long(), torch.zeros(5).long()
    for images, labels in batches:
        for image, label in zip(images, labels.tolist(), strict=True):
            untouched = model(image[None]).argmax().item()
            counts[label] += 1
            original[label] += untouched == label
            for row, turn in enumerate(turns):
                answer = model(SHIFT[action](image[None], turn)).argmax().item()
                correct[row, label] += answer == label
                changed[row, label] += answer != untouched
    return counts, original, correct, changed


@pytest.mark.parametrize("action", COLOURS)
@pytest.mark.parametrize("shifts", [37, [0.1, 0.7, 2.25]])
def test_counts_match_a_loop_over_images(batches, action: str, shifts) -> None:
    if shifts != 37 and action in (*HUE_ACTIONS, "cast"):  # in turns
        shifts = [0.1, 0.7, -0.75]
    model = MeanColour().eval()
    sweep = hue_sweep(model, batches, shifts, action)
    turns = RANGE[action] if shifts == 37 else shifts
    torch.testing.assert_close(sweep.shifts.tolist(), turns, atol=1e-12, rtol=0)
    counts, original, correct, changed = slow_counts(model, batches, turns, action)
    assert torch.equal(sweep.counts, counts)
    assert torch.equal(sweep.correct_original, original)
    assert torch.equal(sweep.correct, correct)
    assert torch.equal(sweep.changed, changed)
    assert changed.sum() > 0  # else the comparison would mean little
    # The properties that users read.
    assert sweep.original == pytest.approx(100 * original.sum() / 23)
    assert sweep.accuracy.tolist() == pytest.approx((100 * correct.sum(1) / 23).tolist())
    assert sweep.mean == pytest.approx(float(100 * correct.sum() / 23 / len(turns)))
    known = counts > 0
    expected = (100 * correct / counts)[:, known]
    torch.testing.assert_close(sweep.per_class[:, known], expected.double(), rtol=1e-6, atol=0)
    assert sweep.per_class[:, 4].isnan().all()
    drop = 100 * original / counts - (100 * correct / counts)[sweep.distinct].mean(0)
    torch.testing.assert_close(sweep.drop[known], drop[known].double(), rtol=1e-5, atol=1e-5)
    expected = (100 * changed / counts)[:, known]
    torch.testing.assert_close(
        sweep.predictions_changed[:, known], expected.double(), rtol=1e-6, atol=0
    )


def test_several_actions_need_the_images_once(batches) -> None:
    model = MeanColour()
    # Iterators go through once.
    together = sweep_actions(model, iter(batches), 5, iter(ACTIONS))  # type: ignore[arg-type]
    assert list(together) == list(ACTIONS)
    for action, sweep in together.items():
        alone = hue_sweep(model, batches, 5, action)
        assert torch.equal(sweep.correct, alone.correct)
        assert torch.equal(sweep.changed, alone.changed)
    assert sweep_actions(model, batches, 5, ()) == {}
    assert list(sweep_actions(model, batches, 5)) == list(HUE_ACTIONS)  # the others are asked for


def test_original_images_reach_the_network_unchanged(batches) -> None:
    model = MeanColour()
    hue_sweep(model, batches[:1], [0.0, 1 / 3])
    untouched, back, shifted = model.seen
    assert torch.equal(untouched, batches[0][0])
    torch.testing.assert_close(back, untouched)
    torch.testing.assert_close(shifted, shift_hue(untouched, 1 / 3))


def test_shifts_are_those_of_shift_hue_in_single_precision() -> None:
    images = torch.rand(4, 3, 8, 8)
    model = MeanColour(torch.float32)
    for action in COLOURS:
        model.seen.clear()
        values = (0.3, -0.5) if action in (*HUE_ACTIONS, "cast") else (0.3, 1.5)
        hue_sweep(model, [(images, torch.zeros(4).long())], values, action)
        for seen, value in zip(model.seen[1:], values, strict=True):
            assert torch.equal(seen, SHIFT[action](images, value))


def test_turns_are_all_quarters_and_their_mirror_images() -> None:
    class Corner(nn.Module):
        """The class is the brightest of four corners."""

        def forward(self, images: Tensor) -> Tensor:
            return images.mean(1)[:, [0, 0, -1, -1], [0, -1, -1, 0]]

    images = torch.zeros(1, 3, 8, 8)
    images[:, :, :4, :4] = 1
    sweep = hue_sweep(Corner(), [(images, torch.tensor([0]))], 37, "turn")
    assert sweep.shifts.tolist() == list(range(8)) == sweep.distinct
    # Counter-clockwise from the upper left; mirrored, it begins at the upper right.
    assert sweep.accuracy.tolist() == [100, 0, 0, 0, 0, 100, 0, 0]
    show = action_named("turn").show
    assert [show(element) for element in (1, 6)] == ["90°", "180°, mirrored"]
    assert hue_sweep(Corner(), [(images, torch.tensor([3]))], [1], "turn").mean == 100


def test_the_ends_of_the_circle_count_once_among_distinct_shifts(batches) -> None:
    sweep = hue_sweep(MeanColour(), batches)
    assert sweep.distinct == list(range(36))
    assert sweep.mean_distinct == pytest.approx(float(sweep.accuracy[:36].mean()))
    assert sweep.accuracy[0] == sweep.accuracy[36]
    turns = [0.0, 1.0, 0.5, -0.5, 1 / 3, -2 / 3, 1e-12]
    assert hue_sweep(MeanColour(), batches, turns).distinct == [0, 2, 4]


def test_values_on_a_line_are_distinct_unless_they_are_equal(batches) -> None:
    for action in ("gamma", "brightness", "saturation"):
        sweep = hue_sweep(MeanColour(), batches, action=action)
        assert sweep.distinct == list(range(37))
        assert sweep.mean_distinct == sweep.mean
        repeated = hue_sweep(MeanColour(), batches, [0.5, 1.5, 0.5 + 1e-12], action)
        assert repeated.distinct == [0, 1]
    # The light goes around the circle, as hues do.
    assert hue_sweep(MeanColour(), batches, action="cast").distinct == list(range(36))


@pytest.mark.parametrize(("action", "value"), [("gamma", 1), ("brightness", 0), ("saturation", 1)])
def test_the_middle_of_a_sweep_changes_nothing(batches, action: str, value: float) -> None:
    sweep = hue_sweep(MeanColour(), batches, 3, action)
    assert sweep.shifts[1] == value
    assert sweep.changed[1].sum() == 0 < sweep.changed[[0, 2]].sum()


def test_other_actions_stay_in_the_cube() -> None:
    model = MeanColour()
    batch = torch.rand(8, 3, 6, 5, dtype=torch.float64), torch.zeros(8).long()
    sweep_actions(model, [batch], 5, ACTIONS[len(HUE_ACTIONS) :])
    assert min(seen.min() for seen in model.seen) >= 0
    assert max(seen.max() for seen in model.seen) <= 1


def test_balanced_light_withstands_casts_that_do_not_clip(batches) -> None:
    batches = [(0.85 * images, labels) for images, labels in batches]  # 1.3 * linear(0.85) < 1

    class Balanced(MeanColour):
        def forward(self, images: Tensor) -> Tensor:
            return super().forward(balance_light(images))

    torch.manual_seed(1)
    plain = hue_sweep(MeanColour(), batches, 13, "cast")
    torch.manual_seed(1)
    balanced = hue_sweep(Balanced(), batches, 13, "cast")
    assert plain.changed.sum() > 0
    assert balanced.changed.sum() == 0


def test_means_by_hand() -> None:
    sweep = HueSweep(
        "hsv",
        torch.tensor([-0.5, 0.0, 0.5]).double(),
        counts=torch.tensor([4, 0, 6]),
        correct_original=torch.tensor([4, 0, 3]),
        correct=torch.tensor([[1, 0, 1], [4, 0, 3], [1, 0, 1]]),
        changed=torch.tensor([[3, 0, 6], [0, 0, 0], [3, 0, 6]]),
    )
    assert sweep.original == 70
    assert sweep.accuracy.tolist() == pytest.approx([20, 70, 20])
    assert sweep.mean == pytest.approx(110 / 3)
    assert sweep.mean_distinct == pytest.approx(45)
    assert sweep.original_per_class[[0, 2]].tolist() == pytest.approx([100, 50])
    assert sweep.drop[[0, 2]].tolist() == pytest.approx([37.5, 50 - (100 / 6 + 50) / 2])
    assert sweep.predictions_changed[0, [0, 2]].tolist() == pytest.approx([75, 100])


def test_an_equivariant_network_is_robust_at_its_own_shifts(make_network) -> None:
    images = torch.rand(24, 3, 12, 12, dtype=torch.float64)
    network = make_network(4, "hsv", head="avg").double().eval()
    with torch.no_grad():
        network[-1].bias -= network(images).mean(0)  # so that every class gets some images
        labels = network(images).argmax(1)
    assert len(labels.unique()) > 2
    exact = hue_sweep(network, [(images, labels)], [-0.5, -0.25, 0.0, 0.25])
    assert exact.original == exact.mean == 100
    assert exact.changed.sum() == 0
    between = hue_sweep(network, [(images, labels)], [0.125, 0.375])
    assert between.mean < 100


# --- effects on the network --------------------------------------------------------------------


def test_modes_are_restored(batches) -> None:
    model = MeanColour().train()
    model.norm.eval()  # a frozen batch norm stays frozen
    hue_sweep(model, batches, 3)
    assert set(model.modes) == {(False, False, False)}
    assert (model.training, model.norm.training) == (True, False)
    benchmark = torch.backends.cudnn.benchmark
    with pytest.raises(ValueError, match=r"in \[0, 1\]"):
        hue_sweep(model, [(images + 1, labels) for images, labels in batches])
    assert (model.training, model.norm.training) == (True, False)
    assert torch.backends.cudnn.benchmark == benchmark
    assert torch.is_grad_enabled()


def test_autocast_is_for_the_network_alone() -> None:
    seen = []

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 5)

        def forward(self, images: Tensor) -> Tensor:
            logits = self.linear(images.mean((2, 3)))
            seen.append((images, logits.dtype))
            return logits

    images = torch.rand(4, 3, 8, 8)
    batches = [(images, torch.zeros(4).long())]
    hue_sweep(Network(), batches, [0.3], "rgb", autocast=torch.bfloat16)
    assert {dtype for _, dtype in seen} == {torch.bfloat16}
    assert torch.equal(seen[1][0], rotate_hue(images, 0.3))  # not rounded to bfloat16
    seen.clear()
    hue_sweep(Network(), batches, [0.3])
    assert {dtype for _, dtype in seen} == {torch.float32}


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_memory_layout_of_the_images_is_kept(layout: torch.memory_format) -> None:
    model = MeanColour(torch.float32)
    images = torch.rand(4, 3, 8, 8).contiguous(memory_format=layout)
    for action in ACTIONS:
        hue_sweep(model, [(images, torch.zeros(4).long())], 3, action)
    assert all(seen.is_contiguous(memory_format=layout) for seen in model.seen)


@pytest.mark.parametrize("stored", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("weights", [torch.bfloat16, torch.float32, torch.float64])
def test_images_get_the_dtype_of_the_network(stored: torch.dtype, weights: torch.dtype) -> None:
    network = z2cnn(3, width=4).to(weights)
    images = torch.rand(2, 3, 28, 28).to(stored)
    sweep = hue_sweep(network, [(images, torch.tensor([0, 2]))], 3)
    assert sweep.counts.tolist() == [1, 0, 1]


def test_networks_without_parameters_work(batches) -> None:
    class Brightest(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return images.mean((2, 3))

    batches = [(images, labels % 3) for images, labels in batches]
    assert hue_sweep(Brightest(), batches, 5).counts.sum() == 23


def test_progress_counts_every_pass(batches) -> None:
    calls: list[tuple[int, int | None]] = []
    hue_sweep(MeanColour(), batches, 5, progress=lambda *call: calls.append(call))
    assert calls == [(done, 18) for done in range(1, 19)]
    calls.clear()
    hue_sweep(MeanColour(), iter(batches), 5, progress=lambda *call: calls.append(call))
    assert calls == [(done, None) for done in range(1, 19)]


def test_no_waiting_within_the_sweep() -> None:
    """A number that Python asks of a tensor makes a GPU wait; how many must not depend on data."""

    class Waits(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.count = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            waits = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "bincount")
            self.count += any(name in str(func) for name in waits)
            return func(*args, **(kwargs or {}))

    def waits(count: int, shifts: int) -> int:
        batch = torch.rand(4, 3, 8, 8), torch.arange(4)
        with Waits() as mode:
            sweep_actions(MeanColour(torch.float32), [batch] * count, shifts, ACTIONS)
        return mode.count

    assert waits(1, 2) == waits(3, 7)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_no_waiting_on_a_gpu() -> None:
    model = MeanColour(torch.float32).cuda()

    def waits(count: int) -> int:
        batch = torch.rand(4, 3, 8, 8, device="cuda"), torch.arange(4, device="cuda")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                sweep_actions(model, [batch] * count, 7, ACTIONS)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        return len(caught)

    waits(1)
    assert waits(1) == waits(4)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
def test_a_gpu_answers_the_same_with_graphs(autocast, recwarn) -> None:
    model = ce_resnet18(7, width=8, lifting="hsv").cuda()
    batches = [(torch.rand(size, 3, 64, 64), torch.arange(size) % 7) for size in (16, 16, 5)]
    plain = nn.Sequential(model)  # not one of ours, so not recorded
    results = [hue_sweep(network, batches, 7, autocast=autocast) for network in (model, plain)]
    agree = (results[0].correct - results[1].correct).abs().sum()
    assert int(agree) <= 1  # a tie may go either way
    assert not [one for one in recwarn if "graphs" in str(one.message)]


@pytest.mark.parametrize(
    ("build", "folds"),
    [(lambda: ce_resnet18(7, width=4), True), (lambda: cecnn(7), False), (lambda: z2cnn(7), False)],
)
def test_networks_are_folded_where_that_changes_no_number(build, folds: bool) -> None:
    model = build().eval()
    folded = runner._folded(model)
    assert (folded is not model) == folds
    images = torch.rand(2, 3, model.image_size, model.image_size)
    assert torch.equal(folded(images), model(images))


# --- bad input ---------------------------------------------------------------------------------


class Constant(nn.Module):
    """Gives a fixed answer."""

    def __init__(self, answer) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, images: Tensor):
        return self.answer


GOOD = torch.rand(2, 3, 4, 4), torch.tensor([0, 1])


@pytest.mark.parametrize(
    ("answer", "batches", "message"),
    [
        (torch.eye(2), [], "batches holds no images"),
        (torch.eye(2), [(GOOD[0].mul(255).byte(), GOOD[1])], "divide 8-bit images by 255"),
        (torch.eye(2), [(GOOD[0][0], GOOD[1])], "add the batch dimension"),
        (torch.eye(2), [(2 * GOOD[0] - 1, GOOD[1])], "images in .0, 1., but 2 are not"),
        (torch.eye(2), [(GOOD[0], GOOD[1][:1])], r"one whole number per image .*\[1\]"),
        (torch.eye(2), [(GOOD[0], GOOD[1].float())], r"one whole number per .*torch.float32 \[2\]"),
        (torch.eye(2), [(GOOD[0], GOOD[1] + 1)], "has 2 outputs, but 1 labels lie outside 0 to 1"),
        (torch.eye(2), [(GOOD[0], GOOD[1] - 1)], "has 2 outputs, but 1 labels lie outside 0 to 1"),
        (torch.eye(2), [GOOD, (GOOD[0], GOOD[1] + 5)], "has 2 outputs, but 2 labels lie outside"),
        (torch.eye(2)[:1], [GOOD], r"logits \[2, classes\] .*got \[1, 2\]"),
        (torch.zeros(2), [GOOD], r"logits \[2, classes\] .*got \[2\]"),
        ({"logits": torch.eye(2)}, [GOOD], "logits .*got a dict"),
        (torch.full((2, 2), torch.nan), [GOOD], "logits are NaN for 2 images"),
    ],
)
def test_bad_batches_and_networks(answer, batches, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        hue_sweep(Constant(answer), batches, 3)


@pytest.mark.parametrize(
    ("shifts", "action", "message"),
    [
        (37, "hue", "action must be one of 'hsv', 'rgb', 'rgb-clip', 'cast', .*; got 'hue'"),
        (37, "rotate", "got 'rotate', which is called 'rgb' now"),
        (0, "hsv", "shifts must be at least 1, got 0"),
        (1, "hsv", "shifts must be at least 2"),
        (True, "hsv", "shifts must be an int, got bool"),
        (0.5, "hsv", "shifts must be an int, got float"),
        ([], "hsv", "a list of finite turns"),
        ([0.1, float("nan")], "hsv", "a list of finite turns"),
        ([[0.1]], "hsv", "a list of finite turns"),
        ([-120, -60, 0, 60, 120], "hsv", "shifts are in turns, .* 120 degrees are 1/3; got -120"),
        (torch.tensor([0.5, 1.5]), "rgb-clip", "shifts are in turns, from -1 to 1: .* got 1.5"),
        (1, "gamma", "shifts must be at least 2, to span from end to end; got 1"),
        ([0.5, 0.0], "gamma", "change_gamma expects a gamma above 0, got 0.0"),
        ([float("inf")], "brightness", "a list of finite stops"),
        ([], "saturation", "a list of finite factors"),
        ([-0.5], "saturation", "expects a factor of at least 0, got -0.5"),
        ([0.5], "turn", "turn expects whole numbers from 0 to 7, got 0.5"),
        ([8], "turn", "p4m has the elements 0 to 7, got element 8"),
    ],
)
def test_bad_shifts_and_actions(shifts, action: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        hue_sweep(Constant(torch.eye(2)), [GOOD], shifts, action)


def test_one_list_of_values_is_not_for_actions_of_several_units() -> None:
    network = Constant(torch.eye(2))
    with pytest.raises(ValueError, match=r"values are turns and gammas, got \[0.5\]"):
        sweep_actions(network, [GOOD], [0.5], ("hsv", "cast", "gamma"))
    with pytest.raises(ValueError, match="shifts must be at least 1, got 0"):
        sweep_actions(network, [GOOD], 0, ())
    sweeps = sweep_actions(network, [GOOD], [0.5], ("hsv", "cast"))  # both are turns
    assert [sweep.shifts.tolist() for sweep in sweeps.values()] == [[0.5], [0.5]]


def test_default_shifts_are_the_papers() -> None:
    expected = torch.linspace(-0.5, 0.5, 37, dtype=torch.float64)
    torch.testing.assert_close(hue_shifts(), expected)
    assert hue_shifts()[18] == 0
    assert hue_shifts(torch.tensor([0.25, 0.5])).tolist() == [0.25, 0.5]


def red_sweep(action: str = "hsv", shifts=(0.5, 0.0, -0.25)) -> HueSweep:
    """Half of four images are recognised as they are, and none or one under two shifts."""
    counts = torch.tensor([2, 2])
    correct = torch.tensor([[0, 0], [1, 1], [1, 0]])
    values = torch.tensor(shifts, dtype=torch.float64)
    return HueSweep(action, values, counts, torch.tensor([1, 1]), correct, torch.zeros(3, 2))


def test_a_sweep_is_short_in_a_notebook() -> None:
    assert repr(red_sweep()) == (
        "HueSweep('hsv', 3 turns, 4 images: original 50.0 %, mean 25.0 %, lowest 0.0 % at 180°)"
    )
    assert repr(red_sweep("gamma", (0.5, 1, 2))) == (
        "HueSweep('gamma', 3 gammas, 4 images: original 50.0 %, mean 25.0 %, lowest 0.0 % at 0.50)"
    )


@pytest.fixture
def pyplot(monkeypatch: pytest.MonkeyPatch):
    """Matplotlib's pyplot without windows, its figures closed afterwards."""
    monkeypatch.setenv("MPLBACKEND", "agg")
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("agg")
    yield pyplot
    pyplot.close("all")


def test_sweeps_are_drawn_into_one_figure(pyplot) -> None:
    axes = red_sweep().plot()
    assert axes.figure.number in pyplot.get_fignums()  # so that a notebook shows it
    curve, original = axes.get_lines()
    assert curve.get_xdata().tolist() == [-90, 0, 180]  # in order, in degrees
    assert list(curve.get_ydata()) == [25, 50, 0]
    assert list(original.get_ydata()) == [50, 50]
    assert red_sweep().plot(axes, label="US$ and C$") is axes
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == ["HSV shift, mean 25.0", r"US\$ and C\$, mean 25.0"]
    styles = [(line.get_color(), line.get_marker()) for line in axes.get_lines()]
    assert len({color for color, _ in styles}) == 2
    axes.figure.canvas.draw()


def test_other_actions_have_axes_of_their_own(pyplot) -> None:
    axes = red_sweep("gamma", (0.5, 1, 2)).plot()
    assert axes.get_lines()[0].get_xdata().tolist() == [-1, 0, 1]  # in equal ratios
    assert axes.get_xlabel() == "gamma of the test images"
    red_sweep("gamma", (0.25, 1, 2)).plot(axes)
    assert red_sweep("gamma", (1, 2, 4)).plot(axes).get_xlim() == (-2, 2)  # of all curves
    with pytest.raises(ValueError, match="these axes show 'gamma of the test images', but the swe"):
        red_sweep().plot(axes)
