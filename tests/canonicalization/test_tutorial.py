"""The page on canonicalisation runs from its beginning to its end."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "canonicalize.md"


@pytest.mark.slow
def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text()
    # Exporters take long for every node, and the cyclic form of twelve rotations has hundreds of
    # them. examples/folder_to_onnx.ipynb exports that of six rotations to ONNX.
    written = '"canonical.onnx", input_size=64'
    assert text.count(written) == 1
    text = text.replace(written, f'{written}, form="dense"')
    found = list(re.finditer(r"^```py\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    assert len(found) == 3
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in found:
        # Blank lines in front make a traceback point at the line in the page.
        line = text.count("\n", 0, block.start(1))
        exec(compile("\n" * line + block[1], str(PAGE), "exec"), namespace)
    assert (tmp_path / "canonical.onnx").is_file()
