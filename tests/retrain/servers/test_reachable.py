"""Servers that answer, that do not, and that are not there."""

import os
import socket
import ssl
import subprocess
import sys
from time import monotonic

import pytest

from retrain.errors import UsageError
from retrain.servers import reachable
from tests.tasks.pull.pulling import serving
from tests.tasks.pull.test_file_sources import Answer


@pytest.fixture
def silent(monkeypatch):
    """A port where a connection is taken and nothing is ever said."""
    monkeypatch.setattr(reachable, "SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


ADDRESSES = ["http://127.0.0.1:{}/api", "https://127.0.0.1:{}/api", "127.0.0.1:{}"]


@pytest.mark.parametrize("address", ADDRESSES[:2])
def test_a_server_that_says_nothing_is_an_error_within_seconds(silent, address):
    began = monotonic()
    with pytest.raises(ConnectionError, match=r"^X: nothing answers at .*127\.0\.0\.1") as error:
        reachable.check("X", address.format(silent), "/health")
    assert monotonic() - began < 2
    assert len(str(error.value).splitlines()) == 1


def test_the_login_of_a_web_server_is_refused_in_its_url():
    with pytest.raises(UsageError, match="MLFLOW_TRACKING_PASSWORD") as error:
        reachable.check("MLFLOW_TRACKING_URI", "https://ann:geheim@h/")
    assert "geheim" not in str(error.value)
    with pytest.raises(UsageError, match="PREFECT_API_AUTH_STRING"):
        reachable.check("PREFECT_API_URL", "http://ann:geheim@127.0.0.1:4200/api")


@pytest.mark.parametrize("address", ADDRESSES)
def test_a_server_that_is_down_is_an_error(address):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(ConnectionError, match="Start that server, or correct X"):
        reachable.check("X", address.format(port))


def test_any_answer_of_a_web_server_is_one():
    class Refusing(Answer):
        status = 401

    with serving(Refusing) as url:
        reachable.check("X", url, "/health")
        assert not reachable.answers(url)


def test_a_server_that_wants_a_certificate_of_the_client_answers(tmp_path):
    """Which one it is, MLflow's client is told by MLFLOW_TRACKING_CLIENT_CERT_PATH."""
    key, own = tmp_path / "key.pem", tmp_path / "own.pem"
    make = "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost -keyout"
    subprocess.run([*make.split(), key, "-out", own], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own, key)
    for context.verify_mode in (ssl.CERT_NONE, ssl.CERT_REQUIRED):
        with serving(Answer, context) as url:
            reachable.check("MLFLOW_TRACKING_URI", url.replace("http:", "https:"), "/health")


def test_what_speaks_no_tls_is_said_for_a_secure_address():
    with serving(Answer) as url, pytest.raises(ConnectionError, match="correct PREFECT_API_URL"):
        reachable.check("PREFECT_API_URL", url.replace("http:", "https:"), "/health")


def test_this_machine_is_not_asked_through_a_proxy():
    """The clients of Prefect and MLflow, and our own check, go by the same variables."""
    code = "import os, retrain; print(os.environ['no_proxy'], os.environ['NO_PROXY'])"
    for variable in ({}, {"NO_PROXY": "intern"}, {"no_proxy": "intern"}):
        own = {k: v for k, v in os.environ.items() if k.lower() != "no_proxy"} | variable
        done = subprocess.run(
            [sys.executable, "-c", code], env=own, capture_output=True, text=True, check=True
        )
        expected = ",".join([*variable.values(), "127.0.0.1,localhost"])
        assert done.stdout.split() == [expected, expected]


@pytest.mark.parametrize(
    ("variables", "is_told"),
    [
        ({}, False),
        ({"http_proxy": "http://proxy:3128"}, True),
        ({"HTTP_PROXY": "http://proxy:3128", "no_proxy": ".intern,127.0.0.1"}, False),
    ],
)
def test_a_proxy_that_prefects_own_commands_would_ask_is_told(variables, is_told):
    code = "from retrain.servers import reachable; print(reachable.proxy_fault() or '')"
    own = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")} | variables
    done = subprocess.run(
        [sys.executable, "-c", code], env=own, capture_output=True, text=True, check=True
    )
    assert done.stdout.endswith("export NO_PROXY=127.0.0.1,localhost\n") == is_told
