"""What tests of reports share."""

import io

import pytest
from matplotlib.figure import Figure

from equicolor.paper import report


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are made, but not drawn: for tests that do not look at the pictures."""
    monkeypatch.setattr(report, "png", lambda figure: b"")


@pytest.fixture
def roughly_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are drawn with few dots and are not packed, which takes longer than all else."""

    def rough(figure: Figure) -> bytes:
        raw = io.BytesIO()
        figure.savefig(raw, dpi=20, format="png")
        return raw.getvalue()

    monkeypatch.setattr(report, "png", rough)
