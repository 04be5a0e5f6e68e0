"""Ratios and goals from rows with given times."""

import pytest

from equicolor.benchmark.ratios import (
    Goal,
    layer_goals,
    network_goals,
    precision_goals,
    with_ratios,
)


def row(variant, times, memory=1.0, **facts):
    return {"model": "m", "variant": variant, "times_ms": times, "peak_mib": memory, **facts}


def test_ratios_within_a_group():
    rows = with_ratios(
        [
            row("plain", [1.0, 2.0], 4.0),
            row("auto", [3.0, 6.0], 10.0, rotations=3),
            row("dense", [6.0, 12.0], 20.0, rotations=3),
            row("cyclic", [2.0, 4.0], 8.0, rotations=3),
        ]
    )
    assert [found["over_plain"] for found in rows] == [1, 3, 6, 2]
    assert [found["memory_over_plain"] for found in rows] == [1, 2.5, 5, 2]
    assert [found["dense_over"] for found in rows] == [None, 2, 1, 3]
    assert rows[1]["over_best"] == 1.5  # cyclic would have been faster
    assert "over_best" not in rows[2]


def test_only_the_variant_may_differ_from_its_dense_twin():
    rows = with_ratios(
        [
            row("auto", [1.0], name="n3-fast", rotations=3),
            row("dense", [5.0], name="n3-matched", rotations=3),
            row("dense", [7.0], name="n3-fast", rotations=12),
        ]
    )
    assert rows[0]["dense_over"] is None
    assert rows[0]["over_plain"] is None  # nor is there a plain one


def test_failed_rows_have_no_ratios():
    failed = {"model": "m", "variant": "dense", "ms": None, "problem": "out of memory"}
    rows = with_ratios([row("plain", [1.0]), failed, row("auto", [4.0]), row("cyclic", [2.0])])
    assert rows[1]["over_plain"] is None
    assert rows[1]["problem"] == "out of memory"
    assert rows[2]["dense_over"] is None
    assert rows[2]["over_best"] == 2.0  # of those that ran


def test_a_goal_is_kept_missed_or_open():
    assert Goal("x", 3.2, 3.2).met is True
    assert Goal("x", 3.21, 3.2).met is False
    assert Goal("x", 1.8, 1.8, at_most=False).met is True
    assert Goal("x", None, 1.0).met is None
    assert Goal("x", 1.23456, 2.0, at_most=False).to_json() == {
        "what": "x",
        "value": 1.235,
        "at_least": 2.0,
        "met": False,
    }


def test_goals_of_networks():
    def network(name, mode, times, ratio, memory=2.0, variant="auto"):
        return {
            "name": name,
            "mode": mode,
            "variant": variant,
            "times_ms": times,
            "over_plain": ratio,
            "memory_over_plain": memory,
        }

    rows = [
        network("n3-fast", "training", [10.0, 20.0], 9.9, variant="dense"),  # not what counts
        network("n3-fast", "training", [10.0, 20.0], 3.1, 2.4),
        network("n3-fast", "forward", [1.0], 7.0),
        network("n3-fast", "folded", [1.0], 3.5),
        network("n3-matched", "training", [13.0, 26.0], 4.0),
        network("n3-fast-hsv", "training", [10.4, 20.8], 3.2),
        network("n12-fast", "training", [40.0, 80.0], 12.0),
        network("n12-matched", "training", [32.5, 65.0], 10.0),
    ]
    goals = network_goals(rows)
    assert [goal.value for goal in goals] == [3.1, 4.0, 3.5, 4.0, 2.5, 2.4, 1.04]
    assert [goal.met for goal in goals] == [True, True, False, False, True, True, True]
    assert "(auto)" in goals[0].what
    assert all(goal.met is None for goal in network_goals([]))
    # by the fused path, if that is faster: of training and folded inference each
    fused = [network("n3-fast", "training", [9.0, 18.0], 2.8, 2.1, "fused")]
    goals = network_goals(rows + fused)
    assert [goal.value for goal in goals] == [2.8, None, 3.5, None, None, 2.1, None]
    assert ["(fused)" in goals[place].what for place in (0, 2)] == [True, False]
    fused = [network("n3-fast", "folded", [9.0, 18.0], 2.7, variant="fused")]
    goals = network_goals(rows + fused)
    assert [goal.value for goal in goals] == [3.1, 4.0, 2.7, 4.0, 2.5, 2.4, 1.04]
    assert ["(fused)" in goals[place].what for place in (0, 2)] == [False, True]


def test_goals_of_layers_leave_other_shapes_aside():
    def layer(model, n, ratio, variant="auto", mode="training"):
        facts = {"model": model, "rotations": n, "variant": variant, "mode": mode}
        return facts | {"dense_over": ratio}

    rows = [
        layer("stage1", 3, 1.6),
        layer("stage2", 3, 2.5),
        layer("stage1", 3, 9.0, mode="forward"),
        layer("stage1", 3, 9.0, variant="cyclic"),
        layer("colormnist", 3, 0.5),
        layer("stage1", 12, None),
    ]
    three, twelve = layer_goals(rows)
    assert three.value == pytest.approx(2.0)
    assert three.met
    assert "worst: 1.60 at stage1" in three.what
    assert twelve.met is None


def test_goals_of_precision():
    def run(variant, seed, error, loss):
        losses = {"mean_loss": 3 * loss, "final_loss": loss}
        return {"variant": variant, "seed": seed, "gradient_error": error} | losses

    rows = [
        run("dense", 0, 0.01, 1.0),
        run("dense", 1, 0.02, 1.4),
        run("cyclic", 0, 0.015, 1.1),
        run("cyclic", 1, 0.05, 1.5),
        run("cyclic", 2, 9.0, 9.0),  # without its dense twin
    ]
    error, mean, loss = precision_goals(rows, "cyclic")
    assert error.value == pytest.approx(2.5)  # the worst seed
    assert not error.met
    assert loss.value == pytest.approx(0.1)
    assert loss.limit == pytest.approx(0.2828, abs=1e-4)
    assert loss.met
    assert (mean.value, mean.limit) == pytest.approx((0.3, 0.8485), abs=1e-4)
    left_out = [{"variant": "cyclic", "seed": 0, "final_loss": None, "problem": "left out"}]
    assert [goal.met for goal in precision_goals(left_out, "cyclic")] == [None] * 3
