"""Data sets on a hub on this machine."""

import hashlib
import json
import os
import re
import subprocess
import sys
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from tests.tasks.pull.pulling import serving

ROOT = Path(__file__).parents[3]

SHA = "0123456789abcdef0123456789abcdef01234567"
HUB_FILES = {"README.md": b"# Pets", "data/train-00000-of-00001.parquet": b"PAR1 train"}


def _oid(body):
    return hashlib.sha1(body).hexdigest()


class HubServer(BaseHTTPRequestHandler):
    """The few requests of the Hugging Face hub that a data set takes."""

    files = HUB_FILES

    def do_GET(self):
        path = self.path.partition("?")[0]
        resolve = f"/datasets/me/pets/resolve/{SHA}/"
        if path == "/api/datasets/me/pets/revision/main":
            self.answer(json.dumps({"id": "me/pets", "sha": SHA, "siblings": []}).encode())
        elif path == f"/api/datasets/me/pets/tree/{SHA}":
            tree = [
                {"type": "file", "path": name, "size": len(body), "oid": _oid(body)}
                for name, body in self.files.items()
            ]
            self.answer(json.dumps(tree).encode())
        elif path.startswith(resolve):
            name = path.removeprefix(resolve)
            self.answer(
                self.files[name], {"X-Repo-Commit": SHA, "ETag": f'"{_oid(self.files[name])}"'}
            )
        else:
            self.send_response(404)
            missing = "RevisionNotFound" if "/me/pets/" in path else "RepoNotFound"
            self.send_header("X-Error-Code", missing)
            self.send_header("Content-Length", "0")
            self.end_headers()

    do_HEAD = do_GET  # noqa: N815

    def answer(self, body, headers=None):
        self.send_response(200)
        for key, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_):
        pass


def pull_from_hub(tmp_path, url, path):
    """Pulls in another process, because the hub's address is read when its client is imported."""
    program = (
        "import json, sys; from pathlib import Path; from retrain.project import Project;"
        "from tests.tasks.pull.pulling import pulled;"
        "version, files, facts = pulled(Project(Path.cwd()), sys.argv[1], format='hub');"
        "print(json.dumps([version.digest, files, facts]))"
    )
    environment = os.environ | {
        "HF_ENDPOINT": url,
        "HF_HOME": str(tmp_path / "home"),
        "PYTHONPATH": str(ROOT),
    }
    environment.pop("HF_HUB_OFFLINE", None)
    return subprocess.run(
        [sys.executable, "-c", program, path],
        cwd=tmp_path, env=environment, capture_output=True, text=True,
    )  # fmt: skip


def test_the_parquet_files_of_a_hub_data_set_are_pulled_at_its_commit(tmp_path):
    with serving(HubServer) as url:
        done = pull_from_hub(tmp_path, url, "me/pets")
        again = pull_from_hub(tmp_path, url, f"me/pets@{SHA}")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [
        SHA,
        {"data/train-00000-of-00001.parquet": "PAR1 train"},
        {"format": "parquet"},
    ]
    assert again.stdout == done.stdout


@pytest.mark.parametrize("path", ["me/nothing", "me/pets@nothing", "not a name"])
def test_a_data_set_that_the_hub_has_not_is_named(tmp_path, path):
    with serving(HubServer) as url:
        done = pull_from_hub(tmp_path, url, path)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("retrain.errors.UsageError: data.path: the Hugging Face hub gives no")


@pytest.mark.parametrize(
    ("files", "fault"),
    [
        ({"README.md": b"# Pets"}, "UsageError: data.path: me/pets.*me/pets@refs/convert/parquet"),
        (HUB_FILES | {"data/../../../out.parquet": b"PAR1"}, "ValueError: Invalid filename 'data"),
    ],
)
def test_a_data_set_without_parquet_files_or_with_a_name_outside_is_refused(tmp_path, files, fault):
    handler = type("Handler", (HubServer,), {"files": files})
    with serving(handler) as url:
        done = pull_from_hub(tmp_path, url, "me/pets")
    assert re.search(fault, done.stderr.strip().splitlines()[-1])


def test_a_hub_that_is_away_is_an_error_that_is_tried_again(tmp_path):
    with serving(HubServer) as url:
        pass
    done = pull_from_hub(tmp_path, url, "me/pets")
    assert "ConnectionError: The data set me/pets on the Hugging Face hub" in done.stderr
