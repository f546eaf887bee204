"""What the data must be like, as Great Expectations suites over tables about the images.

Great Expectations knows no images, so each table has a row per image, class or split.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.source import SPLITS

if TYPE_CHECKING:
    import great_expectations as gx
    import pandas as pd

    from retrain.workload import Checks


@dataclass(frozen=True)
class Rule:
    """One expectation, and the words for the rows that fail it.

    Attributes:
        fault: What such rows are: `images that do not decode`.
        expectation: What is expected of a column, row by row.
        reason: What is wrong with one such row, given as a named tuple.
    """

    fault: str
    expectation: "gx.expectations.Expectation"
    reason: Callable[[Any], str]


@dataclass(frozen=True)
class Finding:
    """A rule that failed.

    Attributes:
        fault: The rule's.
        rows: How many rows the table has.
        reasons: What is wrong with each row that failed, by the table's index.
    """

    fault: str
    rows: int
    reasons: "pd.Series[str]"


def image_rules(checks: "Checks", trained: Sequence[str]) -> list[Rule]:
    """What is expected of each image.

    Args:
        checks: The workload's.
        trained: The labels that the training split has.
    """
    from great_expectations import expectations as gxe

    if checks.labels is None:
        known = gxe.ExpectColumnValuesToBeInSet(
            column="label",
            value_set=list(trained),
            row_condition='split != "train"',
            condition_parser="pandas",
        )
    else:
        known = gxe.ExpectColumnValuesToBeInSet(column="label", value_set=list(checks.labels))
    return [
        Rule(
            "images that do not decode",
            gxe.ExpectColumnValuesToBeNull(column="error"),
            lambda image: f"does not decode: {image.error}",
        ),
        Rule(
            "images without a label",
            gxe.ExpectColumnValuesToNotBeNull(column="label"),
            lambda image: "no label",
        ),
        Rule(
            "images with an unknown label",
            known,
            lambda image: f"unknown label {image.label!r}",
        ),
        Rule(
            f"images with a side below checks.min_side {checks.min_side}",
            gxe.ExpectColumnValuesToBeBetween(column="shorter_side", min_value=checks.min_side),
            lambda image: f"{image.width} x {image.height} pixels is too small",
        ),
        Rule(
            f"images with a side above checks.max_side {checks.max_side}",
            gxe.ExpectColumnValuesToBeBetween(column="longer_side", max_value=checks.max_side),
            lambda image: f"{image.width} x {image.height} pixels is too large",
        ),
        Rule(
            "images that a split held out from theirs has too",
            gxe.ExpectColumnValuesToBeNull(column="also_in"),
            lambda image: f"the same image is in {image.also_in}",
        ),
    ]


def class_rules(checks: "Checks") -> list[Rule]:
    """What is expected of each class: how many images it has in all, and in each split."""
    from great_expectations import expectations as gxe

    return [
        Rule(
            f"classes with fewer images than checks.min_images_per_class "
            f"{checks.min_images_per_class}",
            gxe.ExpectColumnValuesToBeBetween(
                column="images", min_value=checks.min_images_per_class
            ),
            lambda row: f"{row.label} has {row.images}",
        ),
        *(
            Rule(
                f"classes without an image in {split}",
                gxe.ExpectColumnValuesToBeBetween(column=split, min_value=1),
                lambda row: str(row.label),
            )
            for split in ("train", "test")
        ),
    ]


def split_rules() -> list[Rule]:
    """What is expected of each split."""
    from great_expectations import expectations as gxe

    return [
        Rule(
            "splits without an image",
            gxe.ExpectColumnValuesToBeBetween(column="images", min_value=1),
            lambda row: str(row.split),
        )
    ]


def count_classes(images: "pd.DataFrame", labels: Sequence[str] | None) -> "pd.DataFrame":
    """A row per class: its label, its images in each split, and in all of them (`images`).

    Args:
        images: With columns `label` and `split`.
        labels: Classes that there must be, whether images have them or not.
    """
    import pandas as pd

    counts = pd.crosstab(images["label"], images["split"])
    classes = sorted({*counts.index, *(labels or ())})
    counts = counts.reindex(index=classes, columns=list(SPLITS), fill_value=0)
    counts["images"] = counts.sum(axis="columns")
    return counts.rename_axis(index="label", columns=None).reset_index()


def count_splits(images: "pd.DataFrame") -> "pd.DataFrame":
    """A row per split: `split`, and how many `images` it has."""
    counts = images["split"].value_counts().reindex(list(SPLITS), fill_value=0)
    return counts.rename_axis("split").rename("images").reset_index()


class Examination:
    """One pass of Great Expectations over the tables, told in Data Docs."""

    def __init__(self, docs: Path) -> None:
        """Prepares it.

        Args:
            docs: The folder of the Data Docs: HTML to open at `index.html`.
        """
        import great_expectations as gx

        self._context = gx.get_context(mode="ephemeral")
        self._context.variables.progress_bars = {"globally": False}
        for site in self._context.get_site_names():  # its own, in a temporary folder
            self._context.delete_data_docs_site(site)
        self._context.add_data_docs_site(
            "report",
            {
                "class_name": "SiteBuilder",
                "show_how_to_buttons": False,
                "site_index_builder": {"class_name": "DefaultSiteIndexBuilder"},
                "store_backend": {
                    "class_name": "TupleFilesystemStoreBackend",
                    "base_directory": str(docs),
                },
            },
        )
        self._source = self._context.data_sources.add_pandas("retrain")

    def check(self, name: str, table: "pd.DataFrame", rules: Sequence[Rule]) -> list[Finding]:
        """Checks one table.

        Args:
            name: What its rows are; a name is used once.
            table: With the columns that the rules name, and an index of distinct values.
            rules: With distinct expectations.

        Returns:
            The rules that failed, in their order.
        """
        import great_expectations as gx
        import pandas as pd

        asset = self._source.add_dataframe_asset(name)
        for rule in rules:
            rule.expectation.notes = rule.fault
        suite = gx.ExpectationSuite(name=name, expectations=[rule.expectation for rule in rules])
        definition = gx.ValidationDefinition(
            name=name,
            data=asset.add_batch_definition_whole_dataframe(name),
            suite=self._context.suites.add(suite),
        )
        outcome = self._context.validation_definitions.add(definition).run(
            batch_parameters={"dataframe": table}, result_format={"result_format": "COMPLETE"}
        )
        findings = []
        for rule in rules:
            [result] = [
                each for each in outcome.results if each.expectation_config.notes == rule.fault
            ]
            if not result.success:
                # Absent if the expectation itself broke down; its traceback is then in the result.
                assert "unexpected_index_list" in result.result, result.exception_info
                failed = table.loc[result.result["unexpected_index_list"]]
                reasons = [rule.reason(row) for row in failed.itertuples()]
                findings.append(
                    Finding(rule.fault, len(table), pd.Series(reasons, failed.index, dtype=str))
                )
        return findings

    def write_docs(self) -> None:
        """Writes the Data Docs of everything that was checked."""
        self._context.build_data_docs()
