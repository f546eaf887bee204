"""Has Great Expectations judge the images, the classes and the splits, and tells what it found."""

import html
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from retrain.disk import write_json
from retrain.errors import RejectedDataError
from retrain.step import Workspace
from retrain.workload import Checks
from tasks.data import image_table
from tasks.data.image_table import NEAR_DUPLICATES, REJECTED, REJECTION, RESULTS, SET_ASIDE
from tasks.data.splits import SPLITS, label_of
from tasks.validate import suite
from tasks.validate.suite import Finding

MAX_LISTED = 10_000
EXAMPLES = 5


def judge(
    images: pd.DataFrame, own: pa.Table, checks: Checks, workspace: Workspace
) -> dict[str, Any]:
    """Checks all images, classes and splits, and writes the accepted and the bad images.

    Args:
        images: A row for each, with the columns that `faults.divide` adds.
        own: The user's own columns.
        checks: What is expected of them.
        workspace: The workspace of the step.

    Returns:
        `rows`, `quarantined`, `classes`, `test_rows` and `near_duplicates`, as `validate` has them.

    Raises:
        RejectedDataError: Too many images are bad, or the others are too few.
    """
    for name in ("error", "unknown_label", "other_label"):  # Data Docs show values unescaped
        images[f"{name}_html"] = images[name].map(html.escape, na_action="ignore")
    suites = suite.SuiteRunner(workspace.report / "data_docs")
    bad = suites.check("images", images, suite.image_rules(checks))
    faults = pd.concat([pd.Series(dtype=str), *(finding.reasons for finding in bad)])
    reasons = faults.groupby(level=0).agg("; ".join)
    accepted = images.drop(reasons.index)
    classes, splits = _counts(accepted, checks)
    few = suites.check("classes", classes, suite.class_rules(checks))
    empty = suites.check("splits", splits, suite.split_rules())
    suites.write_docs()
    write_json(workspace.report / RESULTS, suites.results)
    kept = own.take(accepted.index.to_numpy()) if own.num_columns else own
    image_table.write(accepted, kept, workspace.folder / image_table.FILE_NAME)
    told = pa.table({"reason": pa.array(reasons, pa.string())})
    image_table.write(images.loc[reasons.index], told, workspace.folder / SET_ASIDE)

    quarantined, total = len(reasons), len(images)
    if quarantined / total > checks.max_bad_fraction or few or empty or len(classes) == 1:
        names = images["split"] + " " + images["path"]
        lines = [_line(finding, names) for finding in bad]
        lines += [_line(finding) for finding in (*few, *empty)]
        if len(classes) == 1:
            lines.append(
                f"- a single class, {classes['label'][0]!r}, and a classifier needs at least two: "
                "data.path is the folder that holds those of the classes (below train, val and "
                "test or not)"
            )
        if few:
            lines.append(suite.REMEDY)
        if bad:
            lines.append(
                f"In all {quarantined:,} of {total:,} images are bad, {quarantined / total:.3%}; "
                f"checks.max_bad_fraction lets {checks.max_bad_fraction:.3%} be set aside."
            )
        raise RejectedDataError(_reject(lines, workspace))
    return {
        "rows": dict(zip(splits["split"], splits["images"].tolist(), strict=True)),
        "quarantined": quarantined,
        "classes": image_table.images_per_class(workspace.folder),
        "test_rows": image_table.digest_of_split(workspace.folder, "test"),
        "near_duplicates": _list_near_duplicates(images, accepted, workspace.report),
    }


def _counts(accepted: pd.DataFrame, checks: Checks) -> tuple[pd.DataFrame, pd.DataFrame]:
    """How many images each class has, by split and in all, and how many each split has.

    Listed classes without an image are among them.
    """
    counts = accepted.groupby(["label", "split"]).size().unstack(fill_value=0)
    counts = counts.reindex(columns=list(SPLITS), fill_value=0)
    if checks.labels is not None:
        labels = {*counts.index, *map(label_of, checks.labels)}
        counts = counts.reindex(sorted(labels), fill_value=0)
    counts["images"] = counts.sum(axis=1)
    splits = pd.DataFrame({"split": SPLITS, "images": [int(counts[name].sum()) for name in SPLITS]})
    return counts.rename_axis("label").reset_index(), splits


def _list_near_duplicates(images: pd.DataFrame, accepted: pd.DataFrame, report: Path) -> int:
    """Writes the accepted images that look like one of a later split, and counts them all."""
    found = accepted[accepted["near_duplicate"] >= 0]
    others = images.iloc[found["near_duplicate"]]
    listed = found[["split", "path"]].assign(
        near_duplicate_split=others["split"].to_numpy(),
        near_duplicate_path=others["path"].to_numpy(),
    )
    listed.head(MAX_LISTED).to_csv(report / NEAR_DUPLICATES, index=False)
    return len(found)


def _line(finding: Finding, names: "pd.Series[str] | None" = None) -> str:
    """A line about a rule that failed, with some of the rows, by their names if they have any."""
    first = finding.reasons.iloc[:EXAMPLES]
    if names is not None:
        first = names[first.index] + " (" + first + ")"
    hidden = len(finding.reasons) - len(first)
    return (
        f"- {finding.fault}: {len(finding.reasons):,} of {finding.rows:,}: "
        f"{', '.join(first)}{f', and {hidden:,} more' if hidden else ''}"
    )


def _reject(lines: Sequence[str], workspace: Workspace) -> str:
    """Saves the report and makes the message: a line for each expectation that failed."""
    saved = workspace.project.state / REJECTED / workspace.workload
    shutil.rmtree(saved, ignore_errors=True)
    shutil.copytree(workspace.report, saved)
    shutil.copy(workspace.folder / SET_ASIDE, saved)
    everything = f"All of them: {saved / SET_ASIDE} and {saved / RESULTS}"
    message = "\n".join(["The data is rejected:", *lines, everything])
    write_json(saved / REJECTION, {"message": message})
    return message
