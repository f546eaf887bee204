"""Data sets on a hub on this machine."""

import hashlib
import json
from urllib.parse import quote, unquote

import datasets
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
    asked: list[str] = []  # noqa: RUF012  the paths of the requests

    def do_GET(self):  # noqa: N802
        oids = {name: hashlib.sha1(body).hexdigest() for name, body in self.files.items()}
        path, _, query = self.path.partition("?")
        folder = unquote(path.partition(f"/tree/{self.sha}/")[2])
        tree = []
        for name, body in self.files.items():
            if name.startswith(f"{folder}/" if folder else ""):
                lfs = {"oid": hashlib.sha256(body).hexdigest(), "size": 9, "pointerSize": 9}
                file = {"type": "file", "path": name, "size": len(body), "oid": oids[name]}
                tree.append(file | {"lfs": lfs})
        if "recursive=true" not in query.lower():
            tree = children(tree, folder)
        description = {"id": "me/pets", "sha": self.sha, "siblings": []}
        answers = {
            "/api/datasets/me/pets/revision/main": (json.dumps(description).encode(), "main"),
            f"/api/datasets/me/pets/revision/{self.sha}": (json.dumps(description).encode(), "sha"),
            f"/api/datasets/me/pets/tree/{self.sha}": (json.dumps(tree).encode(), "tree"),
            f"/api/datasets/me/pets/tree/{self.sha}/{quote(folder, safe='')}": (
                json.dumps(tree).encode(),
                "tree",
            ),
        }
        for name, body in self.files.items():
            answers[f"/datasets/me/pets/resolve/{self.sha}/{name}"] = (body, oids[name])
        self.asked.append(path)
        if path in answers:
            self.body, tag = answers[path]
            self.headers_sent = {"X-Repo-Commit": self.sha, "ETag": f'"{tag}"'}
        else:
            self.status, self.body = 404, b""
            missing = "RevisionNotFound" if "/me/pets/" in path else "RepoNotFound"
            self.headers_sent = {"X-Error-Code": missing}
        super().do_GET()

    do_HEAD = do_GET  # noqa: N815


def children(files, folder):
    """What is directly in a folder: files, and folders."""
    start, found = len(folder) + 1 if folder else 0, {}
    for file in files:
        name, _, below = file["path"][start:].partition("/")
        path = f"{folder}/{name}".lstrip("/")
        found[path] = (
            {"type": "directory", "path": path, "oid": "0" * 40, "size": 0} if below else file
        )
    return list(found.values())


@pytest.fixture
def pull(tmp_path, monkeypatch):
    """Pulls from a hub, which is given by its handler, or is away if that is None."""

    def call(path, handler=HubServer, **data):
        with serving(handler or HubServer) as served:
            url = served if handler else "http://127.0.0.1:9"
            resolve = f"{url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
            monkeypatch.setattr(constants, "ENDPOINT", url)
            monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", resolve)
            monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
            monkeypatch.setattr(datasets.config, "HF_ENDPOINT", url)
            return pulled(Project(tmp_path), path, format="hub", **data)

    return call


def test_the_parquet_files_of_a_hub_data_set_are_pulled_at_its_commit(pull):
    version, files, facts = pull("me/pets")
    assert version.digest == SHA
    assert (files, facts) == (
        {"README.md": "# Pets", "data/train-00000-of-00001.parquet": "PAR1 train"},
        {"format": "parquet"},
    )
    HubServer.asked.clear()
    assert pull(f"me/pets@{SHA}") == (version, files, facts)
    assert not any("/revision/" in path for path in HubServer.asked)


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


CARD = """---
configs:
- config_name: digits
  data_files:
  - split: train
    path: digits/train/*
  - split: validation
    path: [digits/dev/a.parquet, digits/dev/b.parquet]
- config_name: parity
  data_files:
  - split: test
    path: parity/test/0.parquet
---
# Pets
"""
SEVERAL = dict.fromkeys(
    (
        "digits/train/0.parquet", "digits/dev/a.parquet", "digits/dev/b.parquet",
        "digits/extra/0.parquet", "digits/test/0.parquet",
        "parity/test/0.parquet", "parity/train/0.parquet",
    ),
    b"PAR1",
)  # fmt: skip


def serving_files(files):
    return type("Handler", (HubServer,), {"files": files})


def test_only_the_files_of_the_named_configuration_are_downloaded(pull):
    handler = serving_files(SEVERAL | {"README.md": CARD.encode()})
    assert set(pull("me/pets", handler, configuration="digits")[1]) == {
        "README.md", "digits/train/0.parquet", "digits/dev/a.parquet", "digits/dev/b.parquet",
    }  # fmt: skip
    assert set(pull("me/pets", handler, configuration="parity")[1]) == {
        "README.md", "parity/test/0.parquet",
    }  # fmt: skip


@pytest.mark.parametrize("card", [CARD, "# Pets"])
def test_a_data_set_of_several_configurations_is_asked_for_one(pull, card):
    handler = serving_files(SEVERAL | {"README.md": card.encode()})
    with pytest.raises(UsageError, match=r"^data\.configuration: .*several.* digits, parity\.$"):
        pull("me/pets", handler)
    with pytest.raises(UsageError, match=r"no configuration 'colour'.* digits, parity\.$"):
        pull("me/pets", handler, configuration="colour")


def test_without_a_card_a_configuration_is_a_folder(pull):
    files = pull("me/pets", serving_files(SEVERAL), configuration="parity")[1]
    assert set(files) == {"parity/test/0.parquet", "parity/train/0.parquet"}


def test_nothing_is_written_outside_the_runs_folder(pull, tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "home" / "hub"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "home" / "datasets")
    pull("me/pets", serving_files(SEVERAL | {"README.md": CARD.encode()}), configuration="digits")
    assert not (tmp_path / "home").exists()
