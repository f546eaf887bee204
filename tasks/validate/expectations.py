"""Has Great Expectations judge the images, the classes and the splits, and tells what it found.

Great Expectations cannot read images, so each data frame has a row per image, class or split.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import great_expectations as gx
import pandas as pd
import pyarrow as pa
from great_expectations import expectations as gxe

from retrain.errors import RejectedDataError
from retrain.file_io import write_json
from retrain.step import Workspace
from retrain.workload import Checks
from tasks.data import image_table
from tasks.data.image_table import NEAR_DUPLICATES, REJECTED, REJECTION, RESULTS, SET_ASIDE
from tasks.data.listing import SPLITS, label_of

MAX_LISTED = 10_000
EXAMPLES = 5
NUMBER = "number"  # the column with the numbers of the rows
# What a result has of each row that failed, beside a few examples.
LONG = ("unexpected_list", "unexpected_index_list", "unexpected_index_query")

# What can be done about classes and splits with too few images.
REMEDY = (
    "What helps: more images of these classes, and with data.group more groups; larger "
    "data.split.val and data.split.test; lower checks.min_images_per_class and "
    "checks.min_images_per_class_and_split; or data.path without these classes."
)


@dataclass(frozen=True)
class Rule:
    """One expectation, and how to describe the rows that fail it.

    Attributes:
        fault: What such rows are: `images that do not decode`.
        expectation: What is expected of a column, row by row.
        reason: What is wrong with one such row.
    """

    fault: str
    expectation: gx.expectations.Expectation
    reason: Callable[[Mapping[Any, Any]], str]


@dataclass(frozen=True)
class Finding:
    """A rule that failed.

    Attributes:
        fault: What the rows are that failed it.
        rows: How many rows the table has.
        reasons: What is wrong with each row that failed, by its number, in order.
    """

    fault: str
    rows: int
    reasons: "pd.Series[str]"


def check(
    images: pd.DataFrame, own: pa.Table, checks: Checks, workspace: Workspace
) -> dict[str, Any]:
    """Checks all images, classes and splits, and writes the accepted and the bad images.

    Args:
        images: A row for each, with the columns that `splits.divide` adds.
        own: The user's own columns.
        checks: What is expected of them.
        workspace: The workspace of the step.

    Returns:
        `rows`, `quarantined`, `classes`, `test_rows`, `test_groups`, `test_units` and
        `near_duplicates`, as `validate` has them.

    Raises:
        RejectedDataError: Too many images are bad, or the others are too few.
    """
    suites = SuiteRunner()
    bad = suites.check("images", images, image_rules(checks))
    faults = pd.concat([pd.Series(dtype=str), *(finding.reasons for finding in bad)])
    reasons = faults.groupby(level=0).agg("; ".join)
    accepted = images.drop(reasons.index)
    classes, splits = _counts(accepted, checks)
    few = suites.check("classes", classes, class_rules(checks))
    empty = suites.check("splits", splits, [split_rule()])
    write_json(workspace.report / RESULTS, suites.results)
    kept = own.take(accepted.index.to_numpy()) if own.num_columns else own
    image_table.write(accepted, kept, workspace.folder / image_table.FILE_NAME)
    reason_column = pa.table({"reason": pa.array(reasons, pa.string())})
    image_table.write(images.loc[reasons.index], reason_column, workspace.folder / SET_ASIDE)

    quarantined, total = len(reasons), len(images)
    if quarantined / total > checks.max_bad_fraction or few or empty or len(classes) == 1:
        names = images["split"] + " " + images["path"]
        lines = [_line(finding, names) for finding in bad] + [*map(_line, (*few, *empty))]
        if len(classes) == 1:
            lines.append(
                f"- a single class, {classes['label'][0]!r}, and a classifier needs at least two: "
                "data.path is the folder that holds those of the classes (below train, val and "
                "test or not)"
            )
        if few:
            lines.append(REMEDY)
        if bad:
            lines.append(
                f"In all {quarantined:,} of {total:,} images are bad, {quarantined / total:.3%}; "
                f"checks.max_bad_fraction lets {checks.max_bad_fraction:.3%} be set aside."
            )
        raise RejectedDataError(_reject(lines, workspace))
    counts = dict(zip(classes["label"], classes["images"].tolist(), strict=True))
    return {
        "rows": dict(zip(splits["split"], splits["images"].tolist(), strict=True)),
        "quarantined": quarantined,
        "classes": {name: counts[name] for name in sorted(counts, key=image_table.natural_order)},
        "test_rows": image_table.digest_of_split(workspace.folder, "test"),
        **_groups_of_test(accepted),
        "near_duplicates": _list_near_duplicates(images, accepted, workspace.report),
    }


def _groups_of_test(accepted: pd.DataFrame) -> dict[str, Any]:
    """How many groups of test images belong together, and how many of each class."""
    test = accepted[accepted["split"] == "test"]
    counts = test.groupby("label")["tie"].nunique()
    return {
        "test_groups": int(test["tie"].nunique()),
        "test_units": dict(zip(counts.index, counts.tolist(), strict=True)),
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
    found = accepted.dropna(subset=["near_duplicate"])
    others = images.loc[found["near_duplicate"]]
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


def image_rules(checks: Checks) -> list[Rule]:
    """What is expected of each image."""
    return [
        Rule(
            "images that do not decode",
            gxe.ExpectColumnValuesToBeNull(column="error"),
            lambda image: f"does not decode: {image['error']}",
        ),
        Rule(
            "images without a label",
            gxe.ExpectColumnValuesToNotBeNull(column="label"),
            lambda image: "no label",
        ),
        Rule(
            "images with an unknown label",
            gxe.ExpectColumnValuesToBeNull(column="unknown_label"),
            lambda image: f"unknown label {image['unknown_label']!r}",
        ),
        Rule(
            f"images with a side below checks.min_side {checks.min_side}",
            gxe.ExpectColumnValuesToBeBetween(column="shorter_side", min_value=checks.min_side),
            lambda image: f"{image['width']:.0f} x {image['height']:.0f} pixels is too small",
        ),
        Rule(
            f"images with a side above checks.max_side {checks.max_side}",
            gxe.ExpectColumnValuesToBeBetween(column="longer_side", max_value=checks.max_side),
            lambda image: f"{image['width']:.0f} x {image['height']:.0f} pixels is too large",
        ),
        *_shared_rules(checks),
    ]


def _shared_rules(checks: Checks) -> list[Rule]:
    """What is expected of each image in relation to the other images."""
    return [
        Rule(
            "images that a split held out from theirs has too",
            gxe.ExpectColumnValuesToBeNull(column="also_in"),
            lambda image: f"the same image is in {image['also_in']}",
        ),
        Rule(
            "images of a group that a split held out from theirs has too",
            gxe.ExpectColumnValuesToBeNull(column="group_in"),
            lambda image: f"one of its data.group is in {image['group_in']}",
        ),
        Rule(
            "images without a data.time",
            gxe.ExpectColumnValuesToBeNull(column="has_no_time"),
            lambda image: "no time",
        ),
        Rule(
            "images that another class has too",
            gxe.ExpectColumnValuesToBeNull(column="other_label"),
            lambda image: f"the same image is labelled {image['other_label']!r}",
        ),
        Rule(
            "images that look like one of a split held out from theirs",
            # If they are only reported, any fraction of them passes.
            gxe.ExpectColumnValuesToBeNull(
                column="near_duplicate_in", mostly=1.0 if checks.near_duplicates == "bad" else 0.0
            ),
            lambda image: f"it looks like one in {image['near_duplicate_in']}",
        ),
    ]


def class_rules(checks: Checks) -> list[Rule]:
    """What is expected of each class: how many images it has in all, and in each split."""
    fewest = checks.min_images_per_class_and_split
    # A class that a model is not trained on, or not tested on, is never fit to be served.
    of_split = {"train": max(fewest, 1), "val": fewest, "test": max(fewest, 1)}
    return [
        _fewest("images", "checks.min_images_per_class", checks.min_images_per_class),
        *(
            _fewest(split, "checks.min_images_per_class_and_split", least, f" in {split}")
            for split, least in of_split.items()
        ),
    ]


def _fewest(column: str, parameter: str, least: int, where: str = "") -> Rule:
    """The rule about the least number in a column of the table of classes."""
    return Rule(
        f"classes with fewer images{where} than {parameter} {least}",
        gxe.ExpectColumnValuesToBeBetween(column=column, min_value=least),
        lambda row: f"{row['label']} has {row[column]}",
    )


def split_rule() -> Rule:
    """What is expected of each split."""
    return Rule(
        "splits without an image",
        gxe.ExpectColumnValuesToBeBetween(column="images", min_value=1),
        lambda row: str(row["split"]),
    )


class SuiteRunner:
    """One run of Great Expectations over the tables.

    Attributes:
        results: What was found in each table so far, JSON-able, in the format of Great
            Expectations.
    """

    def __init__(self) -> None:
        """Sets Great Expectations up."""
        self.results: list[dict[str, Any]] = []
        self._context = gx.get_context(mode="ephemeral")
        self._context.variables.progress_bars = {"globally": False}
        self._source = self._context.data_sources.add_pandas("retrain")

    def check(self, table: str, rows: pd.DataFrame, rules: Sequence[Rule]) -> list[Finding]:
        """Checks one table.

        Args:
            table: The name of the table; each table is checked once.
            rows: Its rows.
            rules: Rules with distinct expectations.

        Returns:
            The rules that failed, in their order.
        """
        asset = self._source.add_dataframe_asset(table)
        for rule in rules:
            rule.expectation.notes = rule.fault
        suite = gx.ExpectationSuite(name=table, expectations=[rule.expectation for rule in rules])
        definition = gx.ValidationDefinition(
            name=table,
            data=asset.add_batch_definition_whole_dataframe(table),
            suite=self._context.suites.add(suite),
        )
        outcome = self._context.validation_definitions.add(definition).run(
            batch_parameters={"dataframe": rows.assign(**{NUMBER: range(len(rows))})},
            result_format={
                "result_format": "COMPLETE",
                "unexpected_index_column_names": [NUMBER],
            },
        )
        results = {result.expectation_config.notes: result for result in outcome.results}
        findings = []
        for rule in rules:
            found = results[rule.fault]
            # Absent if the expectation itself raised; the result then has its traceback.
            assert "element_count" in found.result, found.exception_info
            if not found.success:
                failed = sorted(row[NUMBER] for row in found.result["unexpected_index_list"])
                reasons = map(rule.reason, rows.iloc[failed].to_dict("records"))
                findings.append(Finding(rule.fault, len(rows), pd.Series([*reasons], failed)))
            for name in LONG:
                found.result.pop(name, None)
        self.results.append(outcome.to_json_dict())
        return findings
