"""The commands that make the data better: what is suspect, what to label next, corrected labels."""

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from retrain.cli.command import IMPROVING, Answer, Clone, ToJson, Workload, app, confirmed, place
from retrain.cli.flows import DEFAULTS, RunOptions, run_on_screen, run_steps
from retrain.cli.predict import ImageColumn, Images
from retrain.errors import UsageError

if TYPE_CHECKING:
    from flows.labels import Import


@app.command(group=IMPROVING)
def suspects(
    workload: Workload,
    /,
    *,
    options: RunOptions = DEFAULTS,
    project: Clone,
    to_json: ToJson,
) -> Answer:
    """Find labels that are probably wrong, contradictions and outliers.

    Example: `retrain suspects vit`
    """
    from flows.suspects import suspects as flow

    return run_steps(flow, workload, options, project, to_json)


@app.command(group=IMPROVING)
def select(
    workload: Workload,
    /,
    *,
    input: Images,
    count: int = 200,
    image_column: ImageColumn = None,
    project: Clone,
    to_json: ToJson,
) -> Answer:
    """Choose what to label next: what is uncertain, new and different.

    Example: `retrain select vit --input photos --count 200`

    Args:
        count: How many images to choose, at most.
    """
    from flows import select as flow

    source = place(input)
    flow.check(project, workload, source, count)
    run = partial(flow.select, workload, source, count, image_column)
    return run_on_screen(project, f"select-{workload}", run, flow.show, to_json)


@app.command(group=IMPROVING)
def labels(
    workload: Workload,
    file: Path,
    /,
    *,
    dry_run: bool = False,
    yes: bool = False,
    project: Clone,
    to_json: ToJson,
) -> Answer:
    """Take corrected labels over into a workload's data.

    Example: `retrain labels vit reports/vit/suspects-1a2b3c4d.csv --dry-run`

    Args:
        file: An export of Label Studio, or the CSV file with the column `corrected` filled.
        dry_run: Show what would change, image by image, and change nothing.
        yes: Ask nothing.
    """
    from flows import labels as flow

    plan = flow.plan(project, workload, Path(place(str(file))))
    shown = sys.stderr if to_json else sys.stdout
    print(*_difference(plan, dry_run), sep="\n", file=shown)
    if not plan.changes or dry_run:
        return Answer(plan.document(is_applied=False))
    if not yes and not confirmed(f"Change {len(plan.changes):,} labels?", to_json):
        raise UsageError("Nothing was changed.")
    plan.apply()
    return Answer(
        plan.document(is_applied=True),
        lambda: print("Changed. Next:", *(f"  {line}" for line in plan.commands), sep="\n"),
    )


def _difference(plan: "Import", in_detail: bool) -> Iterator[str]:
    """What would change, for a person."""
    if in_detail:
        for change in plan.changes:
            yield f"{change.path}: {change.before or 'new'} -> {change.after}"
    for name, counts in plan.classes.items():
        yield f"{name:<20} {-counts['leave']:+6,} {counts['come']:+6,}"
    same = plan.read - len(plan.changes)
    yield f"{len(plan.changes):,} labels change; {same:,} are as the data has them already."
