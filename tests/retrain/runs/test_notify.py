"""The messages of flow runs that end in all ways, sent to a webhook on a real HTTP server."""

import logging
import os
from contextlib import suppress

import pytest
from prefect import flow

from retrain.runs import notify as notify_module
from retrain.runs.notify import notify, notify_now, notify_of_end

REJECTED = {"unchanged": False, "rejected": True, "outcome": "toy version 3 is rejected (why)."}


@flow(on_completion=[notify_of_end], on_failure=[notify_of_end], on_crashed=[notify_of_end])
def ends(workload: str, how: str):
    if how == "fails":
        raise ValueError("no such data")
    if how == "is interrupted":
        raise KeyboardInterrupt
    promoted = REJECTED | {"rejected": False}
    if how == "asks":
        notify_now("drift", "toy drifts.")
    return {
        "rejects": REJECTED,
        "waits": promoted | {"waiting": True},
        "promotes": promoted | {"promoted": True},
        "asks": promoted,
        "compares": promoted,
        "predicts": {"outcome": "1,000 images"},
        "rests": REJECTED | {"unchanged": True},
    }[how]


@pytest.mark.parametrize(
    ("how", "event", "text"),
    [
        ("fails", "failed", "toy: the run failed. "),
        ("is interrupted", "failed", "toy: the run crashed. Execution was aborted by an interrupt"),
        ("rejects", "rejected", "toy: toy version 3 is rejected (why). (run "),
        ("waits", "waiting", "toy: toy version 3 is rejected (why). (run "),
        ("promotes", "promoted", "toy: toy version 3 is rejected (why). (run "),
        ("asks", "drift", "toy: toy drifts. (run "),
    ],
)
def test_people_are_notified_of_news(webhook, prefect_session, how, event, text):
    with suppress(ValueError, KeyboardInterrupt):
        ends("toy", how)
    [body] = webhook
    assert body["event"] == event
    assert body["text"].startswith(text)
    assert ("no such data (run " in body["text"]) == (how == "fails")


@pytest.mark.parametrize("how", ["compares", "predicts", "rests"])
def test_a_run_without_news_is_not(webhook, prefect_session, how):
    ends("toy", how)
    assert webhook == []


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
    webhook, monkeypatch, caplog, prefect_session, url, message
):
    server = os.environ[notify_module.URL].removesuffix("/secret")
    monkeypatch.setattr(notify_module, "SECONDS", 1.0)
    monkeypatch.setenv(notify_module.URL, url.format(server=server))
    with caplog.at_level(logging.WARNING, logger="retrain"):
        ends("toy", "rejects")
    [warning] = [each.getMessage() for each in caplog.records if each.name == "retrain"]
    assert message in warning
    assert "secret" not in caplog.text
    assert server not in caplog.text


def test_without_a_webhook_nothing_is_sent(monkeypatch, caplog):
    monkeypatch.delenv(notify_module.URL, raising=False)
    notify("drift", "news")
    assert not [each for each in caplog.records if each.name == "retrain"]
