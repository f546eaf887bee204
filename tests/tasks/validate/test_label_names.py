"""Class folders whose names are codes, and a file with the names."""

import json

import pandas as pd
import pytest

from tests.tasks.toy_data import png
from tests.tasks.validate.validating import TOLERANT, run

CODES = {"n01440764": "tench, Tinca tinca", "n02084071": "dog"}
FILES = {f"{code}/{n}.png": png(n + 100 * k) for k, code in enumerate(CODES) for n in range(6)}
LINES = "\n".join(f"{code} {name}" for code, name in CODES.items()).encode()


@pytest.mark.parametrize(
    "content", [LINES, LINES.replace(b" ", b"\t", 1), json.dumps(CODES).encode()]
)
def test_the_classes_are_named(tmp_path, content):
    facts, folder = run(tmp_path, FILES | {"names.txt": content}, label_names="names.txt")
    assert facts["classes"] == dict.fromkeys(sorted(CODES.values()), 6)
    images = pd.read_parquet(folder / "images.parquet")
    assert {path[:9]: label for path, label in zip(images.path, images.label, strict=True)} == CODES


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"n01440764 tench", "no name for the class 'n02084071' of n02084071/0.png"),
        (b"n01440764 dog\nn02084071 dog", "names 2 classes 'dog'"),
        (b"n01440764", "is no list of names"),
        (b"{", "is no list of names"),
        (None, "the data has no file names.txt"),
    ],
)
def test_a_file_without_the_names_is_refused(tmp_path, content, message):
    files = FILES if content is None else FILES | {"names.txt": content}
    with pytest.raises(ValueError, match=f"data.label_names: .*{message}"):
        run(tmp_path, files, TOLERANT, label_names="names.txt")


def test_a_file_outside_the_data_is_refused(tmp_path):
    (tmp_path / "names.txt").write_bytes(LINES)
    with pytest.raises(ValueError, match=r"the data has no file \.\./names.txt"):
        run(tmp_path, FILES, label_names="../names.txt")
