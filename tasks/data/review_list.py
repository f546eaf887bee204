"""The review list: images that a person should look at, with what is proposed for each.

It is a CSV file, which a spreadsheet opens: each row has an image, what the data says of it, and
the model's answer. A person writes the right label into its column `corrected`, and
`retrain labels` reads it.
"""

import csv
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

from retrain import file_io

WRONG_LABEL, CONTRADICTION, OUTLIER = "wrong label", "contradictory near-duplicate", "outlier"
# Why an image is listed; its class; a class that is proposed, and its probability; the distance
# from the other images, in units of what is usual; the path of an image that looks the same and has
# another label; and by what the image is found again.
COLUMNS = (
    "why",
    "path",
    "split",
    "label",
    "proposed",
    "confidence",
    "distance",
    "look_alike",
    "file",
    "row",
    "sha256",
)
CORRECTED = "corrected"  # the column that a person fills


def write(rows: Sequence[Mapping[str, Any]], file: Path) -> None:
    """Writes the CSV file.

    A file that is there already stays as it is: a person may have filled it in. So its name has to
    be that of this list alone.

    Args:
        rows: The images, with the `COLUMNS`, the first one first.
        file: The file.
    """
    if file.exists():
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    table = StringIO(newline="")
    writer = csv.DictWriter(table, [*COLUMNS, CORRECTED])
    writer.writeheader()
    writer.writerows(rows)
    file_io.write_text(file, table.getvalue().encode("utf-8", "replace").decode())  # names of files
