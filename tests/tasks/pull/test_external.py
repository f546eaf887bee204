"""Data outside DVC: folders, URLs on a real server, and a hub on this machine."""

import hashlib
import json
import os
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler
from pathlib import Path

import fsspec
import pytest

from retrain.caching import is_transient
from retrain.errors import UsageError
from retrain.project import Project
from retrain.workload import Data
from tasks.pull.external import LocalSource, UrlSource
from tasks.pull.step import data_version
from tests.tasks.pull.pulling import make_files, pulled, serving

ROOT = Path(__file__).parents[3]


@pytest.fixture
def project(tmp_path):
    (tmp_path / "clone").mkdir()
    return Project(tmp_path / "clone")


def version_of(project, path, **data):
    return data_version(Data(path=str(path), **data), project).digest


def test_a_folder_is_copied_without_what_is_hidden(project, tmp_path):
    make_files(tmp_path / "pets", "cat/1.png", "dog/1.png", ".git/x", "cat/.DS_Store")
    version, files, facts = pulled(project, tmp_path / "pets")
    assert files == {"cat/1.png": "cat/1.png", "dog/1.png": "dog/1.png"}
    assert facts == {"format": "folders"}
    assert not version.tracked


def test_a_relative_path_starts_at_the_project_and_a_tilde_at_home(project, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    make_files(tmp_path / "pets", "cat/1.png")
    assert pulled(project, "../pets") == pulled(project, "~/pets")


def test_linked_folders_are_followed(project, tmp_path):
    make_files(tmp_path / "there", "1.png")
    make_files(tmp_path / "pets", "dog/1.png")
    (tmp_path / "pets" / "cat").symlink_to(tmp_path / "there")
    assert pulled(project, tmp_path / "pets")[1] == {"cat/1.png": "1.png", "dog/1.png": "dog/1.png"}


def test_a_folders_version_is_its_names_and_bytes_alone(project, tmp_path):
    make_files(tmp_path / "a", "cat/1.png", "dog/1.png")
    make_files(tmp_path / "b", "dog/1.png", "cat/1.png")
    os.utime(tmp_path / "b" / "dog" / "1.png", (0, 0))
    same = version_of(project, tmp_path / "a")
    assert version_of(project, tmp_path / "b") == same
    (tmp_path / "b" / "dog" / "1.png").write_text("dog/1.pnG")
    assert version_of(project, tmp_path / "b") != same
    (tmp_path / "a" / "dog" / "1.png").rename(tmp_path / "a" / "dog" / "2.png")
    assert version_of(project, tmp_path / "a") != same


def test_a_folder_that_changes_during_the_run_is_an_error(tmp_path):
    make_files(tmp_path / "pets", "cat/1.png")
    place = LocalSource(tmp_path / "pets")
    digest = place.digest()
    make_files(tmp_path / "pets", "cat/2.png")
    with pytest.raises(ValueError, match="has changed since the run started"):
        place.fetch(digest, tmp_path / "target", tmp_path)


def test_a_place_that_is_not_there_or_empty_is_named(project, tmp_path):
    with pytest.raises(UsageError, match="nowhere does not exist"):
        version_of(project, tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="empty is empty"):
        version_of(project, tmp_path / "empty")


@pytest.mark.parametrize("path", ["/tmp", "memory://pets", "https://127.0.0.1/pets.zip"])
def test_git_knows_no_version_of_data_outside_dvc(project, path):
    with pytest.raises(UsageError, match="is not under DVC"):
        data_version(Data(path=path), project, "HEAD")


def test_a_folder_at_a_url_is_downloaded(project):
    memory = fsspec.filesystem("memory")
    memory.pipe({"/pets/cat/1.png": b"1", "/pets/dog/2.png": b"2", "/pets/.x/3.png": b"3"})
    try:
        version, files, facts = pulled(project, "memory://pets")
        assert files == {"cat/1.png": "1", "dog/2.png": "2"}
        assert facts == {"format": "folders"}
        assert pulled(project, "memory://pets")[0] == version
        memory.pipe("/pets/dog/2.png", b"3")
        assert pulled(project, "memory://pets")[0] != version
    finally:
        memory.rm("/pets", recursive=True)


def test_a_file_url_is_a_url(project, tmp_path):
    make_files(tmp_path / "pets", "cat/1.png", "dog/1.png")
    assert set(pulled(project, f"file://{tmp_path}/pets")[1]) == {"cat/1.png", "dog/1.png"}


def test_a_file_on_a_web_server_has_the_servers_version(project, tmp_path):
    make_files(tmp_path, "train.parquet")

    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *arguments):
            super().__init__(*arguments, directory=str(tmp_path))

    with serving(Handler) as url:
        version, files, facts = pulled(project, f"{url}/train.parquet?download=true")
        assert files == {"train.parquet": "train.parquet"}
        assert facts == {"format": "parquet"}
        os.utime(tmp_path / "train.parquet", (0, 0))
        assert version_of(project, f"{url}/train.parquet?download=true") != version.digest
        with pytest.raises(UsageError, match=f"nothing at {url}/test.parquet"):
            version_of(project, f"{url}/test.parquet")
    with pytest.raises(ConnectionError, match="Is it reachable") as error:
        version_of(project, f"{url}/train.parquet")
    assert is_transient(error.value)


class Answer(BaseHTTPRequestHandler):
    """Gives the class's own answer to every request."""

    status = 200
    body = b"x"
    headers_sent: dict[str, str] = {}  # noqa: RUF012

    def do_GET(self):
        self.send_response(self.status)
        for name, value in self.headers_sent.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(self.body)

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, *_):
        pass


def test_what_a_server_says_nothing_of_is_versioned_by_its_bytes(project):
    class Silent(Answer):
        pass

    with serving(Silent) as url:
        first = version_of(project, f"{url}/a.zip")
        assert version_of(project, f"{url}/a.zip") == first
        Silent.body = b"y"
        assert version_of(project, f"{url}/a.zip") != first


def test_an_etag_counts_and_the_time_then_does_not(project):
    class Tagged(Answer):
        headers_sent = {"ETag": "1", "Last-Modified": "Sat, 21 Nov 2026 00:00:00 GMT"}  # noqa: RUF012

    with serving(Tagged) as url:
        first = version_of(project, f"{url}/a.zip")
        Tagged.headers_sent = {"ETag": "1", "Last-Modified": "Sun, 22 Nov 2026 00:00:00 GMT"}
        assert version_of(project, f"{url}/a.zip") == first
        Tagged.headers_sent = {"ETag": "2"}
        assert version_of(project, f"{url}/a.zip") != first


@pytest.mark.parametrize(
    ("status", "passes"), [(503, True), (429, True), (404, False), (403, False)]
)
def test_a_servers_refusal_is_tried_again_only_if_that_may_help(project, status, passes):
    class Refusing(Answer):
        pass

    Refusing.status = status
    with serving(Refusing) as url:
        with pytest.raises((UsageError, ConnectionError), match=url) as error:
            version_of(project, f"{url}/a.zip")
        assert is_transient(error.value) is passes


def test_a_file_that_changes_on_the_server_is_an_error(tmp_path):
    class Changing(Answer):
        headers_sent = {"ETag": "1"}  # noqa: RUF012

    with serving(Changing) as url:
        place = UrlSource(f"{url}/a.parquet")
        digest = place.digest()
        Changing.headers_sent = {"ETag": "2"}
        with pytest.raises(ValueError, match="has changed since the run started"):
            place.fetch(digest, tmp_path, tmp_path)


def test_a_download_that_breaks_off_is_an_error(tmp_path):
    class Broken(Answer):
        headers_sent = {"ETag": "1"}  # noqa: RUF012

        def do_GET(self):
            self.send_response(200)
            self.send_header("ETag", "1")
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b"x" * (0 if self.command == "HEAD" else 10))

        do_HEAD = do_GET  # noqa: N815

    with serving(Broken) as url:
        place = UrlSource(f"{url}/a.parquet")
        digest = place.digest()
        with pytest.raises(ConnectionError, match="cannot be read") as error:
            place.fetch(digest, tmp_path, tmp_path)
        assert is_transient(error.value)


@pytest.mark.parametrize("url", ["s3://bucket/pets", "nonsense://pets"])
def test_a_protocol_that_is_unknown_or_not_installed_is_named(project, url):
    with pytest.raises(UsageError, match=r"s3fs|nonsense"):
        version_of(project, url)


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


def test_a_data_set_without_parquet_files_says_where_there_may_be_some(tmp_path):
    class NoParquet(HubServer):
        files = {"README.md": b"# Pets"}  # noqa: RUF012

    with serving(NoParquet) as url:
        done = pull_from_hub(tmp_path, url, "me/pets")
    assert "UsageError: data.path: me/pets" in done.stderr
    assert "me/pets@refs/convert/parquet" in done.stderr


def test_a_hub_that_is_away_is_an_error_that_is_tried_again(tmp_path):
    with serving(HubServer) as url:
        pass
    done = pull_from_hub(tmp_path, url, "me/pets")
    assert "ConnectionError: The data set me/pets on the Hugging Face hub" in done.stderr
