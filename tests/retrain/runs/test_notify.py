"""The messages of flow runs that end in all ways, sent to a real webhook and a real mail server."""

import logging
import os
import ssl
import subprocess
from contextlib import contextmanager, suppress
from email import message_from_bytes

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult
from prefect import Flow

from retrain.runs import notify as notify_module
from retrain.runs.flow_runs import ending_in_a_state
from retrain.runs.notify import notify, notify_of_end
from tests.flows.conftest import free_port

OUTCOME = "toy version 3 is what it is."
PASSWORD = "pass:word"  # percent-encoded in the URL


def ends(workload, how):
    """Runs a flow that ends in a certain way."""

    def body(workload: str, how: str | None):
        if how == "fails":
            raise ValueError("no such data:\n  a\n  b")
        if how == "is interrupted":
            raise KeyboardInterrupt
        return {"state": how, "outcome": OUTCOME}

    hooks = {f"on_{end}": [notify_of_end] for end in ("completion", "failure", "crashed")}
    with suppress(ValueError, KeyboardInterrupt):
        Flow(ending_in_a_state(body), "toy", **hooks)(workload, how)


@pytest.mark.parametrize(
    ("how", "event", "text"),
    [
        ("fails", "failed", "toy: the run failed: no such data: a b\nrun: "),
        ("is interrupted", "failed", "toy: the run crashed: Execution was aborted by an interrupt"),
        ("Rejected", "rejected", f"toy: {OUTCOME}\nrun: "),
        ("Waiting", "waiting", f"toy: {OUTCOME}\nrun: "),
        ("Promoted", "promoted", f"toy: {OUTCOME}\nrun: "),
        ("Drifted", "drift", f"toy: {OUTCOME}\nrun: "),
    ],
)
def test_people_are_notified_of_news(webhook, prefect_session, how, event, text):
    ends("toy", how)
    [body] = webhook
    assert body["event"] == event
    assert body["text"].startswith(text)


@pytest.mark.parametrize("how", ["Compared", "Unchanged", None])
def test_a_run_without_news_is_not(webhook, prefect_session, how):
    ends("toy", how)
    assert webhook == []


def test_the_report_is_a_file_of_the_project(webhook, prefect_session, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def body(workload: str):
        from prefect.runtime import flow_run

        page = tmp_path / "reports" / "toy" / f"{flow_run.id}.html"
        page.parent.mkdir(parents=True)
        page.touch()
        return {"state": "Rejected", "outcome": OUTCOME}

    Flow(ending_in_a_state(body), "toy", on_completion=[notify_of_end])("toy")
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
    webhook, monkeypatch, caplog, prefect_session, url, message
):
    server = os.environ[notify_module.URL].removesuffix("/secret")
    monkeypatch.setattr(notify_module, "SECONDS", 1.0)
    monkeypatch.setenv(notify_module.URL, url.format(server=server))
    with caplog.at_level(logging.WARNING, logger="retrain"):
        ends("toy", "Rejected")
    [warning] = [each.getMessage() for each in caplog.records if each.name == "retrain"]
    assert message in warning
    assert "secret" not in caplog.text
    assert server not in caplog.text


def test_when_nothing_is_set_up_nothing_is_sent(monkeypatch, caplog):
    for variable in (notify_module.URL, notify_module.SMTP):
        monkeypatch.delenv(variable, raising=False)
    notify("drift", "toy", "news")
    assert not [each for each in caplog.records if each.name == "retrain"]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A key and a certificate for loopback."""
    folder = tmp_path_factory.mktemp("tls")
    key, file = folder / "key.pem", folder / "certificate.pem"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=localhost -days 2"
    names = ("-addext", "subjectAltName=IP:127.0.0.1")
    subprocess.run([*command.split(), *names, "-keyout", key, "-out", file], check=True)
    return key, file


@contextmanager
def mail_server(certificate, *, starttls=False, tls=False):
    """A mail server that wants a password; yields its port and the mails that it got."""
    received = []

    class Inbox:
        async def handle_DATA(self, server, session, envelope):  # noqa: N802
            received.append((envelope.rcpt_tos, message_from_bytes(envelope.content)))
            return "250 OK"

    def authenticate(server, session, envelope, mechanism, login):
        right = (login.login, login.password) == (b"ann@127.0.0.1", PASSWORD.encode())
        return AuthResult(success=right, handled=right)

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    key, file = certificate
    context.load_cert_chain(file, key)
    options = {"authenticator": authenticate, "auth_required": True, "auth_require_tls": not tls}
    server = Controller(
        Inbox(), "127.0.0.1", free_port(),
        tls_context=context if starttls else None, ssl_context=context if tls else None, **options,
    )  # fmt: skip
    server.start()
    try:
        yield server.port, received
    finally:
        server.stop()


@pytest.fixture
def mailed(monkeypatch, certificate):
    """Sends an event to a mail server, which is trusted."""
    monkeypatch.delenv(notify_module.URL, raising=False)
    monkeypatch.setenv(notify_module.TO, "ops@127.0.0.1, ml@127.0.0.1")
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[1]))

    def send(scheme, port, password=PASSWORD):
        login = f"ann%40127.0.0.1:{password.replace(':', '%3A')}"
        monkeypatch.setenv(notify_module.SMTP, f"{scheme}://{login}@127.0.0.1:{port}")
        notify("rejected", "toy", f"{OUTCOME}\nreport: http://127.0.0.1:1/#/report")

    return send


@pytest.mark.parametrize(("scheme", "way"), [("smtp", "starttls"), ("smtps", "tls")])
def test_an_event_is_mailed_over_tls(mailed, certificate, monkeypatch, scheme, way):
    with mail_server(certificate, **{way: True}) as (port, received):
        mailed(scheme, port)
        monkeypatch.setenv(notify_module.FROM, "retrain@127.0.0.1")
        mailed(scheme, port)
    (addresses, mail), (_, second) = received
    assert addresses == ["ops@127.0.0.1", "ml@127.0.0.1"]
    assert (mail["Subject"], mail["From"]) == ("toy: rejected", "ops@127.0.0.1")
    assert second["From"] == "retrain@127.0.0.1"
    text = mail.get_payload(decode=True).decode().splitlines()
    assert text == [OUTCOME, "report: http://127.0.0.1:1/#/report"]


@pytest.mark.parametrize(
    ("way", "password", "message"),
    [
        ({"starttls": True}, "wrong", "The message by RETRAIN_SMTP_URL failed: 535."),
        ({}, PASSWORD, "The message by RETRAIN_SMTP_URL failed: SMTPNotSupportedError."),
    ],
)
def test_a_mail_that_fails_is_a_warning_that_keeps_the_password(
    mailed, certificate, caplog, way, password, message
):
    with mail_server(certificate, **way) as (port, received):
        mailed("smtp", port, password)
    assert [each.getMessage() for each in caplog.records if each.name == "retrain"] == [message]
    assert "wrong" not in caplog.text
    assert not received


def test_a_server_that_is_not_trusted_gets_no_password(mailed, certificate, caplog, monkeypatch):
    monkeypatch.delenv("SSL_CERT_FILE")
    with mail_server(certificate, starttls=True) as (port, received):
        mailed("smtp", port)
    assert "The message by RETRAIN_SMTP_URL failed: SSLCertVerificationError." in caplog.text
    assert not received
