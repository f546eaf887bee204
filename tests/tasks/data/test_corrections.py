"""The file of corrections beside the data: what people and the import write into it."""

import pytest

from tasks.data import corrections

A, B = "a" * 64, "b" * 64
HEADER = "sha256,label,by,at\n"


def test_of_two_rows_of_an_image_the_later_one_counts(tmp_path):
    rows = f'{A},cat,Ada,2026-01-01\n{B},"a, b",,\n{A.upper()}, dog ,,\n'
    (tmp_path / corrections.FILE).write_text(HEADER + rows)
    assert corrections.read(tmp_path) == {A: "dog", B: "a, b"}


@pytest.mark.parametrize(
    "before",
    [
        f"sha256,label,by,at\n{A},cat,,\n",
        f"sha256,label,by,at\n{A},cat,,",  # no end of the last line
        f"\ufeffsha256;label;by;at\r\n{A};cat;;\r\n",  # as Excel writes it
        None,
    ],
)
def test_what_is_there_stays_byte_for_byte(tmp_path, before):
    file = tmp_path / corrections.FILE
    if before is not None:
        file.write_text(before, encoding="utf-8", newline="")
    corrections.append(tmp_path, {B: 'a; "b", kätzchen'}, by="Ada, L.")
    written = file.read_bytes().decode()
    assert written.startswith(before or HEADER)
    assert ("\r\n" in written) == ("\r\n" in (before or ""))
    first = {A: "cat"} if before else {}
    assert corrections.read(tmp_path) == first | {B: 'a; "b", kätzchen'}
    corrections.append(tmp_path, {A: "dog"}, by="")
    assert corrections.read(tmp_path) == {A: "dog", B: 'a; "b", kätzchen'}
    assert [path.name for path in tmp_path.iterdir()] == [corrections.FILE]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", ", line 1: "),
        (f"{A},cat,,\n", ", line 1: "),
        ("label,sha256,by,at\n", ", line 1: "),
        (f"{HEADER}{A},cat,,\n{B},,,\n", ", line 3: "),
        (f"{HEADER}{A},cat\n", ", line 2: "),
        (f"{HEADER}{A[:-1]},cat,,\n", ", line 2: "),
        (f"{HEADER}kätzchen", " is no CSV file in UTF-8"),
    ],
)
def test_a_line_that_is_not_as_it_should_be_is_named(tmp_path, text, fault):
    (tmp_path / corrections.FILE).write_text(text, encoding="cp1252")
    with pytest.raises(ValueError, match=rf"corrections\.csv{fault}"):
        corrections.read(tmp_path)
