"""What a run leaves, shows and opens: no secret, only its own lines, only loopback.

The data is on a web server that wants a password, from a `.netrc`, and a token, from the
configuration of fsspec.
"""

import base64
import json
import re
import secrets
import shutil
import threading
from contextlib import contextmanager, suppress
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from time import sleep

import psutil
import pytest

from tests import templates
from tests.flows.conftest import RETRAIN, draw_photos, make_clone
from tests.flows.test_terminal import ESCAPE, Terminal

pytestmark = pytest.mark.slow

SECRETS = PASSWORD, TOKEN, HUB, BUCKET, WEBHOOK = [secrets.token_hex(8) for _ in range(5)]
ENVIRONMENT = {
    "HF_TOKEN": HUB,
    "AWS_SECRET_ACCESS_KEY": BUCKET,
    "RETRAIN_WEBHOOK_URL": f"http://127.0.0.1:9/{WEBHOOK}",
    "FSSPEC_HTTP": json.dumps({"headers": {"X-Token": TOKEN}}),
}
SIZES = ("--set", "images.channels=3", "--set", "images.size=8")


@contextmanager
def serving_photos(folder, *, breaks=False):
    """Serves a folder to who has the password and the token; yields the URL."""
    login = "Basic " + base64.b64encode(f"ann:{PASSWORD}".encode()).decode()

    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *arguments):
            super().__init__(*arguments, directory=str(folder))

        def do_GET(self):
            if self.command == "GET" and breaks:
                self.send_error(500)
            elif self.headers["Authorization"] == login and self.headers["X-Token"] == TOKEN:
                getattr(super(), f"do_{self.command}")()
            else:
                self.send_error(401)

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/photos.zip"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    draw_photos(folder / "photos")
    shutil.make_archive(str(folder / "photos"), "zip", folder / "photos")
    return folder


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    made = make_clone(tmp_path_factory.mktemp("secrets"), "")
    templates.place_prefect_database(made.root)
    return made


@pytest.fixture(scope="module")
def netrc(tmp_path_factory):
    """The variable with the file that has the password."""
    file = tmp_path_factory.mktemp("home") / ".netrc"
    file.write_text(f"machine 127.0.0.1 login ann password {PASSWORD}\n")
    file.chmod(0o600)
    return {"NETRC": str(file)}


@pytest.fixture(scope="module")
def interactive(clone, served, netrc):
    """What the clone's first run shows in a terminal, and where its processes listened."""
    listening = set()
    with serving_photos(served) as url:
        more = ENVIRONMENT | netrc
        given = (*RETRAIN, "train", "vit", "--set", f"data.path={url}", *SIZES)
        terminal = Terminal(clone, *given, columns=400, **more)  # so that no line is wrapped
        process = psutil.Process(terminal.process.pid)
        watching = threading.Thread(target=watch, args=(process, listening))
        watching.start()
        text = ESCAPE.sub("", terminal.end())
        watching.join()
    return text, listening


def watch(process, listening):
    """Notes where a process and its children listen, until it ends."""
    while process.is_running():
        for each in (process, *process.children(recursive=True)):
            with suppress(psutil.Error):
                listening |= {
                    socket.laddr.ip.removeprefix("::ffff:")
                    for socket in each.net_connections("inet")
                    if socket.status == psutil.CONN_LISTEN
                }
        sleep(0.5)


def left_in(folder):
    """The files in a folder that have a secret in them."""
    return [
        path
        for path in folder.rglob("*")
        if path.is_file()
        if any(secret.encode() in path.read_bytes() for secret in SECRETS)
    ]


OURS = re.compile(
    r"[⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏ ]*(starting|pull|validate|preprocess|train|evaluate|gate|promote|metric|─+"
    r"|best epoch|accuracy|calibration_error|log_loss|macro_|rows|worst_class_recall|vit version 1"
    r"|These files differ from the commit|Class 'class-0' is never predicted|report|plots"
    r"|To answer always|The network has started from random weights"
    r"|MLflow run|Makes mlflow.db|took|The data at http://127.0.0.1)"
)


def test_a_terminal_gets_our_lines_only(interactive):
    lines = [line for line in re.split(r"[\r\n]+", interactive[0]) if line.strip()]
    assert [line for line in lines if not OURS.match(line)] == []
    assert any(line.startswith("took ") for line in lines)


def test_a_run_listens_on_loopback_only(interactive):
    assert interactive[1] == {"127.0.0.1"}


def test_a_run_shows_and_leaves_no_secret(interactive, clone):
    assert not any(secret in interactive[0] for secret in SECRETS)
    assert left_in(clone.root) == []
    [record] = (clone.root / ".retrain" / "runs" / "train" / "vit").glob("latest.json")
    path = json.loads(record.read_text(encoding="utf-8"))["data"]["path"]
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/photos\.zip", path)


def test_a_run_that_fails_shows_and_leaves_no_secret(interactive, clone, served, netrc):
    with serving_photos(served, breaks=True) as url:
        arguments = (*RETRAIN, "train", "vit", "--json", *SIZES, "--set", f"data.path={url}")
        done = clone.run(*arguments, code=1, **ENVIRONMENT, **netrc)
    assert "cannot be read. Is it reachable?" in json.loads(done.stdout)["error"]
    assert "cannot be read. Is it reachable?" in done.stderr
    assert not any(secret in done.stdout + done.stderr for secret in SECRETS)
    assert left_in(clone.root) == []
