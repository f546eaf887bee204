"""Files of this machine, and URLs on a real server."""

import errno
import os
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler
from pathlib import Path

import fsspec
import pytest

from retrain.errors import UsageError
from retrain.runs.task import is_transient
from tasks.pull import file_sources
from tasks.pull.file_sources import LocalSource, UrlSource, reaching
from tests.tasks.pull.pulling import make_files, pulled, read_files, serving, version_of


def test_a_relative_path_starts_at_the_project_and_a_tilde_at_home(project, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    make_files(tmp_path / "pets", "cat/1.png", "dog/1.png")
    found = pulled(project, "../pets")
    assert found == pulled(project, "~/pets") == pulled(project, f"file://{tmp_path}/pets")


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


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("nowhere", "nowhere does not exist"),
        ("pipes", "pipes has no regular file"),
        ("pipes/a.png", "a.png has no regular file"),
        ("to", r"^a\.png is a link to nowhere, which is not there"),
        ("round", r"^a\.png is a link to a\.png, which is not there"),
    ],
)
def test_a_place_without_data_is_named(project, tmp_path, path, said):
    for folder in ("pipes", "to", "round"):
        (tmp_path / folder).mkdir()
    os.mkfifo(tmp_path / "pipes/a.png")
    (tmp_path / "to/a.png").symlink_to("nowhere")
    (tmp_path / "round/a.png").symlink_to("a.png")
    with pytest.raises(ValueError, match=said):
        version_of(project, tmp_path / path)


def test_only_regular_files_that_are_not_hidden_are_data(project, tmp_path):
    root = tmp_path / "odd"
    make_files(root, "cat/1.png", "dog/1.png", ".git/x", "cat/.DS_Store")
    make_files(tmp_path / "there", "1.png")
    os.mkfifo(root / "cat/pipe.png")
    for link, to in {
        "cat/zero.png": Path("/dev/zero"),
        "dog/pipe.png": root / "cat/pipe.png",
        "dog/up": root,
        "dog/round": root / "dog",
        "dog/1 again.png": root / "dog/1.png",
        "ant": tmp_path / "there",
    }.items():
        (root / link).symlink_to(to)
    version, files, facts = pulled(project, root)
    assert (facts["format"], version.tracked) == ("folders", False)
    assert files == {
        "ant/1.png": "1.png", "cat/1.png": "cat/1.png",
        "dog/1.png": "dog/1.png", "dog/1 again.png": "dog/1.png",
    }  # fmt: skip


def test_a_file_that_goes_while_it_is_read_is_an_error_in_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(file_sources, "list_files", lambda root: [("cat/gone.png", 9)])
    for read in (LocalSource.digest, lambda source: source.fetch("", tmp_path / "to", tmp_path)):
        with pytest.raises(ValueError, match=r"has changed .*cat/gone\.png.*: run it again\.$"):
            read(LocalSource(tmp_path))


def test_a_folder_at_a_url_is_downloaded(project):
    memory = fsspec.filesystem("memory")
    memory.pipe({"/pets/cat/1.png": b"1", "/pets/dog/2.png": b"2", "/pets/.x/3.png": b"3"})
    _, files, facts = pulled(project, "memory://pets")
    assert (files, facts) == ({"cat/1.png": "1", "dog/2.png": "2"}, {"format": "folders"})
    memory.store["/pets/../../out.png"] = memory.store["/pets/dog/2.png"]  # as another may list it
    with pytest.raises(ValueError, match="leads out of its folder"):
        pulled(project, "memory://pets")
    memory.rm("/pets", recursive=True)


class Answer(BaseHTTPRequestHandler):
    """Gives the class's own answer to every request."""

    status = 200
    body = b"x"
    headers_sent: dict[str, str] = {}  # noqa: RUF012
    announced: int | None = None  # bytes, if not those of the body

    def do_GET(self):
        self.send_response(self.status)
        for name, value in self.headers_sent.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(self.announced or len(self.body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(self.body)

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, *_):
        pass


TAG, DAY = {"ETag": "1"}, {"Last-Modified": "Sat, 21 Nov 2026 00:00:00 GMT"}


@pytest.mark.parametrize(
    ("before", "same", "other"),
    [
        ({}, {}, ({}, b"y")),  # the server says nothing of it: it is versioned by its bytes
        (TAG | DAY, TAG, ({"ETag": "2"} | DAY, b"x")),
        (TAG, TAG, (TAG, b"xy")),
        (DAY, DAY, ({"Last-Modified": "Sun, 22 Nov 2026 00:00:00 GMT"}, b"x")),
    ],
)
def test_the_version_is_a_mark_of_the_content(before, same, other):
    def version(headers_sent, body=b"x"):
        handler = type("Handler", (Answer,), {"headers_sent": headers_sent, "body": body})
        with serving(handler) as url:
            return UrlSource(f"{url}/a.zip").digest()

    assert version(before) == version(same) != version(*other)


def test_a_file_on_a_web_server_is_asked_for_with_the_logins_of_the_user(
    project, tmp_path, monkeypatch
):
    make_files(tmp_path, "train.parquet")

    class Closed(SimpleHTTPRequestHandler):
        def do_GET(self):
            if self.headers["X-Token"] == "geheim" and "Basic" in self.headers["Authorization"]:
                super().do_GET()
            else:
                self.send_error(401)

    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login ann password geheim\n")
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    with serving(partial(Closed, directory=str(tmp_path))) as root:
        url = f"{root}/train.parquet?download=true"
        monkeypatch.setitem(fsspec.config.conf, "http", {"headers": {"X-Token": "geheim"}})
        assert pulled(project, url)[1] == {"train.parquet": "train.parquet"}
    with pytest.raises(ConnectionError, match="Is it reachable"):
        version_of(project, url)


@pytest.mark.parametrize(
    ("status", "passes"),
    [(503, True), (429, True), (401, False), (403, False), (404, False), (410, False)],
)
def test_a_servers_refusal_is_tried_again_only_if_that_may_help(project, status, passes):
    with serving(type("Refusing", (Answer,), {"status": status})) as url:
        with pytest.raises((UsageError, ConnectionError), match=url) as error:
            version_of(project, f"{url}/a.zip")
        assert is_transient(error.value) is passes


def test_a_file_that_changes_on_the_server_or_breaks_off_is_an_error(tmp_path):
    class Changing(Answer):
        headers_sent = {"ETag": "1"}  # noqa: RUF012

    with serving(Changing) as url:
        place = UrlSource(f"{url}/a.parquet")
        digest = place.digest()
        Changing.announced = 1000
        with pytest.raises(ConnectionError, match="cannot be read"):
            place.fetch(digest, tmp_path, tmp_path)
        Changing.announced, Changing.headers_sent = None, {"ETag": "2"}
        with pytest.raises(ValueError, match="has changed since the run started"):
            place.fetch(digest, tmp_path, tmp_path)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (TimeoutError(), r"^Is it there\? \(TimeoutError\)$"),
        (RuntimeError("no\n  answer"), r"^Is it there\? \(no answer\)$"),
        # No fault of the storage: it stays as it is.
        (OSError(errno.ENOSPC, "full"), r"^\[Errno 28\] full$"),
        (ValueError("a verdict"), "^a verdict$"),
    ],
)
def test_what_a_storage_library_says_is_one_line(error, said):
    with pytest.raises((OSError, ValueError), match=said), reaching("Is it there?"):
        raise error


@pytest.mark.parametrize("url", ["gs://bucket/pets", "nonsense://pets"])
def test_a_protocol_that_is_unknown_or_not_installed_is_named(project, url):
    with pytest.raises(UsageError, match=r"gcsfs|nonsense"):
        version_of(project, url)


def test_files_that_a_killed_download_has_fetched_are_not_fetched_again(tmp_path):
    names = ["cat/1.png", "dog/1.png", "dog/2.png"]
    memory = fsspec.filesystem("memory")
    memory.pipe({f"/killed/{name}": name.encode() for name in names})
    source = UrlSource("memory://killed")
    source.fetch(source.digest(), tmp_path / "killed", tmp_path)
    for place, content in zip((tmp_path / "url").iterdir(), ("half", "was there"), strict=False):
        place.unlink()
        place.write_text(content)
    source.fetch(source.digest(), tmp_path / "whole", tmp_path)
    files = read_files(tmp_path / "whole")
    assert [text for name, text in files.items() if text != name] == ["was there"]
    assert [*files] == names
