"""Who is told of a run's end, and what."""

import os
from contextlib import suppress

import pytest
from prefect import Flow, runtime

from retrain.runs import flow_runs, notifications

OUTCOME = "toy version 3 is what it is."


@pytest.mark.parametrize(
    ("how", "sent"),
    [
        ("fails", ("failed", "toy: the run failed: no such data: a b")),
        (
            "is interrupted",
            ("failed", "toy: the run crashed: Execution was aborted by an interrup"),
        ),
        ("Rejected", ("rejected", f"toy: {OUTCOME}")),
        ("Drifted", ("drift", f"toy: {OUTCOME}")),
        ("Compared", None),
    ],
)
def test_people_are_notified_of_news_with_the_report_of_the_run(
    webhook, prefect_session, tmp_path, monkeypatch, how, sent
):
    def body(workload: str):
        (tmp_path / "reports" / "toy" / f"{runtime.flow_run.id}.html").touch()
        if how == "fails":
            raise ValueError("no such data:\n  a\n  b")
        if how == "is interrupted":
            raise KeyboardInterrupt
        return {"state": how, "outcome": OUTCOME}

    (tmp_path / "reports" / "toy").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    ends = ("on_completion", "on_failure", "on_crashed")
    hooks = {end: [notifications.notify_of_end] for end in ends}
    with suppress(ValueError, KeyboardInterrupt):
        Flow(flow_runs.ending_in_a_state(body), "toy", **hooks)("toy")
    [page] = tmp_path.glob("reports/toy/*.html")
    for message in webhook:
        assert message["text"].startswith(sent[1])
        assert message["text"].endswith(f"\nreport: reports/toy/{page.name}\nrun: {page.stem}")
    assert [each["event"] for each in webhook] == [*(sent or ())][:1]


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://127.0.0.1:1/secret", "failed: ConnectionRefusedError."),
        ("secret", "failed: ValueError."),
        ("{server}/broken", "failed: 500."),
        ("{server}/slow", "failed: TimeoutError."),
        ("", None),  # nothing is set up
    ],
)
def test_a_webhook_that_fails_is_a_warning_that_keeps_its_secret(
    webhook, monkeypatch, caplog, url, message
):
    server = os.environ[notifications.URL].removesuffix("/secret")
    monkeypatch.setattr(notifications, "SECONDS", 0.5)
    monkeypatch.setenv(notifications.URL, url.format(server=server))
    with caplog.at_level("WARNING", logger="retrain"):
        notifications.notify("rejected", "toy", OUTCOME)
    warnings = [each.getMessage() for each in caplog.records if each.name == "retrain"]
    assert [warning.partition("URL ")[2] for warning in warnings] == [message] * bool(message)
    assert "secret" not in caplog.text
    assert server not in caplog.text
