"""Execute a notebook of examples/ in the current folder, without Jupyter.

A cell is Python, or one command of ours after an exclamation mark. A Jupyter kernel would add
dozens of packages, and nothing that these notebooks need.

    python docs/run_notebook.py examples/folder_to_onnx.ipynb
"""

import json
import shlex
import sys
from pathlib import Path
from typing import Any

from equicolor.cli.app import app


def run(notebook: Path) -> dict[str, Any]:
    """Execute all cells, one after the other; returns the variables they leave."""
    variables: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(json.loads(notebook.read_text())["cells"]):
        source = "".join(cell["source"])
        if cell["cell_type"] == "code" and source.startswith("!equicolor "):
            _, *arguments = shlex.split(source.replace("\\\n", " "))
            app(arguments, standalone_mode=False)  # errors are raised, and nothing exits
        elif cell["cell_type"] == "code":
            exec(compile(source, f"{notebook.name}, cell {number}", "exec"), variables)
    return variables


if __name__ == "__main__":
    run(Path(sys.argv[1]))
