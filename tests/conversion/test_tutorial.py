"""The tutorial runs from its beginning to its end, one block after the other."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "convert.md"


def blocks(library: str = "") -> list[tuple[int, str]]:
    """The blocks of the page, those of a library included, with the line each starts on."""
    text = PAGE.read_text()
    # Exporters take long for every node: the form with fewer nodes is written here, the other one
    # in test_memory.py.
    written = '"digits.onnx", input_size=28'
    assert text.count(written) == 1
    text = text.replace(written, f'{written}, form="dense"')
    found = []
    for block in re.finditer(r"^```py( \w+)?\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        needs = (block[1] or "").strip()
        if not needs or needs == library:
            found.append((text.count("\n", 0, block.start(2)) + 1, block[2]))
    return found


@pytest.mark.slow
def test_the_tutorial_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlxtend")
    pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "__main__"}
    found = blocks()
    assert len(found) == 8
    for line, code in found:
        # Blank lines in front make a traceback point at the line in the page.
        exec(compile("\n" * (line - 1) + code, str(PAGE), "exec"), namespace)
    assert (tmp_path / "digits.onnx").is_file()
