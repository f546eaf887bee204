"""Runs a training as the trial of a search."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from time import monotonic
from typing import Any

from retrain.errors import DamagedArtifactError, PrunedError, UsageError
from retrain.messages import message_of
from retrain.outputs import plan
from retrain.params import vary
from retrain.runs import console
from retrain.runs.run import Run
from retrain.search import COMPLETE, FAILED, PRUNED, Ending
from retrain.step import REPORT, Input, TrialContext
from tasks.train.job import best_so_far, pruned_at, score
from tasks.train.step import train


def run_trial(
    run: Run, inputs: Sequence[Input], values: Mapping[str, Any], context: TrialContext
) -> Ending:
    """Runs a trial, or goes on with one that was killed; returns how it ended.

    Args:
        run: The run of the search.
        inputs: The inputs of the step `train`.
        values: The parameters of the trial.
        context: What the training is told of the search.
    """
    choice, began = run.workload.train.best, monotonic()
    history: Sequence[Any] = []
    cached, reason = False, None
    try:
        varied = vary(run.workload, values)
        if faults := [*train.check(varied, run.project)]:
            raise UsageError(" ".join(faults))
        # A trial that has finished all its epochs is compared by its result.
        bounds = {n: bound for n, bound in context.bounds.items() if n < varied.train.epochs}
        trial, planned = replace(context, bounds=bounds), plan(train, varied, inputs)
        with console.progress(trial.name):
            artifact, cached = run.make(train, planned, varied, inputs, trial)
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
