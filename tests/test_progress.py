"""What is said of long work while it goes on."""

import io
from types import SimpleNamespace

from rich.console import Console

from grant_fast import progress


def watched(monkeypatch, clock, **console):
    text = io.StringIO()
    monkeypatch.setattr("rich.console.Console", lambda stderr: Console(file=text, **console))
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    passed = list(progress.track(range(1200), "reading", 1200, show=True))
    assert passed == list(range(1200))
    return text.getvalue()


def test_a_line_now_and_then_where_nobody_watches(monkeypatch):
    said = watched(monkeypatch, iter(range(5000))).splitlines()
    assert said[0] == "reading: 11 of 1,200"
    assert said[-2:] == ["reading: 1,199 of 1,200", "reading: 1,200 of 1,200"]
    assert len(said) == 1200 // 11 + 1


def test_work_that_is_done_soon_says_nothing(monkeypatch):
    assert watched(monkeypatch, iter([0.0] * 1201)) == ""


def test_a_bar_where_somebody_watches(monkeypatch):
    said = watched(monkeypatch, iter(()), force_terminal=True, width=80)
    assert "reading" in said and "100%" in said and "of 1,200" not in said


def test_nothing_where_it_is_not_asked_for():
    items = range(3)
    assert progress.track(items, "reading", 3, show=False) is items
