"""Data sets as the Hugging Face hub has them: downloads, configurations, declared splits."""

import hashlib
import json
import logging
from functools import partial
from http.server import SimpleHTTPRequestHandler

import pyarrow.parquet as pq
import pytest
from huggingface_hub import constants

from retrain.errors import UsageError
from retrain.project import Project
from retrain.workload import Data
from tasks.pull import step
from tasks.pull.hub_source import HubSource, splits_of_files
from tests.tasks.pull.pulling import make_files, make_workspace, pulled, serving
from tests.tasks.toy_data import write_files

SHA = "0123456789abcdef0123456789abcdef01234567"
FILE = ["data/train-00000-of-00001.parquet"]


class HubServer(SimpleHTTPRequestHandler):
    """The few answers of the Hugging Face hub that a data set takes, from the files of a folder."""

    def end_headers(self):
        missing = "RevisionNotFound" if "/me/pets/" in self.path else "RepoNotFound"
        self.send_header("X-Error-Code", missing)
        self.send_header("X-Repo-Commit", SHA)
        self.send_header("ETag", f'"{hashlib.sha1(self.path.encode()).hexdigest()}"')
        super().end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def pull(tmp_path, monkeypatch):
    """Pulls from a hub that has some files."""
    root, pets = tmp_path / "hub", "api/datasets/me/pets"

    def call(path, names=FILE, card="# Pets", **data):
        folder = root / "datasets/me/pets/resolve" / SHA
        make_files(folder, *names)
        write_files(folder, {"README.md": card.encode()})
        tree = [{"type": "file", "path": name, "size": 1, "oid": name} for name in names]
        tree.append({"type": "file", "path": "README.md", "size": 1, "oid": card})
        known = {
            f"{pets}/revision/main": {"id": "me/pets", "sha": SHA, "siblings": []},
            f"{pets}/tree/{SHA}": tree,
        }
        write_files(root, {name: json.dumps(each).encode() for name, each in known.items()})
        with serving(partial(HubServer, directory=str(root))) as url:
            set_hub(monkeypatch, url)
            return pulled(Project(tmp_path), path, format="hub", **data)

    return call


def set_hub(monkeypatch, url):
    resolve = f"{url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", resolve)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)


@pytest.mark.parametrize("path", ["me/nothing", "me/pets@nothing", "not a name"])
def test_a_data_set_that_the_hub_has_not_is_named(pull, path):
    with pytest.raises(UsageError, match=r"data\.path: the Hugging Face hub gives no"):
        pull(path)


@pytest.mark.parametrize(
    ("names", "fault"),
    [
        ([], "me/pets.*me/pets@refs/convert/parquet"),
        ([*FILE, "data/../../../out.parquet"], "Invalid filename 'data"),
    ],
)
def test_a_data_set_without_parquet_files_or_with_a_name_outside_is_refused(pull, names, fault):
    with pytest.raises(ValueError, match=fault):
        pull("me/pets", names)


def test_a_hub_that_is_away_is_tried_again_but_not_asked_for_a_commit(monkeypatch):
    set_hub(monkeypatch, "http://127.0.0.1:9")
    assert HubSource("me/pets", SHA).digest() == SHA
    with pytest.raises(ConnectionError, match="The data set me/pets on the Hugging Face hub"):
        HubSource("me/pets", "main").digest()


SEVERAL = [
    "digits/train/0.parquet", "digits/dev/a.parquet", "digits/dev/b.parquet",
    "digits/extra/0.parquet", "digits/test/0.parquet",
    "parity/test/0.parquet", "parity/train/0.parquet",
]  # fmt: skip


def test_the_files_of_the_named_configuration_are_pulled_at_their_commit(
    pull, tmp_path, monkeypatch
):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "home"))
    card = f"---\n{CARD}---\n# Pets"
    version, files, facts = pull("me/pets", SEVERAL, card, configuration="digits")
    assert (version.digest, facts) == (SHA, {"format": "parquet"})
    assert files == {"README.md": card, **{name: name for name in SEVERAL[:3]}}
    assert not (tmp_path / "home").exists()  # nothing is written outside the run's folder


CARD = """
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
"""
DEFAULT = """
configs:
- config_name: default
  data_files:
  - {split: train, path: "part[1]/*.parquet"}
  - {split: Validation, path: [held-out/a.parquet]}
  - {split: extra, path: more/*}
"""
FOLDERS = """
configs:
- {config_name: digits, data_dir: digits}
- {config_name: parity, data_dir: parity, default: true}
"""
FILES = [
    f"{name}/{split}/0.parquet" for name in ("digits", "parity") for split in ("train", "test")
]
PARTS = ["part1/0.parquet", "part1/1.parquet", "part2/0.parquet", "held-out/a.parquet", "more/x"]
TWO = ["a/train.parquet", "a/1.parquet", "b/train.parquet", "b/1.parquet"]
PLAIN = ["README.md", "train/0.parquet", "test/0.parquet"]


def splits(tmp_path, names, card, configuration):
    """What a card says of files; of its lines between the marks, or of all of it."""
    file = tmp_path / "README.md"
    if card is not None:
        file.write_text(card if "---" in card else f"---\nlicense: mit\n{card}\n---\n# Pets\n")
    return splits_of_files(names, file, configuration)


@pytest.mark.parametrize(
    ("names", "card", "configuration", "found"),
    [
        (PARTS, DEFAULT, None,
         dict.fromkeys(PARTS[:2], "train") | {"held-out/a.parquet": "val"}),
        (SEVERAL, CARD, "parity", {"parity/test/0.parquet": "test"}),
        # Splits are found by the names where the card names a folder alone.
        (FILES, FOLDERS, "digits", {FILES[0]: "train", FILES[1]: "test"}),
        (FILES, FOLDERS, None, {FILES[2]: "train", FILES[3]: "test"}),
        (["a/1.parquet", "b/1.parquet"], "configs:\n- {config_name: x, data_dir: a}", None,
         {"a/1.parquet": None}),
        (["a/train.parquet", "a/x.parquet"], "configs:\n- {config_name: x, data_dir: a}", "x",
         {"a/train.parquet": "train"}),
        # All of it belongs to the data where the card declares nothing.
        (PLAIN, "", None, dict.fromkeys(PLAIN)),
        (PLAIN, "# Pets ---", None, dict.fromkeys(PLAIN)),
        (PLAIN, "---\nOf pets.\n---\nconfigs:", None, dict.fromkeys(PLAIN)),
        # Without a card, a configuration is a folder.
        (FILES, None, "parity", dict.fromkeys(FILES[2:])),
        # One split in common is not enough for two data sets.
        (TWO, None, None, dict.fromkeys(TWO)),
    ],
)  # fmt: skip
def test_the_files_of_a_configuration_have_the_splits_that_are_declared(
    tmp_path, names, card, configuration, found
):
    assert splits(tmp_path, names, card, configuration) == found


def test_a_declared_split_that_is_none_of_ours_is_left_out_with_a_sentence(tmp_path, caplog):
    caplog.set_level(logging.INFO, "retrain")
    splits(tmp_path, PARTS, DEFAULT, None)
    assert "Left out: extra, which README.md declares too." in caplog.messages


NO_CARD = r"^README\.md is no card of a data set on the hub"
GONE = r"^README\.md declares files that are not there: "
SEVERAL_FOUND = r"^data\.configuration: .*several.* digits, parity\.$"
UNKNOWN = r"^data\.configuration: .*no configuration 'colour'.* digits, parity\.$"


@pytest.mark.parametrize(
    ("card", "configuration", "fault"),
    [
        (CARD, None, SEVERAL_FOUND),
        (CARD, "colour", UNKNOWN),
        (None, None, SEVERAL_FOUND),
        (None, "colour", UNKNOWN),
        ("configs:\n- 3", None, NO_CARD),
        ("configs:\n- {config_name: a, data_files: 3}", None, f"{NO_CARD}: Expected"),
        ("configs:\n- [", None, NO_CARD),
        ("configs:\n- {config_name: a, data_files: /etc/*}", None, rf"{GONE}/etc/\*"),
        ("configs:\n- {config_name: a, data_files: ../../*}", None, GONE),
        ("configs:\n- {config_name: a, data_dir: ../b}", None, GONE),
        ("configs:\n- {config_name: a, data_files: 'https://127.0.0.1/a'}", None, GONE),
        ("configs:\n- {config_name: a, data_files: [{split: extra, path: a}]}", None,
         "declares no split train, val or test, but extra"),
        ("configs:\n- {config_name: a, data_files: 'nowhere/*'}", None, f"{GONE}nowhere"),
        ("configs:\n- {config_name: a, data_dir: nowhere}", None, f"{GONE}nowhere"),
    ],
)  # fmt: skip
def test_what_a_card_or_the_user_says_wrong_is_refused_in_one_sentence(
    tmp_path, card, configuration, fault
):
    with pytest.raises(UsageError, match=fault) as error:
        splits(tmp_path, FILES, card, configuration)
    assert "\n" not in str(error.value)


def test_a_configuration_of_data_that_has_none_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"no configuration 'cat', and no other\.$"):
        splits(tmp_path, ["cat/1.png", "dog/1.png"], None, "cat")


def test_a_local_folder_of_two_data_sets_has_the_files_of_one(project, tmp_path):
    make_files(tmp_path / "pets", *FILES, "LICENSE")
    named = Data(path=str(tmp_path / "pets"), configuration="parity")
    step.pull(named, step.data_version(named, project), make_workspace(tmp_path / "run", project))
    images = pq.read_table(tmp_path / "run/output/index.parquet")
    assert dict(zip(images["file"].to_pylist(), images["split"].to_pylist(), strict=True)) == {
        FILES[2]: "train", FILES[3]: "test",
    }  # fmt: skip
