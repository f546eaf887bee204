"""The trials of a search, in a study of Optuna that a killed search goes on with.

The study is a journal file with a line for each change. One process at a time works at a search, so
a trial that is running when a search begins was left by one that was killed.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from math import ceil, isfinite
from pathlib import Path
from statistics import median_high
from typing import TYPE_CHECKING, Any

from retrain.outputs import Plan
from retrain.search.space import Parameter, Values, first_values, from_optuna
from retrain.step import digest_of
from retrain.workload import Tune

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.storages import BaseStorage

JOURNAL = "journal.log"
LOCK = "search.lock"
NAME = "search"
COMPLETE, PRUNED, FAILED = "complete", "pruned", "failed"
STATES = {"COMPLETE": COMPLETE, "PRUNED": PRUNED, "FAIL": FAILED}  # as Optuna calls them

# A trial is compared at a quarter and at half of a whole training, and goes on if it is in the
# better half there: asynchronous successive halving (Li et al., 2020). Earlier, a warm-up or
# augmentation, which are slow at first, would decide.
RUNGS = (4, 2)
UNPRUNED = 3  # complete trials before that


@dataclass(frozen=True)
class Ending:
    """How a trial has ended.

    Attributes:
        state: `complete`, `pruned` or `failed`.
        best: The entry of its best epoch in the training's history; None if it has none.
        reached: The best metric up to each epoch; larger is better: it is the opposite of a loss.
        reason: Why it failed.
        cached: Whether the store had its output.
        seconds: How long it took.
    """

    state: str
    best: Mapping[str, Any] | None
    reached: Sequence[float]
    reason: str | None
    cached: bool
    seconds: float


def search_key(training: Plan, tune: Tune) -> str:
    """SHA-256 (hex) of what makes two searches the same: the training but for the space, the seed.

    Args:
        training: The plan of a trial, which has the version of the data too.
        tune: The space and the seed.
    """
    config = {
        name: value
        for name, value in training.config.items()
        if not any(name == each or name.startswith(f"{each}.") for each in tune.space)
    }
    space = {name: searched.model_dump(mode="json") for name, searched in tune.space.items()}
    same = asdict(replace(training, config=config)) | {"space": space, "seed": tune.seed}
    return digest_of(same)


@dataclass(frozen=True)
class Search:
    """A search, whose study is made when it is first needed.

    Attributes:
        folder: Where the study is kept; it need not exist.
        space: What is searched.
        seed: Of the values that are drawn.
        metric: The metric that trials are compared by.
        maximize: Whether it should be large.
    """

    folder: Path
    space: Sequence[Parameter]
    seed: int
    metric: str
    maximize: bool

    @cached_property
    def storage(self) -> "BaseStorage":
        """The journal; or the memory, if it does not exist."""
        from optuna.storages import InMemoryStorage, JournalStorage
        from optuna.storages.journal import JournalFileBackend

        file = self.folder / JOURNAL
        return JournalStorage(JournalFileBackend(str(file))) if file.exists() else InMemoryStorage()

    @cached_property
    def study(self) -> "Study":
        """The study in Optuna."""
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        return optuna.create_study(
            storage=self.storage,
            study_name=NAME,
            direction="maximize" if self.maximize else "minimize",
            load_if_exists=True,
        )

    def begin(self, trials: int, *, anew: bool) -> None:
        """Creates the journal, and decides what is tried first.

        Args:
            trials: How many there are to be in all.
            anew: Forget the trials that there are.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / JOURNAL
        if anew:
            file.unlink(missing_ok=True)
        file.touch()
        for values in first_values(self.space, trials):
            self.study.enqueue_trial(values, skip_if_exists=True)

    def next(self, running: Collection[int] = ()) -> "Trial":
        """The trial to run next: one whose process was killed, or a new one.

        Optuna's tree-structured Parzen estimator (Bergstra et al., 2011) draws its values, with a
        seed of the trial's own: a search that was killed draws what it would have drawn anyway.

        Args:
            running: The numbers of the trials that run beside it.
        """
        from optuna import Trial
        from optuna.samplers import TPESampler

        known = self.study.get_trials(deepcopy=False)
        left = [each.number for each in known if each.state.name == "RUNNING"]
        left = [number for number in left if number not in running]
        number = left[0] if left else len(known)
        seed = int(digest_of([self.seed, number])[:8], 16)
        self.study.sampler = TPESampler(seed=seed, constant_liar=bool(running))
        trial = Trial(self.study, self._id(number)) if left else self.study.ask()
        for parameter in self.space:
            parameter.draw(trial)
        return trial

    def values(self, trial: "Trial") -> Values:
        """The values of a trial, by the parameter's dotted name."""
        return from_optuna(self.space, trial.params)

    def tell(self, trial: "Trial", ending: Ending) -> None:
        """Keeps how a trial has ended."""
        from optuna.trial import TrialState

        reached = [value if self.maximize else -value for value in ending.reached]
        for epoch, value in enumerate(reached, start=1):
            if isfinite(value):  # the metric was reported
                trial.report(value, epoch)
        for name in ("best", "reason", "cached", "seconds"):
            trial.set_user_attr(name, getattr(ending, name))
        trial.set_user_attr("epochs", len(reached))
        states = {state: name for name, state in STATES.items()}
        result = reached[-1] if ending.state == COMPLETE else None
        self.study.tell(trial, result, TrialState[states[ending.state]])

    def rows(self) -> list[dict[str, Any]]:
        """The trials that have ended, in order, as they stand in the document of a run."""
        return [
            {
                "trial": trial.number,
                "values": from_optuna(self.space, trial.params),
                "state": STATES[trial.state.name],
                **trial.user_attrs,
            }
            for trial in self.study.get_trials(deepcopy=False)
            if trial.state.is_finished()
        ]

    def bounds(self) -> dict[int, float]:
        """What a trial has to have reached, by the number of an epoch, so that it is not pruned.

        It is known before a trial begins, because all workers of a training, which may be on
        several machines, have to end it alike. Larger is better: it is the opposite of a loss.
        Nothing is pruned before there are some complete trials, whose lengths say what a whole
        training is.
        """
        lengths = [row["epochs"] for row in self.rows() if row["state"] == COMPLETE]
        if len(lengths) < UNPRUNED:
            return {}
        sign = 1 if self.maximize else -1
        curves = [trial.intermediate_values for trial in self.study.get_trials(deepcopy=False)]
        rungs = [ceil(max(lengths) / part) for part in RUNGS]
        others = {rung: [sign * curve[rung] for curve in curves if rung in curve] for rung in rungs}
        return {rung: median_high(values) for rung, values in others.items() if values}

    def _id(self, number: int) -> int:
        study = self.storage.get_study_id_from_name(NAME)
        return self.storage.get_trial_id_from_study_id_trial_number(study, number)
