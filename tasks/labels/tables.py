"""Gives images that a CSV, TSV or JSONL file lists other labels: its column of labels changes."""

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from retrain import atomic
from retrain.digests import sha256_of
from retrain.errors import UsageError
from tasks.data import listings
from tasks.data.listed_images import Images
from tasks.data.listing import list_files
from tasks.data.listings import LABEL, PATH, Finder
from tasks.labels.corrections import Correction

BOM = "\ufeff"


@dataclass(frozen=True)
class Edit:
    """A file in which labels change.

    Attributes:
        file: The file.
        text: What it holds then.
        changes: Of each image, its path, and its class before and after, as the data names them.
    """

    file: Path
    text: str
    changes: Sequence[tuple[str, str | None, str]]

    def apply(self) -> None:
        """Writes the file, as a whole or not at all."""
        with atomic.replacing(self.file) as aside:
            aside.write_text(self.text, encoding="utf-8", newline="")


def plan(data: Images, corrections: Sequence[Correction], labels: Mapping[str, str]) -> list[Edit]:
    """The files that change.

    Args:
        data: The data, which a table lists.
        corrections: The labels of images of the data.
        labels: What the data calls each label.

    Raises:
        UsageError: An image has changed, or is gone.
    """
    listed = {name for name, _ in data.image_files()}
    for correction in corrections:
        if correction.file not in listed:
            raise UsageError(f"{correction.path} is not in the data any more.")
        if sha256_of(data.root / correction.file) != correction.sha256:
            raise UsageError(f"{correction.path} has changed since it was listed: list it again.")
    wanted = {correction.file: labels[correction.label] for correction in corrections}
    names = [name for name, _ in list_files(data.root)]
    find, edits = Finder(data.root, names), []
    for name in listings.candidates(names):
        corrector = _Corrector(partial(find, listing=name), wanted)
        text = (data.root / name).read_bytes().decode("utf-8")
        rewrite = _json_lines if name.lower().endswith(".jsonl") else _csv
        new_text = rewrite(text, data, corrector)
        if corrector.changes:
            edits.append(Edit(data.root / name, new_text, corrector.changes))
    return edits


@dataclass(frozen=True)
class _Corrector:
    """Says the right label of each row, and remembers what has changed.

    Attributes:
        find: Finds the file that a path in the table means.
        wanted: The labels, by file.
        changes: As in `Edit`.
    """

    find: Callable[[Any], str]
    wanted: Mapping[str, str]
    changes: list[tuple[str, str | None, str]] = field(default_factory=list)

    def __call__(self, path: Any, before: Any) -> Any:
        file = self.find(path)
        after = self.wanted.get(file)
        if after is None or after == str(before):
            return before
        self.changes.append((file, str(before) if before not in (None, "") else None, after))
        return int(after) if isinstance(before, int) else after


def _csv(text: str, data: Images, corrector: _Corrector) -> str:
    """The text of a CSV or TSV file with the right labels; without its columns, as it is."""
    body = text.removeprefix(BOM)
    delimiter = max(",;\t", key=body.partition("\n")[0].count)
    rows = [*csv.reader(io.StringIO(body, newline=""), delimiter=delimiter)]
    columns = listings.columns_of(rows[0], data.image_column, data.label_column) if rows else None
    if columns is None:
        return text
    path, label = (rows[0].index(columns[key]) for key in (PATH, LABEL))
    for row in filter(None, rows[1:]):
        row[label] = corrector(row[path], row[label])
    written = io.StringIO(newline="")
    end = "\r\n" if "\r\n" in body else "\n"
    csv.writer(written, delimiter=delimiter, lineterminator=end).writerows(rows)
    return text[: len(text) - len(body)] + written.getvalue()


def _json_lines(text: str, data: Images, corrector: _Corrector) -> str:
    """The text of a JSONL file with the right labels; other lines stay as they are."""
    lines = []
    for line in text.splitlines(keepends=True):
        row = json.loads(line) if line.strip() else {}
        if columns := listings.columns_of(row, data.image_column, data.label_column):
            label = columns[LABEL]
            before = row[label]
            row[label] = corrector(row[columns[PATH]], before)
            if row[label] != before:
                end = line[len(line.rstrip()) :]
                line = json.dumps(row, ensure_ascii=False) + end
        lines.append(line)
    return "".join(lines)
