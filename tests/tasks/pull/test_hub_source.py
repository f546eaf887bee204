"""Data sets as the Hugging Face hub has them: downloads, configurations, declared splits."""

import hashlib
import json
import logging

import pyarrow.parquet as pq
import pytest
from huggingface_hub import constants

from retrain.errors import UsageError
from retrain.project import Project
from retrain.workload import Data
from tasks.data.listing import list_files
from tasks.pull import step
from tasks.pull.hub_source import splits_of_files
from tests.tasks.pull.pulling import make_files, make_workspace, parquet, pulled, serving
from tests.tasks.pull.test_file_sources import Answer

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


FILES = [
    f"{name}/{split}/0.parquet" for name in ("digits", "parity") for split in ("train", "test")
]


def declared_splits(folder, configuration):
    names = [name for name, _ in list_files(folder)]
    return splits_of_files(names, folder / "README.md", configuration)


def write_card(folder, configs):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "README.md").write_text(f"---\nlicense: mit\nconfigs:\n{configs}\n---\n# Pets\n")


DEFAULT = """
- config_name: default
  data_files:
  - {split: train, path: "part[1]/*.parquet"}
  - {split: Validation, path: [held-out/a.parquet]}
  - {split: extra, path: more/*}
"""


def test_declared_splits_are_those_of_the_files(tmp_path, caplog):
    caplog.set_level(logging.INFO, "retrain")
    folder = tmp_path / "pets [1]"
    make_files(folder, "part1/0.parquet", "part1/1.parquet", "held-out/a.parquet", "more/x.parquet")
    write_card(folder, DEFAULT)
    assert declared_splits(folder, None) == {
        "part1/0.parquet": "train", "part1/1.parquet": "train", "held-out/a.parquet": "val",
    }  # fmt: skip
    assert "Left out: extra, which README.md declares too." in caplog.messages


def test_splits_are_found_by_their_names_where_the_card_names_a_folder_alone(tmp_path):
    make_files(tmp_path, *FILES)
    write_card(tmp_path, "- {config_name: digits, data_dir: digits}\n"
                         "- {config_name: parity, data_dir: parity, default: true}")  # fmt: skip
    digits = {"digits/train/0.parquet": "train", "digits/test/0.parquet": "test"}
    assert declared_splits(tmp_path, "digits") == digits
    assert set(declared_splits(tmp_path, None)) == {FILES[2], FILES[3]}


@pytest.mark.parametrize(
    "text", ["# Pets", "---\nlicense: mit\n---\n", "---\nOf pets.\n---\nconfigs:"]
)
def test_without_declared_splits_all_of_it_belongs_to_the_data(tmp_path, text):
    make_files(tmp_path, "train/0.parquet", "test/0.parquet")
    (tmp_path / "README.md").write_text(text)
    names = ["README.md", "test/0.parquet", "train/0.parquet"]
    assert declared_splits(tmp_path, None) == dict.fromkeys(names)


@pytest.mark.parametrize(
    ("configs", "fault"),
    [
        ("- 3", "is no card of a data set on the hub"),
        ("- {config_name: a, data_files: 3}", "is no card of a data set on the hub: Expected"),
        ("- [", "is no card of a data set on the hub"),
        ("- {config_name: a, data_files: /etc/*}", r"files that are not there: /etc/\*"),
        ("- {config_name: a, data_files: ../../*}", "files that are not there"),
        ("- {config_name: a, data_dir: ../b}", "files that are not there"),
        ("- {config_name: a, data_files: 'https://127.0.0.1/a'}", "files that are not there"),
        ("- {config_name: a, data_files: [{split: extra, path: a}]}", "no split train"),
        ("- {config_name: a, data_files: nowhere.parquet}", "not there: .*nowhere.parquet"),
        ("- {config_name: a, data_files: 'nowhere/*'}", "files that are not there: nowhere"),
        ("- {config_name: a, data_dir: nowhere}", "files that are not there: .*nowhere"),
    ],
)  # fmt: skip
def test_a_card_that_cannot_be_followed_is_refused_in_one_sentence(tmp_path, configs, fault):
    make_files(tmp_path, *FILES)
    write_card(tmp_path, configs)
    with pytest.raises(UsageError, match=fault) as error:
        declared_splits(tmp_path, None)
    assert "\n" not in str(error.value)


def test_a_local_folder_of_two_data_sets_is_asked_for_one(project, tmp_path):
    make_files(tmp_path / "pets", *FILES, "LICENSE")
    with pytest.raises(UsageError, match=r"^data\.configuration: .*several.* digits, parity\.$"):
        pulled(project, tmp_path / "pets")
    named = Data(path=str(tmp_path / "pets"), configuration="parity")
    step.pull(named, step.data_version(named, project), make_workspace(tmp_path / "run", project))
    images = pq.read_table(tmp_path / "run/output/index.parquet")
    assert dict(zip(images["file"].to_pylist(), images["split"].to_pylist(), strict=True)) == {
        FILES[2]: "train", FILES[3]: "test",
    }  # fmt: skip
    assert pulled(project, tmp_path / "pets" / "parity")[2] == {"format": "parquet"}


def test_a_configuration_of_data_that_has_none_is_refused(tmp_path):
    make_files(tmp_path, "cat/1.png", "dog/1.png")
    with pytest.raises(UsageError, match=r"no configuration 'cat', and no other\.$"):
        declared_splits(tmp_path, "cat")
