"""Measures a model in production: what it has answered, compared with labels that come later.

What is known is below the project's state, in `production/<model>`. The answers of the runs of
`predict` are in `answers`, a Parquet file for each run; a server writes JSON lines to a folder that
it is given (`models/serving.py`). The labels that people give to images are in
`labels.parquet`: `sha256` (hex, of the encoded image) and `label`. An image has one label, the last
that came.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from math import hypot
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from retrain import file_io
from retrain.errors import UsageError
from retrain.locks import locked
from retrain.project import Project
from retrain.registry.versions import ModelVersion
from retrain.workload import Production
from tasks.data.corrections import SHA256, read_csv
from tasks.data.listing import label_of
from tasks.data.metrics import calibration, wilson

if TYPE_CHECKING:
    import pandas as pd

MIN_IMAGES = 30  # with labels, below which there is no verdict
FILE = "labels.parquet"
LABELS = pa.schema({"sha256": pa.string(), "label": pa.string()})
ANSWERS = pa.schema(
    {
        "sha256": pa.string(),  # hex, of the encoded image
        "label": pa.string(),
        "confidence": pa.float32(),  # the probability of the label
        "time": pa.timestamp("ms", "UTC"),
        "weights": pa.string(),  # SHA-256 (hex) of the weights that answered
    }
)


def folder_of(project: Project, name: str) -> Path:
    """The folder with what is known of a model in production."""
    return project.state / "production" / name


def keep_answers(project: Project, model: ModelVersion, predictions: Path, run: str) -> None:
    """Keeps the answers in a file that `predict` has written, without the images' names.

    Args:
        project: The clone.
        model: The version that answered.
        predictions: The file.
        run: The name of the file: the id of the flow run, or one that begins with it.
    """
    folder = folder_of(project, model.name) / "answers"
    folder.mkdir(parents=True, exist_ok=True)
    now = pa.scalar(datetime.now(UTC), ANSWERS.field("time").type)
    columns = ["sha256", "label", "probabilities"]
    with (
        file_io.replacing(folder / f"{run}.parquet") as aside,
        pq.ParquetWriter(aside, ANSWERS) as writer,
        pq.ParquetFile(predictions) as file,
    ):
        for batch in file.iter_batches(columns=columns):
            answered = batch.filter(batch["label"].is_valid())
            if not len(answered):
                continue
            probabilities = answered["probabilities"].flatten().to_numpy()
            highest = probabilities.reshape(len(answered), -1).max(axis=1)
            times, weights = (pa.repeat(value, len(answered)) for value in (now, model.weights))
            rows = [answered["sha256"], answered["label"], pa.array(highest), times, weights]
            writer.write_batch(pa.RecordBatch.from_arrays(rows, schema=ANSWERS))


def read_answers(project: Project, name: str, logs: Sequence[Path]) -> "pd.DataFrame":
    """What the versions of a model have answered, in `ANSWERS`, the earliest first.

    Args:
        project: The clone.
        name: The name of the model.
        logs: The folders to which servers log.

    Raises:
        UsageError: A folder does not exist, or a file in it is no log.
    """
    own = sorted((folder_of(project, name) / "answers").glob("*.parquet"))
    tables = [ANSWERS.empty_table(), *(pq.read_table(file, schema=ANSWERS) for file in own)]
    for folder in logs:
        if not folder.is_dir():
            raise UsageError(f"--answers {folder}: there is no such folder.")
        tables += map(_read_log, sorted(folder.glob("*.jsonl*")))
    frame: pd.DataFrame = pa.concat_tables(tables).to_pandas()
    return frame.sort_values("time", kind="stable")


def _read_log(file: Path) -> pa.Table:
    """The rows of a log of a server; a last line without an end is not whole yet.

    Raises:
        UsageError: It is another file.
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
        rows = [json.loads(line) for line in lines if line.endswith("\n")]
        timed = [row | {"time": datetime.fromisoformat(row["time"])} for row in rows]
        return pa.Table.from_pylist(timed, ANSWERS)
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{file} is no log of predictions: {error}") from error


def read_labels(project: Project, name: str) -> dict[str, str]:
    """The labels of the images of a model, by the SHA-256 of each; they may be none."""
    file = folder_of(project, name) / FILE
    table = pq.read_table(file, schema=LABELS) if file.exists() else LABELS.empty_table()
    return dict(zip(*table.to_pydict().values(), strict=True))


def keep_labels(project: Project, name: str, file: Path, logs: Sequence[Path] = ()) -> str:
    """Adds the labels of a file; those that are known already change nothing.

    Args:
        project: The clone.
        name: The name of the model.
        file: CSV or Parquet, with the columns `label`, and `sha256` (hex, of the encoded image) or
            `path` (the image, relative to the file's folder).
        logs: The folders to which servers have logged what they answered.

    Returns:
        For a person, how many labels the file has, and how many of them are new or changed.

    Raises:
        UsageError: The file cannot be read, lacks a column or a value, gives an image two labels,
            or has only images that the model was not asked for.
    """
    given, folder = _read_given(file), folder_of(project, name)
    answered = {*read_answers(project, name, logs)["sha256"]}
    if answered and given.keys().isdisjoint(answered):
        raise UsageError(
            f"{file}: {name} was asked for none of its images ({len(given):,}). If a server was, "
            "name the folder of its log with --answers."
        )
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / f"{FILE}.lock"):
        known = read_labels(project, name)
        changed = [image for image in given.keys() & known if known[image] != given[image]]
        rows = [{"sha256": image, "label": label} for image, label in (known | given).items()]
        with file_io.replacing(folder / FILE) as aside:
            pq.write_table(pa.Table.from_pylist(rows, LABELS), aside)
    new = given.keys() - known
    return f"{len(given):,} labels: {len(new):,} new, {len(changed):,} changed."


def _read_given(file: Path) -> dict[str, str]:
    """The label of each image in a file of the user's, by the SHA-256 of the image."""
    try:
        if file.suffix == ".parquet":
            rows = pq.read_table(file).to_pylist()
        else:
            rows = [row for _, row in read_csv(file)[1]]
    except (ValueError, OSError) as error:
        raise UsageError(f"{file} cannot be read as CSV or Parquet: {error}") from error
    given: dict[str, str] = {}
    for row in rows or [{}]:
        place, label = row.get("path"), label_of(row.get("label"))
        image = (row.get("sha256") or "").strip().lower()
        if not ((SHA256.fullmatch(image) if image else place) and label):
            raise UsageError(f"{file} needs rows with a label, and a sha256 or a path, in each.")
        try:
            image = image or file_io.sha256_of(file.parent / place)
        except OSError as error:
            raise UsageError(f"{file}: the image {place} cannot be read: {error}") from error
        if given.setdefault(image, label) != label:
            raise UsageError(
                f"{file} gives {place or image} two labels: {given[image]} and {label}."
            )
    return given


def measure(
    answers: "pd.DataFrame",
    labels: Mapping[str, str],
    test: Mapping[str, float],
    classes: Sequence[Mapping[str, Any]],
    limits: Production,
) -> dict[str, Any]:
    """How a version does in production, by the images whose labels are known.

    An image that was sent several times counts once, when it came first.

    Args:
        answers: Of the version, the earliest first, as `read_answers` gives them.
        labels: As `read_labels` gives them.
        test: The `accuracy` of the version's test and its `rows`.
        classes: The `label`, the `recall` and the `rows` of each class in the test.
        limits: What counts as worse.

    Returns:
        JSON-able. `weeks`: for each ISO week (in UTC) with answers, the earliest first, `week`
        (2026-W07), `images` and, of those with labels, `labelled`, `correct`, and `accuracy`,
        `low` and `high` (None without any). Of the last `limits.weeks` of them: `images`,
        `labelled`, `accuracy`, `low` and `high`; `test`, the accuracy there; `difference`, with
        `difference_low` and `difference_high`;
        `calibration_error`; `classes`, those that have `labelled` images, the ones that lost most
        first, with `recall`, `low`, `high` and `test_recall`; and `unknown`, the labels that the
        version does not know. `worse`: whether the accuracy is lower than in the test by more than
        `limits.max_drop`; None if too few images have labels.
    """
    frame = answers.drop_duplicates("sha256")
    frame = frame.assign(week=frame["time"].dt.strftime("%G-W%V"), true=frame["sha256"].map(labels))
    weeks = [{"week": name} | _counts(part) for name, part in frame.groupby("week")]
    recent = frame[frame["week"].isin([row["week"] for row in weeks[-limits.weeks :]])]
    known = recent.dropna(subset=["true"])
    in_test = {row["label"]: row["recall"] for row in classes}
    found = {"weeks": weeks, **_counts(recent), "test": test["accuracy"]}
    found |= dict.fromkeys(("difference", "difference_low", "difference_high", "worse"))
    found["calibration_error"] = None
    if len(known):
        is_right = (known["label"] == known["true"]).to_numpy()
        found["calibration_error"] = calibration(known["confidence"].to_numpy(), is_right).error
        found |= _difference(found, test)
    if len(known) >= MIN_IMAGES:
        found["worse"] = found["difference_high"] < -limits.max_drop
    lost = [
        {"label": label, "test_recall": in_test.get(label), **_right(part, "recall")}
        for label, part in known.groupby("true", sort=False)
    ]
    found["classes"] = sorted(lost, key=lambda row: row["recall"] - (row["test_recall"] or 0.0))
    found["unknown"] = sorted(set(known["true"]) - in_test.keys())
    return found


def _counts(frame: "pd.DataFrame") -> dict[str, Any]:
    """The images, those with labels, and how many of these are right."""
    return {"images": len(frame), **_right(frame.dropna(subset=["true"]), "accuracy")}


def _right(known: "pd.DataFrame", name: str) -> dict[str, Any]:
    """How many of the images with labels are right, and the share with Wilson's interval (1927)."""
    correct, labelled = int((known["label"] == known["true"]).sum()), len(known)
    low, high = wilson(correct, labelled) if labelled else (None, None)
    share = correct / labelled if labelled else None
    return {"labelled": labelled, "correct": correct, name: share, "low": low, "high": high}


def _difference(found: Mapping[str, Any], test: Mapping[str, float]) -> dict[str, float]:
    """The accuracy in production less that of the test, of other images.

    Source: Newcombe, Interval estimation for the difference between independent proportions (1998),
    method 10: from the ends of Wilson's intervals of both.
    """
    rows, ours, theirs = int(test["rows"]), found["accuracy"], test["accuracy"]
    low, high = wilson(round(theirs * rows), rows)
    return {
        "difference": ours - theirs,
        "difference_low": ours - theirs - hypot(ours - found["low"], high - theirs),
        "difference_high": ours - theirs + hypot(found["high"] - ours, theirs - low),
    }


def sentence(version: ModelVersion, found: Mapping[str, Any]) -> str:
    """The result in a sentence, for people.

    Args:
        version: The version.
        found: What `measure` gives; and `instead`, the number of an earlier version to ask about,
            or None.
    """
    images, labelled, ask = found["images"], found["labelled"], ""
    if found["instead"]:
        instead = f"retrain drift {version.name} --version {found['instead']}"
        ask = f" An earlier version has labels: {instead}"
    if not images:
        return f"{version.title} has answered nothing in production that was kept.{ask}"
    if not labelled:
        return (
            f"None of the {images:,} images that {version.title} has classified has a label "
            f"yet.{ask}"
        )
    text = (
        f"{version.title} has {found['accuracy']:.1%} of {labelled:,} labelled images right in "
        f"production ({found['low']:.1%} to {found['high']:.1%}), and {found['test']:.1%} in its "
        "test: "
    )
    change = (
        f"{100 * found['difference']:+.1f} points ({100 * found['difference_low']:+.1f} to "
        f"{100 * found['difference_high']:+.1f})"
    )
    if found["worse"] is None:
        few = f"That are too few labels for a verdict: it needs {MIN_IMAGES}."
        return f"{text}{change}. {few}{ask}"
    verdict = "worse than production.max_drop allows" if found["worse"] else "not clearly worse"
    return f"{text}{verdict}, {change}."
