import errno
import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

import equicolor
from equicolor._packages import how_to_install
from equicolor.cli.app import app
from equicolor.data import load_mnist, longtailed_colormnist
from equicolor.models import cecnn, cost, facts, list_models, save_model
from equicolor.models.export import ExportError
from equicolor.nn import set_algorithm
from equicolor.paper import configurations, demo

Start = Callable[[str], "subprocess.CompletedProcess[str]"]


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), prog_name="equicolor")


def failing_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> Result:
    """Run the demo with a function behind it that raises."""

    def fail(output: Path) -> None:
        raise error

    monkeypatch.setattr(demo, "run", fail)
    return invoke("demo")


def test_version() -> None:
    result = invoke("--version")
    assert result.exit_code == 0
    assert result.stdout == f"equicolor {equicolor.__version__}\n"


@pytest.mark.parametrize("arguments", [["--help"], ["-h"]])
def test_help_lists_the_commands(arguments: list[str]) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 0
    assert "demo" in result.stdout
    assert "--version" in result.stdout


def test_no_command_prints_help() -> None:
    assert "Usage: equicolor" in invoke().output


def test_unknown_command_suggests_the_nearest() -> None:
    result = invoke("dmo")
    assert result.exit_code == 2
    assert "demo" in result.stderr


def test_demo_says_what_it_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    networks = {
        model: demo.Trained({"original": accuracy, "per_class": [accuracy] * 30}, [], 1)
        for model, accuracy in (("z2cnn", 60.0), ("cecnn", 75.0))
    }
    shifted = {
        model: demo.Trained({"original": 85.0}, curve, 1)
        for model, curve in (("z2cnn-shifted", [85.0, 5.0]), ("cecnn-shifted", [85.0, 84.0]))
    }
    found = demo.Demo(longtailed_colormnist(load_mnist(embedded=True)), networks, shifted, 1.0)
    monkeypatch.setattr(demo, "run", lambda output: found)
    result = invoke("demo", "--output", str(tmp_path / "report"))
    assert result.exit_code == 0
    assert "60.0 %" in result.stdout
    report, summary = tmp_path / "report" / "report.html", tmp_path / "report" / "summary.json"
    # A long path is not broken over lines: it is printed, not laid out.
    assert f"wrote {report} and {summary}" in result.stdout
    assert result.stdout.splitlines()[-2:] == [
        "CECNN reads 75.0 % of the coloured digits, Z2CNN 60.0 %: +15.0 points.",
        "At the worst hue shift, the pooled CECNN reads 84.0 % and Z2CNN 5.0 %: +79.0 points.",
    ]


def test_demo_refuses_a_file_in_one_line(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.write_text("mine")
    result = invoke("demo", "--output", str(taken))
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr == f"equicolor: results go to a folder, but {taken} is a file\n"
    assert taken.read_text() == "mine"


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (ValueError("n must be at least 1, got 0"), 2, "n must be at least 1, got 0"),
        (
            FileNotFoundError(errno.ENOENT, "No such file or directory", "a.png"),
            1,
            "No such file or directory: a.png",
        ),
        (
            ModuleNotFoundError("No module named 'sklearn'", name="sklearn"),
            1,
            f"sklearn is not installed: {how_to_install('sklearn')}",
        ),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_expected_errors_are_one_line(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, status: int, line: str
) -> None:
    result = failing_with(monkeypatch, error)
    assert result.exit_code == status
    assert result.stderr == f"equicolor: {line}\n"


@pytest.mark.parametrize(
    "error",
    [RuntimeError("a bug"), ModuleNotFoundError("a bug", name="equicolor.missing")],
)
def test_bugs_keep_their_traceback(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    assert failing_with(monkeypatch, error).exception is error


@pytest.mark.slow
def test_without_typer_one_line_says_what_to_install(start_script: Start) -> None:
    # None in sys.modules makes the import fail as if the module were absent.
    code = "import sys; sys.modules['typer'] = None; from equicolor.cli import main; main()"
    result = start_script(code)
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr == f"equicolor: typer is not installed: {how_to_install('typer')}\n"


def test_models_lists_every_network() -> None:
    result = invoke("models")
    assert result.exit_code == 0
    lines = [line.split() for line in result.stdout.splitlines()]
    assert [line[0] for line in lines[1:]] == list_models()
    assert ["ce_resnet44", "2,602,596", "3", "32×32"] in lines


@pytest.mark.slow
def test_models_as_json() -> None:
    rows = json.loads(invoke("models", "--json").stdout)
    assert [row["model"] for row in rows] == list_models()
    by_name = {row["model"]: row for row in rows}
    assert by_name["ce_resnet18"]["parameters"] == 11_788_360
    assert by_name["ce_resnet18"]["rotations"] == 3
    assert by_name["z2cnn"]["image_size"] == 28
    assert all(row["summary"].endswith(".") for row in rows)


@pytest.mark.slow
def test_commands_import_only_what_they_need(start_script: Start) -> None:
    code = (
        "import sys, equicolor.cli; assert not {'matplotlib', 'sklearn'} & set(sys.modules); "
        "from equicolor.cli.app import app; app(['models'], standalone_mode=False); "
        "assert 'equicolor.paper.configurations' not in sys.modules; "
        "app(['reproduce', 'list'], standalone_mode=False); assert 'lightning' not in sys.modules"
    )
    result = start_script(code)
    assert result.returncode == 0, result.stderr


@pytest.mark.slow
def test_cost_of_one_network(tmp_path: Path) -> None:
    file = tmp_path / "cost.json"
    options = ["--rotations", "6", "--lifting", "hsv", "--width", "2,3,4", "--classes", "7"]
    result = invoke("cost", "resnet44", *options, "--input-size", "16", "--output", str(file))
    assert result.exit_code == 0
    (row,) = json.loads(file.read_text())["rows"]
    assert (row["rotations"], row["lifting"], row["width"], row["input_size"]) == (6, "hsv", 2, 16)
    first, second, last = result.stdout.splitlines()
    assert first == f"parameters: {row['parameters']:,}"
    assert second.startswith("multiply-accumulates executed for one 16×16 image, hsv lifting: ")
    assert last == f"wrote {file}"


def test_cost_of_any_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    network = cecnn(10, width=4, coset_pool="max")
    network.origin = network.origin._replace(image_size=29, dataset="digits")
    save_model(network, tmp_path / "run" / "model.safetensors")
    Path("mine.py").write_text(
        "import torch\n\ndef layer():\n    return torch.nn.Conv2d(3, 5, 1, bias=False)\n"
    )
    result = invoke("cost", "run", "--output", "cost.json")
    assert result.exit_code == 0, result.stderr
    written = json.loads(Path("cost.json").read_text())
    assert written["experiment"] == "cost"  # 'reproduce --from' skips it: it is not Table 4
    (row,) = written["rows"]
    dense, cyclic = (cost(set_algorithm(network, name), 29) for name in ("dense", "cyclic"))
    assert (row["model"], row["rotations"], row["lifting"]) == ("cecnn", 3, "rgb")
    assert (row["parameters"], row["macs_dense"], row["macs_cyclic"]) == (*dense, cyclic.macs)
    assert "for one 29×29 image, rgb lifting: " in result.stdout
    result = invoke("cost", "mine.py:layer", "--input-size", "100")
    assert result.stdout.splitlines() == [
        "parameters: 15",
        "multiply-accumulates executed for one 100×100 image: 0.00015 G",
    ]
    for arguments, message in {
        "run --rotations 3": "rotations can be chosen for a name of 'equicolor models'; run is alr",
        "absent.safetensors": "no network at absent.safetensors; expected a checkpoint",
        "mine.py:nothing": "mine.py has no function 'nothing'",
    }.items():
        result = invoke("cost", *arguments.split())
        assert result.exit_code in (1, 2)
        assert result.stderr.startswith(f"equicolor: {message}")
        assert result.stderr.count("\n") == 1


def test_cost_of_a_hybrid() -> None:
    result = invoke("cost", "ce_resnet18", "--ce-stages", "1", "--input-size", "64")
    assert "parameters: 11,382,895" in result.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("text", "first"), [("fast", 32), ("8", 8)])
def test_cost_takes_widths_by_name_and_number(text: str, first: int, tmp_path: Path) -> None:
    file = tmp_path / "cost.json"
    invoke("cost", "ce_resnet44", "--width", text, "--input-size", "8", "--output", str(file))
    assert json.loads(file.read_text())["rows"][0]["width"] == first


@pytest.mark.slow
def test_cost_prints_the_papers_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(configurations, "PAPER", configurations.PAPER[:5:4])  # plain and full
    monkeypatch.setattr(configurations, "BEYOND", configurations.BEYOND[:1])
    file = tmp_path / "results" / "rows.json"
    result = invoke("cost", "--output", str(file))
    assert result.exit_code == 0
    assert "GMACs executed for one image" in result.stdout
    assert result.stdout.count("resnet18") == 3
    assert "A fully equivariant ResNet-18 executes 6.4 times" in result.stdout
    assert result.stdout.splitlines()[-1] == f"wrote {file}"
    assert len(json.loads(file.read_text())["rows"]) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["resnet19"], "unknown model 'resnet19'; did you mean 'resnet18'"),
        (["z2cnn", "--rotations", "3"], "z2cnn has no option 'rotations'; it takes num_classes"),
        (["resnet44", "--rotations", "0"], "rotations must be at least 1, got 0"),
        (["resnet44", "--width", "wide"], "width must be None, 'fast', an int or one int a stage"),
        (["resnet44", "--width", "1,2"], "width needs 3 numbers, one a stage; got [1, 2]"),
        (["resnet44", "--lifting", "lab"], "lifting must be one of 'rgb', 'hsv'; got 'lab'"),
        (["z2cnn", "--input-size", "40"], "Z2CNN does not take input [1, 3, 40, 40]: "),
        (["--rotations", "3"], "architecture options need a network, got only rotations"),
        (["--classes", "3"], "architecture options need a network, got only classes"),
    ],
)
def test_cost_refuses_in_one_line(arguments: list[str], message: str) -> None:
    result = invoke("cost", *arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith(f"equicolor: {message}")
    assert result.stderr.count("\n") == 1


def test_cost_does_not_overwrite_unless_told(tmp_path: Path) -> None:
    file = tmp_path / "cost.json"
    file.write_text("mine")
    result = invoke("cost", "z2cnn", "--output", str(file))
    assert result.exit_code == 1
    assert result.stderr == f"equicolor: {file} exists; --force replaces it\n"
    assert file.read_text() == "mine"
    assert invoke("cost", "z2cnn", "--output", str(file), "--force").exit_code == 0
    assert json.loads(file.read_text())["rows"][0]["model"] == "z2cnn"


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_export_of_a_checkpoint(tmp_path: Path) -> None:
    network = cecnn(5, width=2).eval()
    checkpoint = save_model(network, tmp_path / "network.safetensors")
    file = tmp_path / "network.pt"
    result = invoke("export", str(checkpoint), "--to", "torchscript", "--output", str(file))
    assert result.exit_code == 0
    (line,) = result.stdout.splitlines()
    assert re.fullmatch(
        rf"wrote {re.escape(str(file))}: torchscript, \d+ nodes, relative error \d\.\de[+-]\d+",
        line,
    )
    images = torch.rand(3, 3, 28, 28)
    torch.testing.assert_close(torch.jit.load(file)(images), network(images))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_export_of_a_run(tmp_path: Path) -> None:
    network = cecnn(5, width=2).eval()
    save_model(network, tmp_path / "run" / "model.safetensors")
    file, images = tmp_path / "network.pt", torch.rand(2, 3, 28, 28)
    result = invoke("export", str(tmp_path / "run"), "--to", "torchscript", "-o", str(file))
    assert (result.exit_code, "random" in result.stdout) == (0, False)
    torch.testing.assert_close(torch.jit.load(file)(images), network(images))


def test_export_of_a_user_s_network(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from torch import nn\n\n"
        "def net():\n"
        "    network = nn.Sequential(nn.Conv2d(3, 2, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())\n"
        "    network.image_size, network.class_names = 20, ('apple', 'pear')\n"
        "    return network\n"
    )
    file, about = tmp_path / "network.pt2", {"class_names": "", "image_size": ""}
    result = invoke("export", f"{tmp_path / 'mine.py'}:net", "--output", str(file))
    assert result.exit_code == 0, result.stderr
    assert len(result.stdout.splitlines()) == 1  # its weights are its own
    network = torch.export.load(file, extra_files=about).module()
    assert network(torch.rand(3, 3, 20, 20)).shape == (3, 2)
    assert json.loads(about["class_names"]) == ["apple", "pear"]
    assert json.loads(about["image_size"]) == [20, 20]


def test_export_of_a_name_says_that_its_weights_are_random(tmp_path: Path) -> None:
    file = tmp_path / "network.pt"
    arguments = ["export", "z2cnn", "--to", "torchscript", "--output", str(file)]
    result = invoke(*arguments)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == (
        "z2cnn has no trained weights: those in the file are random"
    )
    again = invoke(*arguments)
    assert again.exit_code == 1
    assert again.stderr.endswith("exists; overwrite=True (--force) replaces it\n")
    assert invoke(*arguments, "--force").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["absent.safetensors"], 1, "no network at absent.safetensors; expected a checkpoint"),
        (["absent.py:net"], 1, "no file absent.py; expected a checkpoint"),
        (["z2cnn", "--no-pretrained"], 2, "pretrained chooses the weights of timm's"),
        (["restnet"], 2, "unknown model 'restnet'; did you mean 'resnet"),
        (["z2cnn", "--to", "tflite"], 2, "to must be one of 'onnx', 'torchscript'"),
        (["z2cnn", "--form", "fft"], 2, "form must be one of 'auto', 'dense', 'cyclic'"),
        (["z2cnn", "--input-size", "40"], 2, "Z2CNN does not take images [2, 3, 40, 40]: "),
    ],
)
def test_export_refuses_in_one_line(
    arguments: list[str], status: int, message: str, tmp_path: Path
) -> None:
    result = invoke("export", *arguments, "--output", str(tmp_path / "file.onnx"))
    assert result.exit_code == status
    assert result.stderr.startswith(f"equicolor: {message}")
    assert result.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_export_of_a_damaged_checkpoint_is_one_line(tmp_path: Path) -> None:
    damaged = tmp_path / "network.safetensors"
    damaged.write_text("{}")
    result = invoke("export", str(damaged), "--output", str(tmp_path / "network.onnx"))
    assert result.exit_code == 2
    assert result.stderr.startswith(f"equicolor: {damaged} is not a complete safetensors file")
    assert result.stderr.count("\n") == 1


def models_failing_with(monkeypatch: pytest.MonkeyPatch, error: Exception) -> Result:
    """Run 'equicolor models' with a function behind it that raises."""

    def fail() -> None:
        raise error

    monkeypatch.setattr(facts, "catalogue", fail)
    return invoke("models")


def test_a_wrong_export_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    result = models_failing_with(monkeypatch, ExportError("the exported file is off by 1.0e+00"))
    assert result.exit_code == 1
    assert result.stderr == "equicolor: the exported file is off by 1.0e+00\n"


def test_missing_packages_name_their_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for package, extra in {"onnxruntime": "export", "safetensors": "train"}.items():
        error = ModuleNotFoundError(f"No module named {package!r}", name=package)
        result = models_failing_with(monkeypatch, error)
        assert result.stderr.startswith(f"equicolor: {package} is not installed: in a checkout")
        assert result.stderr.endswith(f"pip install -c constraints.txt '.[{extra}]'\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("cost converted", "'converted' is no network by itself"),
        ("export converted -o x.onnx", "'converted' is no network by itself"),
        ("cost resnet18 --width 100000000", "width must be at most 65,536, got 100000000"),
        ("cost resnet18 --rotations 99999999999999999999", "rotations must be at most 1,000, got"),
        ("cost resnet18 --classes 99999999999999999999", "num_classes must be at most"),
        ("cost resnet18 --input-size 99999999999999999999", "size must be at most 32,768, got"),
        ("export z2cnn -o x.onnx --input-size 1000000000", "size must be at most 32,768, got"),
    ],
)
def test_absurd_options_are_refused_in_one_line(
    arguments: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = invoke(*arguments.split())
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"equicolor: {message}")


def test_lack_of_memory_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: 9\nat")):
        result = failing_with(monkeypatch, error)
        assert result.exit_code == 1
        (line,) = result.stderr.splitlines()
        assert line.startswith("equicolor: not enough memory: take smaller images")


@pytest.mark.slow
def test_warnings_are_one_line(start_script: Start) -> None:
    code = (
        "import sys, warnings; from equicolor.cli import app as cli; "
        "sys.argv = ['equicolor', 'datasets']; "
        "cli.app = lambda **_: warnings.warn('two\\nlines'); cli.main()"
    )
    assert start_script(code).stderr == "equicolor: warning: two lines\n"
