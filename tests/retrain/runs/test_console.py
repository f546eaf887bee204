import io
import logging

import pytest
from rich.console import Console

from retrain.runs import console


def test_units_are_counted_in_a_line_now_and_then_where_there_is_no_terminal(monkeypatch, caplog):
    monkeypatch.setattr(console, "PLAIN_LINE_SECONDS", 0.0)
    with caplog.at_level(logging.INFO, "retrain"), console.unit_progress("validate", 2) as show:
        show(10)
        show(0)
    first, second = caplog.messages
    assert first.startswith("validate  1/2 units")
    assert first.endswith(" images/s")
    assert second.startswith("validate  2/2 units")


def test_a_line_for_every_unit_would_be_too_many(caplog):
    with caplog.at_level(logging.INFO, "retrain"), console.unit_progress("validate", 2) as show:
        show(10)
        show(10)
    assert caplog.messages == []


def test_a_terminal_gets_a_bar_that_is_gone_afterwards(monkeypatch, caplog):
    drawn = io.StringIO()
    terminal = Console(file=drawn, force_terminal=True, width=110, _environ={"TERM": "xterm"})
    monkeypatch.setattr(console._screen, "console", terminal)
    with console.running("preprocess"), console.unit_progress("preprocess", 4) as show:
        show(10)
        terminal._live_stack[0].refresh()
    assert "1/4 units" in drawn.getvalue()
    assert drawn.getvalue().rindex("1/4 units") < drawn.getvalue().rindex("\x1b[2K")  # wiped
    assert caplog.messages == []


@pytest.mark.parametrize("fraction", [0.0, 0.5])
def test_the_progress_of_a_training_is_shown(monkeypatch, caplog, fraction):
    monkeypatch.setattr(console, "PLAIN_LINE_SECONDS", 0.0)
    now = console.Progress(1, 2, fraction, 100.0, 0.1, 1.0)
    with caplog.at_level(logging.INFO, "retrain"), console.training_progress() as show:
        show(now)
    assert caplog.messages == [f"train  {now}"]
