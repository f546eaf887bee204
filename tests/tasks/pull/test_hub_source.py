"""Data sets on a hub on this machine."""

import hashlib
import json

import pytest
from huggingface_hub import constants

from retrain.errors import UsageError
from retrain.project import Project
from tests.tasks.pull.pulling import pulled, serving
from tests.tasks.pull.test_url_source import Answer

SHA = "0123456789abcdef0123456789abcdef01234567"
HUB_FILES = {"README.md": b"# Pets", "data/train-00000-of-00001.parquet": b"PAR1 train"}


class HubServer(Answer):
    """The few requests of the Hugging Face hub that a data set takes."""

    files = HUB_FILES
    sha = SHA
    sent: list[str] = []  # noqa: RUF012  the files that were asked for

    def do_GET(self):  # noqa: N802
        oids = {name: hashlib.sha1(body).hexdigest() for name, body in self.files.items()}
        tree = [
            {"type": "file", "path": name, "size": len(body), "oid": oids[name],
             "lfs": {"oid": hashlib.sha256(body).hexdigest(), "size": 9, "pointerSize": 9}}
            for name, body in self.files.items()
        ]  # fmt: skip
        description = {"id": "me/pets", "sha": self.sha, "siblings": []}
        answers = {
            "/api/datasets/me/pets/revision/main": (json.dumps(description).encode(), "main"),
            f"/api/datasets/me/pets/tree/{self.sha}": (json.dumps(tree).encode(), "tree"),
        }
        for name, body in self.files.items():
            answers[f"/datasets/me/pets/resolve/{self.sha}/{name}"] = (body, oids[name])
        path = self.path.partition("?")[0]
        if path in answers:
            self.body, tag = answers[path]
            if self.command == "GET" and "/resolve/" in path:
                self.sent.append(path.rpartition("/")[2])
            self.headers_sent = {"X-Repo-Commit": self.sha, "ETag": f'"{tag}"'}
        else:
            self.status, self.body = 404, b""
            missing = "RevisionNotFound" if "/me/pets/" in path else "RepoNotFound"
            self.headers_sent = {"X-Error-Code": missing}
        super().do_GET()

    do_HEAD = do_GET  # noqa: N815


@pytest.fixture
def pull(tmp_path, monkeypatch):
    """Pulls from a hub, which is given by its handler, or is away if that is None."""

    def call(path, handler=HubServer, pull=pulled):
        with serving(handler or HubServer) as served:
            url = served if handler else "http://127.0.0.1:9"
            resolve = f"{url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
            monkeypatch.setattr(constants, "ENDPOINT", url)
            monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", resolve)
            monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
            return pull(Project(tmp_path), path, format="hub")

    return call


def test_the_parquet_files_of_a_hub_data_set_are_pulled_at_its_commit(pull):
    version, files, facts = pull("me/pets")
    assert version.digest == SHA
    assert (files, facts) == (
        {"data/train-00000-of-00001.parquet": "PAR1 train"},
        {"format": "parquet"},
    )
    assert pull(f"me/pets@{SHA}") == (version, files, facts)


@pytest.mark.parametrize("path", ["me/nothing", "me/pets@nothing", "not a name"])
def test_a_data_set_that_the_hub_has_not_is_named(pull, path):
    with pytest.raises(UsageError, match=r"data\.path: the Hugging Face hub gives no"):
        pull(path)


@pytest.mark.parametrize(
    ("files", "fault"),
    [
        ({"README.md": b"# Pets"}, "me/pets.*me/pets@refs/convert/parquet"),
        (HUB_FILES | {"data/../../../out.parquet": b"PAR1"}, "Invalid filename 'data"),
    ],
)
def test_a_data_set_without_parquet_files_or_with_a_name_outside_is_refused(pull, files, fault):
    with pytest.raises(ValueError, match=fault):
        pull("me/pets", type("Handler", (HubServer,), {"files": files}))


def test_a_hub_that_is_away_is_an_error_that_is_tried_again(pull):
    with pytest.raises(ConnectionError, match="The data set me/pets on the Hugging Face hub"):
        pull("me/pets", None)
