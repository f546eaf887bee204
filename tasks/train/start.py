"""Starts a training: from which weights, and as the trial of a search."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from time import monotonic
from typing import Any

from retrain.errors import DamagedArtifactError, PrunedError, UsageError
from retrain.messages import message_of
from retrain.outputs import plan
from retrain.params import vary
from retrain.project import Project
from retrain.registry import versions
from retrain.runs import console
from retrain.runs.run import Run
from retrain.search import COMPLETE, FAILED, PRUNED, Ending
from retrain.step import REPORT, Input, TrialContext
from retrain.store import Artifact
from retrain.workload import Workload
from tasks.data.champion import Registered, Start
from tasks.train.job import best_so_far, pruned_at, score
from tasks.train.step import train


def find_start(workload: Workload, project: Project, images: Artifact, pulled: Artifact) -> Start:
    """Finds what a training starts from.

    A champion that was itself trained in this way, on these images with these parameters, is not
    trained further: the training starts where the champion's did, and so is the champion's.

    Args:
        workload: The workload of the run.
        project: The clone with the registry.
        images: The images or embeddings that it trains on.
        pulled: The output of `pull`.
    """
    if workload.train.init == "new":
        return Start(None)
    champion = versions.champion(project, workload.name)
    if champion is None:
        return Start(None)
    before = None
    if champion.start:
        before = versions.find_by_weights(project, workload.name, champion.start)
    if before or not champion.start:
        start = Start(Registered(project, before) if before else None)
        if plan(train, workload, [images, pulled, start]).key == champion.train_key:
            return start
    return Start(Registered(project, champion))


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
