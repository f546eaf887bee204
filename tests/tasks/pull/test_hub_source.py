"""Data sets on a hub on this machine."""

import hashlib
import json

import pytest
from huggingface_hub import constants

from retrain.errors import UsageError
from retrain.project import Project
from tests.tasks.pull.pulling import parquet, pulled, serving
from tests.tasks.pull.test_url_source import Answer

SHA = "0123456789abcdef0123456789abcdef01234567"
HUB_FILES = {"README.md": b"# Pets", "data/train-00000-of-00001.parquet": parquet("PAR1 train")}


def serving_files(files):
    return type("Handler", (HubServer,), {"files": files})


class HubServer(Answer):
    """The few requests of the Hugging Face hub that a data set takes."""

    files = HUB_FILES
    asked: list[str] = []  # noqa: RUF012  the paths of the requests

    def do_GET(self):  # noqa: N802
        path = self.path.partition("?")[0]
        description = {"id": "me/pets", "sha": SHA, "siblings": []}
        tree = [
            {"type": "file", "path": name, "size": len(body), "oid": hashlib.sha1(body).hexdigest()}
            for name, body in self.files.items()
        ]
        answers = {
            "/api/datasets/me/pets/revision/main": json.dumps(description).encode(),
            f"/api/datasets/me/pets/tree/{SHA}": json.dumps(tree).encode(),
        }
        for name, body in self.files.items():
            answers[f"/datasets/me/pets/resolve/{SHA}/{name}"] = body
        self.asked.append(path)
        if path in answers:
            self.body = answers[path]
            tag = hashlib.sha1(self.body).hexdigest()
            self.headers_sent = {"X-Repo-Commit": SHA, "ETag": f'"{tag}"'}
        else:
            self.status, self.body = 404, b""
            missing = "RevisionNotFound" if "/me/pets/" in path else "RepoNotFound"
            self.headers_sent = {"X-Error-Code": missing}
        super().do_GET()

    do_HEAD = do_GET  # noqa: N815


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
        pull("me/pets", serving_files(files))


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
    parquet("PAR1"),
)  # fmt: skip


def test_only_the_files_of_the_named_configuration_are_downloaded(pull, tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "home"))
    handler = serving_files(SEVERAL | {"README.md": CARD.encode()})
    assert set(pull("me/pets", handler, configuration="digits")[1]) == {
        "README.md", "digits/train/0.parquet", "digits/dev/a.parquet", "digits/dev/b.parquet",
    }  # fmt: skip
    assert set(pull("me/pets", handler, configuration="parity")[1]) == {
        "README.md", "parity/test/0.parquet",
    }  # fmt: skip
    assert not (tmp_path / "home").exists()  # nothing is written outside the run's folder


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
