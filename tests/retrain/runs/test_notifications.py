"""Who is told of a run's end, and what."""

import logging
import os
from contextlib import suppress

import pytest
from prefect import Flow

from retrain.runs import flow_runs, notifications

OUTCOME = "toy version 3 is what it is."


def ends(workload, how):
    """Runs a flow that ends in a certain way."""

    def body(workload: str, how: str | None):
        if how == "fails":
            raise ValueError("no such data:\n  a\n  b")
        if how == "is interrupted":
            raise KeyboardInterrupt
        return {"state": how, "outcome": OUTCOME}

    hooks = {
        f"on_{end}": [notifications.notify_of_end] for end in ("completion", "failure", "crashed")
    }
    with suppress(ValueError, KeyboardInterrupt):
        Flow(flow_runs.ending_in_a_state(body), "toy", **hooks)(workload, how)


@pytest.mark.parametrize(
    ("how", "event", "text"),
    [
        ("fails", "failed", "toy: the run failed: no such data: a b\nrun: "),
        ("is interrupted", "failed", "toy: the run crashed: Execution was aborted by an interrupt"),
        ("Rejected", "rejected", f"toy: {OUTCOME}\nrun: "),
        ("Drifted", "drift", f"toy: {OUTCOME}\nrun: "),
    ],
)
def test_people_are_notified_of_news(webhook, prefect_session, how, event, text):
    ends("toy", how)
    [body] = webhook
    assert body["event"] == event
    assert body["text"].startswith(text)


def test_a_run_without_news_is_not(webhook, prefect_session):
    ends("toy", "Compared")
    assert webhook == []


def test_the_report_is_a_file_of_the_project(webhook, prefect_session, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def body(workload: str):
        from prefect.runtime import flow_run

        page = tmp_path / "reports" / "toy" / f"{flow_run.id}.html"
        page.parent.mkdir(parents=True)
        page.touch()
        return {"state": "Rejected", "outcome": OUTCOME}

    Flow(flow_runs.ending_in_a_state(body), "toy", on_completion=[notifications.notify_of_end])(
        "toy"
    )
    [page] = tmp_path.glob("reports/toy/*.html")
    assert webhook[0]["text"].startswith(f"toy: {OUTCOME}\nreport: reports/toy/{page.name}\n")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://127.0.0.1:1/secret", "failed: ConnectionRefusedError."),
        ("secret", "failed: ValueError."),
        ("{server}/broken", "failed: 500."),
        ("{server}/slow", "failed: TimeoutError."),
    ],
)
def test_a_webhook_that_fails_is_a_warning_that_keeps_its_secret(
    webhook, monkeypatch, caplog, url, message
):
    server = os.environ[notifications.URL].removesuffix("/secret")
    monkeypatch.setattr(notifications, "SECONDS", 1.0)
    monkeypatch.setenv(notifications.URL, url.format(server=server))
    with caplog.at_level(logging.WARNING, logger="retrain"):
        notifications.notify("rejected", "toy", OUTCOME)
    [warning] = [each.getMessage() for each in caplog.records if each.name == "retrain"]
    assert message in warning
    assert "secret" not in caplog.text
    assert server not in caplog.text


def test_when_nothing_is_set_up_nothing_is_sent(monkeypatch, caplog):
    monkeypatch.delenv(notifications.URL, raising=False)
    notifications.notify("drift", "toy", "news")
    assert not [each for each in caplog.records if each.name == "retrain"]
