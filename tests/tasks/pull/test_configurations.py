"""The splits that the card of a data set declares, and data sets of several configurations."""

import logging

import pyarrow.parquet as pq
import pytest

from retrain.errors import UsageError
from retrain.workload import Data
from tasks.data.listing import list_files
from tasks.pull.hub_source import splits_of_files
from tasks.pull.step import data_version, pull
from tests.tasks.pull.pulling import make_files, make_workspace, pulled

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
    pull(named, data_version(named, project), make_workspace(tmp_path / "run", project))
    images = pq.read_table(tmp_path / "run/output/index.parquet")
    assert dict(zip(images["file"].to_pylist(), images["split"].to_pylist(), strict=True)) == {
        FILES[2]: "train", FILES[3]: "test",
    }  # fmt: skip
    assert pulled(project, tmp_path / "pets" / "parity")[2] == {"format": "parquet"}


def test_a_configuration_of_data_that_has_none_is_refused(tmp_path):
    make_files(tmp_path, "cat/1.png", "dog/1.png")
    with pytest.raises(UsageError, match=r"no configuration 'cat', and no other\.$"):
        declared_splits(tmp_path, "cat")
