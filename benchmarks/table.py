"""One line per figure, on the screen and, in a run of all benchmarks, in the table."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

FILE = "RETRAIN_BENCHMARK_ROWS"  # names the file that a run of all benchmarks gathers rows in


@dataclass(frozen=True)
class Row:
    """A figure and what it is compared with.

    Attributes:
        benchmark: The module.
        what: What was measured.
        ours: The project's figure.
        against: What it is compared with.
        theirs: The other's figure.
        unit: Of both figures.
        target: What the ratio of ours to theirs should be.
    """

    benchmark: str
    what: str
    ours: float
    against: str
    theirs: float
    unit: str
    target: str = "-"

    @property
    def ratio(self) -> float:
        """Ours to theirs."""
        return self.ours / self.theirs


def report(row: Row) -> None:
    """Prints a figure, and puts it into the table that is being gathered."""
    print(
        f"{row.what}: {_number(row.ours)}, {row.against}: {_number(row.theirs)} {row.unit}; "
        f"ratio {row.ratio:.3f} (to reach: {row.target})",
        flush=True,
    )
    if FILE in os.environ:
        with Path(os.environ[FILE]).open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(row)) + "\n")


def markdown(rows: list[Row]) -> str:
    """The rows as a table."""
    lines = [
        "| benchmark | measured | figure | against | its figure | ratio | to reach |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| `{row.benchmark}` | {row.what} | {_number(row.ours)} {row.unit} | {row.against} "
        f"| {_number(row.theirs)} {row.unit} | {row.ratio:.3f} | {row.target} |"
        for row in rows
    ]
    return "\n".join(lines)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
