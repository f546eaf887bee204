"""The splits that the card of a data set declares, and data sets of several configurations."""

import logging

import pytest

from retrain.errors import UsageError
from retrain.project import Project
from tasks.pull.configurations import declared_splits
from tests.tasks.pull.pulling import make_files, pulled, read_files

FILES = [
    f"{name}/{split}/0.parquet" for name in ("digits", "parity") for split in ("train", "test")
]


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
    assert "Left out: extra, which README.md declares beside train, Validation." in caplog.messages


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
    before = read_files(tmp_path)
    assert declared_splits(tmp_path, None) == {}
    assert read_files(tmp_path) == before


@pytest.mark.parametrize(
    ("configs", "fault"),
    [
        ("- 3", "is no card of a data set on the hub"),
        ("- {config_name: a, data_files: 3}", "is no card of a data set on the hub: Expected"),
        ("- [", "is no card of a data set on the hub"),
        ("- {config_name: a, data_files: /etc/*}", r"'/etc/\*', which leads out of the data set"),
        ("- {config_name: a, data_files: ../../*}", "leads out of the data set"),
        ("- {config_name: a, data_dir: ../b}", "leads out of the data set"),
        ("- {config_name: a, data_files: 'https://127.0.0.1/a'}", "leads out of the data set"),
        ("- {config_name: a, data_files: [{split: extra, path: a}]}", "none of the splits train"),
        ("- {config_name: a, data_files: nowhere.parquet}", "not there: .*nowhere.parquet"),
        ("- {config_name: a, data_files: 'nowhere/*'}", "files that are not there: none of train"),
        ("- {config_name: a, data_dir: nowhere}", "files that are not there: .*nowhere"),
    ],
)  # fmt: skip
def test_a_card_that_cannot_be_followed_is_refused_in_one_sentence(tmp_path, configs, fault):
    make_files(tmp_path, *FILES)
    write_card(tmp_path, configs)
    with pytest.raises(UsageError, match=fault) as error:
        declared_splits(tmp_path, None)
    assert "\n" not in str(error.value)


def test_a_local_folder_of_two_data_sets_is_asked_for_one(tmp_path):
    project = Project(tmp_path / "clone")
    project.root.mkdir()
    make_files(tmp_path / "pets", *FILES, "LICENSE")
    with pytest.raises(UsageError, match=r"^data\.configuration: .*several.* digits, parity\.$"):
        pulled(project, tmp_path / "pets")
    assert set(pulled(project, tmp_path / "pets", configuration="parity")[1]) == set(FILES[2:])
    assert pulled(project, tmp_path / "pets" / "parity")[2] == {"format": "parquet"}


def test_a_configuration_of_data_that_has_none_is_refused(tmp_path):
    make_files(tmp_path, "cat/1.png", "dog/1.png")
    with pytest.raises(UsageError, match=r"no configuration 'cat', and no other\.$"):
        declared_splits(tmp_path, "cat")
