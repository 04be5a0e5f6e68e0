"""What tests of reports share."""

import pytest

from equicolor.paper import report


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are made, but not drawn: for tests that do not look at the pictures."""
    monkeypatch.setattr(report, "png", lambda figure: b"")
