"""The corrections: labels that people have given to images of the data, in a file beside it.

`corrections.csv` lies in the folder of the data, under DVC or git with it. Each row gives an image,
whatever its name and its format are, another label than the data does; of two rows of an image the
later one counts. People may edit it, in a spreadsheet too.
"""

import csv
import io
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from retrain import file_io
from tasks.data.listing import label_of

FILE = "corrections.csv"
# SHA-256 (hex) of the encoded image; its class, as people see it; who has said so, and when (UTC).
COLUMNS = ["sha256", "label", "by", "at"]
BOM = "\ufeff"
SHA256 = re.compile(r"[0-9a-f]{64}")


def read(root: Path) -> dict[str, str]:
    """The labels of the corrected images, by their SHA-256; none without the file.

    Args:
        root: The folder of the data.

    Raises:
        ValueError: The file is not as it should be; the message names the line.
    """
    file = root / FILE
    if not file.exists():
        return {}
    columns, rows = read_csv(file)
    if columns != COLUMNS:
        raise ValueError(f"{file}, line 1: the columns should be {', '.join(COLUMNS)}.")
    labels: dict[str, str] = {}
    for line, row in rows:
        sha256, label = (row["sha256"] or "").strip().lower(), label_of(row["label"])
        if None in row.values() or label is None or not SHA256.fullmatch(sha256):
            raise ValueError(
                f"{file}, line {line}: it should have {len(COLUMNS)} values, the first one a "
                "SHA-256 of 64 hexadecimal digits, the second one a label."
            )
        labels[sha256] = label
    return labels


def append(root: Path, labels: Mapping[str, str], by: str) -> None:
    """Adds corrections, all of them or none; what is in the file stays as it is.

    Args:
        root: The folder of the data.
        labels: The label of each image, by its SHA-256.
        by: Who has given them.
    """
    file = root / FILE
    before = file.read_bytes().decode() if file.exists() else f"{','.join(COLUMNS)}\n"
    end = "\r\n" if "\r\n" in before else "\n"
    now = datetime.now(UTC).isoformat(timespec="seconds")
    added = io.StringIO(newline="")
    writer = csv.writer(added, delimiter=_delimiter(before), lineterminator=end)
    writer.writerows((sha256, label, by, now) for sha256, label in labels.items())
    between = "" if before.endswith("\n") else end
    with file_io.replacing(file) as aside:
        aside.write_bytes(f"{before}{between}{added.getvalue()}".encode())


def read_csv(file: Path) -> tuple[list[str], list[tuple[int, dict[str, str | None]]]]:
    """Reads a CSV file, also as a spreadsheet writes it: with semicolons, or a byte-order mark.

    Returns:
        The columns; and the rows, by column, each with the number of its line. A value that a row
        lacks is None.

    Raises:
        ValueError: The file is no text in UTF-8, or no CSV.
    """
    try:
        text = file.read_bytes().decode().removeprefix(BOM)
        opened = io.StringIO(text, newline="")
        lines = csv.DictReader(opened, delimiter=_delimiter(text), strict=True)
        rows = [(lines.line_num, row) for row in lines]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{file} is no CSV file in UTF-8: {error}") from None
    return [*(lines.fieldnames or ())], rows


def _delimiter(text: str) -> str:
    return max(",;", key=text.partition("\n")[0].count)
