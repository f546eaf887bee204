"""The messages of flow runs that end in all ways, sent to a webhook on a real HTTP server."""

import logging

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


def test_a_failed_run_is_notified(webhook, prefect_session):
    with pytest.raises(ValueError, match="no such data"):
        ends("toy", "fails")
    [(text, event)] = ((each["text"], each["event"]) for each in webhook)
    assert event == "failed"
    assert text.startswith("toy: the run failed. ")
    assert "no such data (run " in text


def test_a_crashed_run_is_notified(webhook, prefect_session):
    with pytest.raises(KeyboardInterrupt):
        ends("toy", "is interrupted")
    [text] = (each["text"] for each in webhook)
    assert text.startswith("toy: the run crashed. Execution was aborted by an interrupt signal.")


@pytest.mark.parametrize(
    ("how", "event"), [("rejects", "rejected"), ("waits", "waiting"), ("promotes", "promoted")]
)
def test_what_becomes_of_a_model_is_notified(webhook, prefect_session, how, event):
    ends("toy", how)
    [body] = webhook
    assert body["event"] == event
    assert body["text"].startswith("toy: toy version 3 is rejected (why). (run ")


def test_people_are_notified_while_a_run_goes_on(webhook, prefect_session):
    ends("toy", "asks")
    [body] = webhook
    assert body["event"] == "drift"
    assert body["text"].startswith("toy: toy drifts. (run ")


@pytest.mark.parametrize("how", ["compares", "predicts", "rests"])
def test_a_run_without_news_is_not(webhook, prefect_session, how):
    ends("toy", how)
    assert webhook == []


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://127.0.0.1:1/secret", "could not be reached (ConnectionRefusedError)"),
        ("secret", "could not be reached (ValueError)"),
        ("{server}/broken", "answered 500"),
        ("{server}/slow", "no answer within 1 s"),
    ],
)
def test_a_webhook_that_fails_is_a_warning_that_keeps_its_secret(
    webhook, monkeypatch, caplog, prefect_session, url, message
):
    import os

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
