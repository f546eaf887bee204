"""Runs a training as the trial of a search."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from time import monotonic
from typing import Any

from retrain.errors import DamagedArtifactError, PrunedError, UsageError
from retrain.execute import get_or_run
from retrain.limits import ends_process
from retrain.messages import message_of
from retrain.outputs import plan
from retrain.params import vary
from retrain.project import Project
from retrain.search import COMPLETE, FAILED, PRUNED, Ending
from retrain.step import REPORT, Input, TrialContext
from retrain.store import Artifact, RunContext, Store
from retrain.verify import Verifier
from retrain.workload import Workload
from tasks.train.selection import best_so_far, pruned_at, score
from tasks.train.step import train


def ending_elsewhere(
    workload: Workload,
    run: RunContext,
    values: Mapping[str, Any],
    context: TrialContext,
    inputs: Sequence[Input],
    refresh: bool,
) -> Ending:
    """Runs a trial in a process of Ray, without Prefect; returns how it ended."""

    def training(varied: Workload, trial: TrialContext) -> tuple[Artifact, bool]:
        store, planned = Store.of(run.project), plan(train, varied, inputs)
        run_context = replace(run, trial=trial)
        hours, check = train.limit(varied), Verifier(store).check
        with store.making(train.name, planned.key), ends_process(hours):
            return get_or_run(
                store, train, planned, varied, inputs, run_context, check, refresh=refresh
            )

    return ending(training, workload, run.project, values, context)


def ending(
    training: Callable[[Workload, TrialContext], tuple[Artifact, bool]],
    workload: Workload,
    project: Project,
    values: Mapping[str, Any],
    context: TrialContext,
) -> Ending:
    """Runs a trial, or goes on with one that was killed; returns how it ended.

    Args:
        training: Runs the step `train`; returns its output, and whether the store had it.
        workload: The workload of the search.
        project: The clone.
        values: The parameters of the trial.
        context: What the training is told of the search.
    """
    choice, began = workload.train.best, monotonic()
    history: Sequence[Any] = []
    cached, reason = False, None
    try:
        varied = vary(workload, values)
        if faults := [*train.check(varied, project)]:
            raise UsageError(" ".join(faults))
        # A trial that has finished all its epochs is compared by its result.
        bounds = {n: bound for n, bound in context.bounds.items() if n < varied.train.epochs}
        artifact, cached = training(varied, replace(context, bounds=bounds))
        text = (artifact.folder / REPORT / "history.json").read_text(encoding="utf-8")
        history = json.loads(text)
        end = pruned_at(history, choice, bounds)  # the store may have had it
        history, state = history[:end], PRUNED if end else COMPLETE
    except PrunedError as pruned:
        history, state = pruned.history, PRUNED
    except DamagedArtifactError:  # the images are made again, and the search goes on
        raise
    except Exception as error:
        reason, state = message_of(error), FAILED
    reported = [epoch for epoch in history if choice.metric in epoch]
    best = max(reported, key=lambda epoch: score(epoch, choice), default=None)
    reached, seconds = best_so_far(history, choice), round(monotonic() - began, 3)
    return Ending(state, best, reached, reason, cached, seconds)
