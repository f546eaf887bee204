"""May the model go to production? Bounds that hold for every model, and the champion to beat.

The champion is scored on the same test split as the challenger, whatever data and image size it
was trained on, so that both figures mean the same.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from retrain.errors import UsageError
from retrain.project import Project
from retrain.registry import versions
from retrain.step import Facts, Input, Step, Workspace, digest_of
from retrain.store import Artifact, RunContext
from retrain.workload import Gate, Model, Workload
from tasks.evaluate.step import STEP as EVALUATE
from tasks.preprocess.step import STEP as PREPROCESS

# Of the metrics of `evaluate`, those that are better when they are lower.
LOWER_IS_BETTER = frozenset({"log_loss", "calibration_error"})


class Runner(Protocol):
    """Runs a step or takes its output from the store, as `retrain.runs.run.Run` does."""

    @property
    def workload(self) -> Workload:
        """What is run."""

    @property
    def context(self) -> RunContext:
        """The run, and the project that it runs in."""

    def __call__(
        self, step: Step, *inputs: Input, workload: Workload | None = None, of: str = ""
    ) -> Artifact:
        """Gives the step's output."""


@dataclass(frozen=True)
class Champion:
    """The model in production, with its metrics on the challenger's test split.

    Attributes:
        version: Its version in the registry; None when there is no champion yet.
        weights: SHA-256 (hex) of its weights.
        metrics: By name, as `evaluate` gives them.
    """

    version: int | None
    weights: str | None
    metrics: Mapping[str, float]

    @property
    def step(self) -> str:
        """Its name as an input of the gate."""
        return "champion"

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of what is known of it."""
        return digest_of(asdict(self))


@dataclass(frozen=True)
class Registered:
    """What `train` made once, as the registry has kept it.

    Attributes:
        project: Whose registry.
        version: Of the model.
    """

    project: Project
    version: versions.ModelVersion

    @property
    def step(self) -> str:
        """The step that made it."""
        return "train"

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of what the step made."""
        return self.version.train_digest

    @cached_property
    def folder(self) -> Path:
        """Where its files are; brought to this machine only when they are asked for."""
        return versions.download(self.project, self.version)


def score_champion(
    run: Runner, pulled: Artifact, validated: Artifact, images: Artifact, scores: Artifact
) -> Champion:
    """Looks the champion up and has it evaluated on the challenger's test split.

    Args:
        run: Runs the steps that this needs; their outputs are cached like any other.
        pulled: The data, as pulled.
        validated: Which images are used, and their splits.
        images: The challenger's prepared images.
        scores: The challenger's evaluation.
    """
    champion = versions.champion(run.context.project, run.workload.name)
    if champion is None:
        return Champion(None, None, {})
    if champion.weights == scores.facts["weights"]:
        return Champion(champion.version, champion.weights, scores.facts["metrics"])
    theirs = run.workload.model_copy(
        update={
            # Its own, but stored as this run stores them.
            "images": run.workload.images.model_copy(update=champion.images),
            "model": Model(family=champion.family),
        }
    )
    if theirs.images != run.workload.images:
        images = run(PREPROCESS, pulled, validated, workload=theirs, of="champion")
    trained = Registered(run.context.project, champion)
    evaluated = run(EVALUATE, trained, images, workload=theirs, of="champion")
    return Champion(champion.version, champion.weights, evaluated.facts["metrics"])


def gate(rules: Gate, scores: Artifact, champion: Champion, workspace: Workspace) -> Facts:
    """Decides whether a model may go to production.

    Returns:
        `passed`; `verdict`: `first`, `better`, `champion already`, `not better` or `below bounds`;
        `rules`: for each, its words, the value, the bound and whether it passed; `champion`: its
        version and metrics, or None.

    Raises:
        UsageError: A rule names a metric that `evaluate` does not give.
    """
    metrics: Mapping[str, float] = scores.facts["metrics"]
    for name in (*rules.min, *rules.max, rules.metric):
        if name not in metrics:
            raise UsageError(f"gate: no metric {name!r}. There are: {', '.join(sorted(metrics))}.")
    bounds = [_rule(name, ">=", metrics[name], bound) for name, bound in rules.min.items()]
    bounds += [_rule(name, "<=", metrics[name], bound) for name, bound in rules.max.items()]
    within = all(rule["passed"] for rule in bounds)
    if champion.version is None:
        verdict = "first" if within else "below bounds"
        return _decision(verdict, bounds, None)
    shown = {"version": champion.version, "metrics": dict(champion.metrics)}
    if champion.weights == scores.facts["weights"]:
        return _decision("champion already", bounds, shown) | {"passed": within}
    duel = _against(champion, rules, metrics[rules.metric])
    verdict = "below bounds" if not within else "better" if duel["passed"] else "not better"
    return _decision(verdict, [*bounds, duel], shown)


def _rule(name: str, relation: str, value: float, bound: float, words: str = "") -> dict[str, Any]:
    passed = {">=": value >= bound, "<=": value <= bound, ">": value > bound, "<": value < bound}
    return {
        "rule": f"{name} {relation} {words or f'{bound:g}'}",
        "value": value,
        "bound": bound,
        "passed": passed[relation],
    }


def _against(champion: Champion, rules: Gate, value: float) -> dict[str, Any]:
    """Strictly better than the champion by more than the margin: a tie keeps the champion."""
    theirs = champion.metrics[rules.metric]
    lower = rules.metric in LOWER_IS_BETTER
    bound = theirs - rules.margin if lower else theirs + rules.margin
    sign = "-" if lower else "+"
    words = f"champion {champion.version} ({theirs:.4f})"
    if rules.margin:
        words += f" {sign} {rules.margin:g}"
    return _rule(rules.metric, "<" if lower else ">", value, bound, words)


def _decision(
    verdict: str, rules: list[dict[str, Any]], champion: Mapping[str, Any] | None
) -> Facts:
    return {
        "passed": verdict in ("first", "better"),
        "verdict": verdict,
        "rules": rules,
        "champion": champion,
    }


STEP = Step(
    "gate",
    gate,
    reads=("gate",),
    inputs=("evaluate", "champion"),
    cached=False,
    dry_function=gate,
    hours=1,
)
