"""What the document of a run with steps has: `--json` prints it, `.retrain/runs` keeps it.

The page of a run is made from it and from the files of the steps. A run that has failed has
`Failure` beside what its steps had found before; the parts of steps that did not run are None.
"""

from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from time import monotonic
from typing import Any, TypedDict

from retrain.runs.run import Run

REPORTS = "reports"  # the folder with the pages, one for each workload
Json = dict[str, Any]


class Ended(TypedDict):
    """A run of any flow.

    Attributes:
        flow: Its name.
        workload: Its name.
        run: The id of the Prefect flow run.
        time: When it ended, in UTC.
        seconds: How long it took.
        outcome: How it ended, in a sentence.
    """

    flow: str
    workload: str
    run: str
    time: str
    seconds: float
    outcome: str | None


class Failure(TypedDict, total=False):
    """Why a run failed.

    Attributes:
        error: The message.
        refused: Whether the data did not pass its checks.
        log: The file with what the libraries have told.
    """

    error: str
    refused: bool
    log: str | None


class DataUsed(TypedDict):
    """The data of a run.

    Attributes:
        version: Its digest.
        tracked: Whether it is under DVC.
        revision: The git revision that the user has named.
        path: Where it is.
        rows: The number of images by split.
        quarantined: How many images were set aside.
        near_duplicates: How many look like one of a split that is held out from theirs.
    """

    version: str
    tracked: bool
    revision: str | None
    path: str
    rows: Mapping[str, int] | None
    quarantined: int | None
    near_duplicates: int | None


class Checks(Ended, Failure):
    """A run of `validate`, and what all flows with steps have.

    Attributes:
        unchanged: Whether nothing had to run; `run` and `time` are then those of the last run.
        data: The data.
        steps: The steps that have ended, as `retrain.outputs.Outcome` has them.
        warnings: What the user was warned of.
        look: Where the results are, by name.
    """

    unchanged: bool
    data: DataUsed
    steps: list[Json]
    warnings: list[str]
    look: dict[str, str]


class Training(Checks):
    """A run of `train`.

    Attributes:
        promote: Whether it was to promote the model, or only to compare it.
        training: The facts of the step `train`.
        images: The images that the model takes, such as their `size`.
        precision: The precision in which it was evaluated.
        metrics: The metrics of the model.
        champion: The `version` and the `metrics` of the champion before; None without one.
        decision: The facts of the step `gate`.
        model: The facts of the step `promote`, such as `name` and `version`.
        promoted: Whether the model is the new champion.
        rejected: Whether it was rejected.
        waiting: Whether it waits for approval.
        state: The name of the final state, as `tasks.promote.outcome.Verdict` has it.
    """

    promote: bool
    training: Json | None
    images: Json | None
    precision: str | None
    metrics: dict[str, float] | None
    champion: Json | None
    decision: Json | None
    model: Json | None
    promoted: bool
    rejected: bool
    waiting: bool
    state: str | None


class Suspects(Checks):
    """A run of `suspects`.

    Attributes:
        suspects: The facts of the step `find_suspects`.
        model: The champion that has compared the images.
    """

    suspects: Json | None
    model: Json | None


class Tuning(Checks):
    """A run of `tune`.

    Attributes:
        search: The `metric`, and how many trials are `wanted`.
        trials: Those that have ended, the best first.
        best: The best one.
        command: The command that trains with its values.
    """

    search: Json | None
    trials: list[Json] | None
    best: Json | None
    command: str | None


def of_run(run: Run) -> Checks:
    """What the documents of all flows with steps have; a run may have failed at any step."""
    facts = run.artifacts["validate"].facts if "validate" in run.artifacts else {}
    return {
        "flow": run.flow,
        "workload": run.workload.name,
        "run": run.id,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "unchanged": False,
        "seconds": round(monotonic() - run.began, 3),
        "data": {
            "version": run.version.digest,
            "tracked": run.version.tracked,
            "revision": run.version.revision,
            "path": run.workload.data.path,
            "rows": facts.get("rows"),
            "quarantined": facts.get("quarantined"),
            "near_duplicates": facts.get("near_duplicates"),
        },
        "steps": [asdict(outcome) for outcome in run.outcomes.values()],
        "warnings": list(run.warnings),
        "look": {"report": latest_page(run.workload.name, run.flow)},
        "outcome": None,
    }


def latest_page(workload: str, flow: str) -> str:
    """The latest page of a flow, relative to the project; `latest.html` for trainings."""
    return f"{REPORTS}/{workload}/{'latest' if flow == 'train' else flow}.html"
