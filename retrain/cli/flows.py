"""The commands that run a flow of steps, such as `retrain train vit`.

`run_on_screen`, by which a command runs a flow through Prefect and shows it, is here too.
"""

import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from cyclopts.completion import CompletionContext

from retrain.cli.command import (
    TRAINING,
    Answer,
    Clone,
    ToJson,
    Workload,
    app,
    complete_workloads,
)
from retrain.errors import UsageError, did_you_mean, names_of
from retrain.messages import message_of
from retrain.params import load_workload, parse_override, workload_names
from retrain.project import Project
from retrain.runs import console
from retrain.runs.console import with_local_times, wrapped
from retrain.runs.liveness import Processes
from retrain.servers import ray_cluster, reachable
from retrain.workload import Workload as WorkloadKind

if TYPE_CHECKING:
    from retrain.flow import StepsFlow
    from retrain.runs.records import Document


def assignments(_: CompletionContext) -> list[str]:
    """What `--set` begins with, `KEY=`, for the parameters that all families have."""
    return [f"{name}=" for name in names_of(WorkloadKind) if name != "name"]


@Parameter(name="*")
@dataclass(frozen=True)
class RunOptions:
    """The options that all flows of steps share.

    Attributes:
        overrides: Replace a parameter, such as train.lr=1e-3; nothing after the = drops it to its
            default (repeatable).
        data_rev: Use the data of this git revision.
        as_name: Run under a name of its own, with a champion of its own.
        dry_run: Show what would run and why, and run nothing.
        run: Run even if nothing has changed.
        refresh: Run every step, taking nothing from the cache.
        strict: Take what is warned of before a step as an error.
    """

    overrides: Annotated[
        tuple[str, ...],
        Parameter(name="--set", metavar="KEY=VALUE", show_default=False, completer=assignments),
    ] = ()
    data_rev: str | None = None
    as_name: Annotated[str | None, Parameter(name="--as")] = None
    dry_run: bool = False
    run: bool = False
    refresh: bool = False
    strict: bool = False


DEFAULTS = RunOptions()


@app.command(group=TRAINING)
def train(
    workload: Annotated[str | None, Parameter(completer=complete_workloads)] = None,
    /,
    *,
    options: RunOptions = DEFAULTS,
    promote: bool = False,
    project: Clone,
    to_json: ToJson,
) -> Answer:
    """Train a workload's model, and promote it if the gate passes it.

    Examples: `retrain train vit`, `retrain train vit --set train.epochs=3 --dry-run`

    Args:
        workload: An entry of params.yaml; with --dry-run it may be left out, for all of them.
        promote: Promote the model if it passes, also with --set or --data-rev, or if it was rolled
            back.
    """
    from flows.train import train as flow

    if workload is None:
        if options != RunOptions(dry_run=True):
            raise UsageError("Which workload is to be trained? For all, there is only --dry-run.")
        return _plans(project)
    return run_steps(flow, workload, options, project, to_json, promote=promote or None)


@app.command(group=TRAINING)
def validate(
    workload: Workload,
    /,
    *,
    options: RunOptions = DEFAULTS,
    project: Clone,
    to_json: ToJson,
) -> Answer:
    """Pull and check a workload's data.

    Example: `retrain validate vit`
    """
    from flows.validate import validate as flow

    return run_steps(flow, workload, options, project, to_json)


@app.command(group=TRAINING)
def tune(
    workload: Workload,
    /,
    *,
    options: RunOptions = DEFAULTS,
    trials: int | None = None,
    project: Clone,
    to_json: ToJson,
) -> Answer:
    """Search for better parameters of a training, and promote nothing.

    Example: `retrain tune vit --trials 20`

    Args:
        trials: Sets tune.trials.
    """
    from flows.tune import tune as flow

    values = {} if trials is None else {"tune.trials": trials}
    return run_steps(flow, workload, options, project, to_json, values)


@app.command(group=TRAINING)
def step(step: str, workload: Workload, /, *, project: Clone, to_json: ToJson) -> Answer:
    """Run one step of the flow `train`, as DVC does.

    Args:
        step: A stage of dvc.yaml.
    """
    from flows.train import train
    from retrain.flow import run_one

    stages = {stage.name: stage for stage in train.steps}
    if step not in stages:
        raise UsageError(f"{step}: no such step.{did_you_mean(step, stages)}")
    config = load_workload(project.params, workload)
    train.check(config, project)
    log = project.logs / f"{time.strftime('%Y%m%d-%H%M%S')}-dvc-{workload}.log"
    with console.on_screen(log, to_stderr=to_json):
        record = run_one(train, stages[step], config, project)
    return Answer(record)


def _plans(project: Project) -> Answer:
    """What the next training of each workload would do, and why."""
    from flows.train import train as flow

    plans: dict[str, Any] = {}
    for name in workload_names(project.params):
        try:
            plans[name] = run_steps(flow, name, RunOptions(dry_run=True), project, True).document
        except (ValueError, ConnectionError) as error:
            plans[name] = {"error": message_of(error)}

    def show() -> None:
        for name, document in plans.items():
            print(f"{name}: {document.get('outcome') or document['error']}")

    return Answer(plans, show)


def run_steps(
    flow: "StepsFlow",
    workload: str,
    options: RunOptions,
    project: Project,
    to_json: bool,
    values: Mapping[str, Any] = MappingProxyType({}),
    promote: bool | None = None,
) -> Answer:
    """Runs a flow, if it has anything to do.

    Args:
        flow: The flow to run.
        workload: The name of the workload.
        options: The options that the user has given.
        project: The clone.
        to_json: Leave standard output to the document.
        values: Parameters that other options set, by dotted name.
        promote: Whether the run may change what is served; None if the user has not said so.
    """
    from retrain.flow import may_change

    overrides = dict(map(parse_override, options.overrides)) | dict(values)
    # This comes first, so that a wrong parameter is refused at once.
    config = load_workload(project.params, workload, overrides, as_name=options.as_name)
    may_promote = may_change(promote, overrides, options.data_rev, options.as_name)
    with console.shown_on(sys.stderr):  # it may have to read data that is not under DVC
        dry_run = flow.dry_run(project, config, options.data_rev, may_promote)
    if options.dry_run:
        preview = flow.preview(dry_run, insist=options.run, refresh=options.refresh)
        return Answer(preview, partial(_show_preview, preview))
    # After a run that was killed, a flow has to run, even if that finds nothing to do.
    has_to_run = options.run or options.refresh or Processes(project.store).killed()
    if not has_to_run and (unchanged := flow.unchanged(dry_run)):
        if dry_run.version.warning:
            print(dry_run.version.warning, file=sys.stderr)
        document = unchanged | {"took": _seconds()}
        return Answer(document, lambda: print(wrapped(unchanged["outcome"])))
    arguments = (workload, overrides, options.data_rev, options.refresh)
    chosen = {name: getattr(options, name) for name in ("as_name", "strict")}
    run = partial(flow, *arguments, run=True, promote=promote, dry_run=dry_run, **chosen)
    return run_on_screen(project, f"{flow.name}-{config.name}", run, flow.report.show, to_json)


def _show_preview(preview: "Document") -> None:
    if warning := preview["data"].get("warning"):
        print(wrapped(warning))
    for step in preview["steps"]:
        why = with_local_times(step["why"])
        print(f"{step['step']:<20} would {step['would']}: {why}")
    print(preview["outcome"])


def run_on_screen(
    project: Project,
    name: str,
    run: Callable[[], "Document"],
    show: Callable[["Document"], None],
    to_json: bool,
) -> Answer:
    """Runs a flow through Prefect and shows it, with the libraries' output in a log file.

    Args:
        project: The clone.
        name: The last part of the log file's name.
        run: Makes the Prefect flow and calls it; returns the run's document.
        show: Shows the document to a person.
        to_json: Leave standard output to the document.
    """
    from prefect.settings import PREFECT_API_URL

    if api := PREFECT_API_URL.value():
        reachable.check("PREFECT_API_URL", api, "/health")
    log = project.logs / f"{time.strftime('%Y%m%d-%H%M%S')}-{name}.log"
    with console.on_screen(log, to_stderr=to_json):
        try:
            document = dict(run())
        except Exception as error:
            traceback.print_exc()  # into the log file
            error.add_note(f"More is in {log}")
            raise
        finally:
            if ray_cluster.is_remote():  # until then Ray prints what it hears of lost machines
                ray_cluster.disconnect()
        document["took"] = _seconds()
        if not to_json:
            show(document)
    return Answer(document)


def _seconds() -> float:
    """The seconds since this process was started, with its imports."""
    import psutil

    began: float = psutil.Process().create_time()
    return round(time.time() - began, 3)
