"""Servers that answer, that do not, and that are not there."""

import socket
from io import StringIO
from threading import Timer
from time import monotonic

import pytest

from retrain.errors import UsageError
from retrain.runs import console
from retrain.servers import reachable
from tests.tasks.pull.pulling import serving
from tests.tasks.pull.test_url_source import Answer


@pytest.fixture
def silent(monkeypatch):
    """A port where a connection is taken and nothing is ever said."""
    monkeypatch.setattr(reachable, "SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


ADDRESSES = ["http://127.0.0.1:{}/api", "127.0.0.1:{}", "ray://127.0.0.1:{}"]


@pytest.mark.parametrize("address", ADDRESSES)
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


def test_a_run_that_is_under_way_waits_once_for_a_server_and_says_so(monkeypatch):
    monkeypatch.setattr(reachable, "AGAIN_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    late = socket.socket()
    late.bind(("127.0.0.1", port))
    said = StringIO()
    with console.shown_on(said), reachable.patient():
        Timer(0.5, late.listen).start()
        reachable.check("X", f"postgresql://127.0.0.1:{port}/mlflow")
        assert "The run waits for it." in said.getvalue()
        late.close()
        # Undone in the block, whose end sets the patience of later tests back.
        with monkeypatch.context() as hurried:
            hurried.setattr(reachable, "_patience", 0.3)
            for least, most in ((0.3, 5.0), (0.0, 0.3)):
                began = monotonic()
                with pytest.raises(ConnectionError, match="Start that server"):
                    reachable.check("X", f"postgresql://127.0.0.1:{port}/mlflow")
                assert least <= monotonic() - began < most
    assert reachable._patience == 0
