"""What tests of reports share."""

import io

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
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
        figure.set_dpi(20)
        FigureCanvasAgg(figure).print_png(raw)  # figure.savefig would draw it twice
        return raw.getvalue()

    monkeypatch.setattr(report, "png", rough)
