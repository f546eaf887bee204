"""Passwords and tokens in URLs and in the environment."""

import logging

import pytest

from retrain import redaction
from retrain.errors import UsageError
from retrain.params import load_workload
from retrain.redaction import hide, redact, reveal

URLS = [
    "https://ann:geheim-1@host.org/pets.zip",
    "https://geheim-2@host.org/pets.zip",
    "https://host.org/pets.zip?rev=3&token=geheim-3",
    "https://host.org/pets.zip?X-Amz-Credential=geheim-4%2Fs3&X-Amz-Signature=geheim-5&x=1",
    "postgresql+psycopg2://ann:ge@heim-6@host/db",
    "zip://*.png::https://ann:geheim-7@host.org/pets.zip",
]
PUBLIC = ["data/digits", "https://host.org/pets.zip?rev=3", "sftp://me@host/pets", "me/pets@v1"]


@pytest.mark.parametrize("url", URLS)
def test_a_secret_in_a_url_is_hidden_and_only_asked_for(url):
    hidden = hide(url)
    assert "heim" not in hidden
    assert "host" in hidden
    assert reveal(hidden) == url
    assert hide(hidden) == hidden
    assert hidden != hide(url.replace("heim-", "heim-0"))  # so that the keys differ
    assert "heim" not in redact(f"cannot open '{url}'")


@pytest.mark.parametrize("text", PUBLIC)
def test_what_is_no_secret_is_shown(text):
    assert hide(text) == text
    assert redact(text) == text


def test_secrets_are_hidden_wherever_they_are_in_the_configuration():
    hidden = hide({"data": {"path": URLS[0]}, "labels": [URLS[1]], "epochs": 3})
    assert "geheim" not in str(hidden)
    assert hidden["epochs"] == 3


def test_a_mark_of_another_process_is_refused():
    with pytest.raises(UsageError, match="put the real one"):
        reveal("https://***0123456789abcdef@host/pets.zip")


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "RETRAIN_WEBHOOK_URL", "MLFLOW_TRACKING_PASSWORD"]
)
def test_secrets_of_the_environment_are_taken_out_of_texts(monkeypatch, name):
    monkeypatch.setenv(name, "https://host/geheim")
    assert redact("no answer from https://host/geheim") == "no answer from ***"


def test_a_password_is_found_in_all_forms_that_libraries_print(monkeypatch):
    hide("https://ann:gehe%40im-8@host/x")
    for text in ("user ann, password gehe@im-8", "Basic YW5uOmdlaGVAaW0tOA==", "gehe%40im-8"):
        assert "***" in redact(text)


def test_a_path_in_a_variable_is_no_secret(monkeypatch):
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "/clone/token")
    assert redact("wrote /clone/token") == "wrote /clone/token"


def test_log_records_have_no_secrets(monkeypatch, caplog):
    before = logging.getLogRecordFactory()
    redaction.guard_logs()
    try:
        try:
            raise ValueError(f"no {URLS[0]}")
        except ValueError:
            logging.getLogger("library").exception("failed at %s", URLS[1])
        logging.getLogger("library").warning("%d of %s", 1, "two")
    finally:
        logging.setLogRecordFactory(before)
    assert "geheim" not in caplog.text
    assert "failed at https://***@host.org" in caplog.text
    assert "ValueError: no https://***@host.org" in caplog.text
    assert caplog.messages[1] == "1 of two"


def test_a_workload_has_marks_for_passwords(tmp_path):
    params = tmp_path / "params.yaml"
    params.write_text(f"workloads: {{a: {{data: {{path: '{URLS[0]}'}}, model: {{family: vit}}}}}}")
    assert "geheim" not in str(load_workload(params, "a"))
    assert "geheim" not in str(load_workload(params, "a", {"data.path": URLS[2]}))
