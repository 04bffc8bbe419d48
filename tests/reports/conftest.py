"""Pages without their charts."""

import pytest


@pytest.fixture
def uncharted(monkeypatch):
    """Charts take most of the time of a page; tests of its words leave them out."""
    monkeypatch.setattr("dp_prior.reports.pages.drawing.svg", lambda figure, title: "<svg></svg>")
