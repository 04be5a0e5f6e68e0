"""Execute a notebook of examples/ in the current folder, without Jupyter.

A cell is Python, or one command of ours after an exclamation mark. A Jupyter kernel would add
dozens of packages, and nothing that these notebooks need.

    python docs/run_notebook.py examples/folder_to_onnx.ipynb
"""

import base64
import contextlib
import io
import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from equicolor.cli.app import app


def run(notebook: Path) -> dict[str, Any]:
    """Execute all cells, one after the other; returns the variables they leave.

    The notebook with what the cells printed and drew goes to the current folder, for the site.
    """
    executed = Path(notebook.name)
    if executed.resolve() == notebook.resolve():
        raise SystemExit(f"{executed} is kept without outputs: run it in another folder")
    list(drawn())  # closes what others left open
    variables: dict[str, Any] = {"__name__": "__main__"}
    contents = json.loads(notebook.read_text())
    for number, cell in enumerate(contents["cells"]):
        if cell["cell_type"] != "code":
            continue
        source, printed = "".join(cell["source"]), io.StringIO()
        with contextlib.redirect_stdout(printed):
            if source.startswith("!equicolor "):
                _, *arguments = shlex.split(source.replace("\\\n", " "))
                app(arguments, standalone_mode=False)  # errors are raised, and nothing exits
            else:
                exec(compile(source, f"{notebook.name}, cell {number}", "exec"), variables)
        print(printed.getvalue(), end="")
        text = {"output_type": "stream", "name": "stdout", "text": printed.getvalue()}
        cell["outputs"] = [text] * bool(text["text"]) + [*drawn()]
    executed.write_text(json.dumps(contents))
    return variables


def drawn() -> Iterator[dict[str, Any]]:
    """The open figures as outputs of a cell; they are closed."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    for number in pyplot.get_fignums() if pyplot else ():
        picture = io.BytesIO()
        pyplot.figure(number).savefig(picture, format="png", bbox_inches="tight")
        pyplot.close(number)
        data = {"image/png": base64.b64encode(picture.getvalue()).decode()}
        yield {"output_type": "display_data", "data": data, "metadata": {}}


if __name__ == "__main__":
    run(Path(sys.argv[1]))
