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

ADDRESSES = ["http://127.0.0.1:{}/api", "https://127.0.0.1:{}/api", "127.0.0.1:{}"]


@pytest.mark.parametrize(
    ("address", "is_up"),
    [*((each, False) for each in ADDRESSES), *((each, True) for each in ADDRESSES[:2])],
)
def test_a_server_that_is_down_or_says_nothing_is_an_error_within_seconds(
    monkeypatch, address, is_up
):
    monkeypatch.setattr(reachable, "SECONDS", 0.3)
    began = monotonic()
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = address.format(server.getsockname()[1])
        if not is_up:
            server.close()
        with pytest.raises(
            ConnectionError, match=r"^X: nothing answers at .*127\.0\.0\.1"
        ) as error:
            reachable.check("X", place, "/health")
    assert monotonic() - began < 2
    assert str(error.value).endswith("Start that server, or correct X.")
    assert len(str(error.value).splitlines()) == 1


def test_the_login_of_a_web_server_is_refused_in_its_url():
    for name, remedy in reachable.LOGINS.items():
        with pytest.raises(UsageError, match=remedy) as error:
            reachable.check(name, "https://ann:geheim@h/")
        assert "geheim" not in str(error.value)


class Refusing(Answer):
    status = 401


def test_any_answer_is_one_also_that_of_a_server_that_wants_a_certificate_of_the_client(tmp_path):
    """Which one it is, MLflow's client is told by MLFLOW_TRACKING_CLIENT_CERT_PATH."""
    key, own = tmp_path / "key.pem", tmp_path / "own.pem"
    make = "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost -keyout"
    subprocess.run([*make.split(), key, "-out", own], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own, key)
    for context.verify_mode in (ssl.CERT_NONE, ssl.CERT_REQUIRED):
        with serving(Refusing, context) as url:
            assert not reachable.answers(url.replace("http:", "https:"))
            reachable.check("MLFLOW_TRACKING_URI", url.replace("http:", "https:"), "/health")


def test_what_speaks_no_tls_is_said_for_a_secure_address():
    with serving(Answer) as url, pytest.raises(ConnectionError, match="correct PREFECT_API_URL"):
        reachable.check("PREFECT_API_URL", url.replace("http:", "https:"), "/health")


OWN = "127.0.0.1,localhost"


@pytest.mark.parametrize(
    ("variables", "expected", "is_told"),
    [
        ({}, OWN, False),
        ({"NO_PROXY": "intern"}, f"intern,{OWN}", False),
        ({"no_proxy": "intern"}, f"intern,{OWN}", False),
        ({"http_proxy": "http://proxy:3128"}, OWN, True),
        ({"HTTP_PROXY": "http://p:1", "no_proxy": "in,127.0.0.1"}, f"in,127.0.0.1,{OWN}", False),
        ({"http_proxy": "http://p:1", "no_proxy": "*"}, f"*,{OWN}", False),
    ],
)
def test_this_machine_is_not_asked_through_a_proxy(variables, expected, is_told):
    """Our clients go by these variables; of the user's own Prefect, we tell what it would do."""
    code = (
        "import os; from retrain.servers import reachable; "
        "print(os.environ['no_proxy'], os.environ['NO_PROXY'], reachable.proxy_fault() or '')"
    )
    own = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")} | variables
    done = subprocess.run(
        [sys.executable, "-c", code], env=own, capture_output=True, text=True, check=True
    )
    assert done.stdout.split()[:2] == [expected, expected]
    assert done.stdout.endswith(f"export NO_PROXY={OWN}\n") == is_told
