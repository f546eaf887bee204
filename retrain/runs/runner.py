"""The type of an object that runs steps, for code that calls steps in its own order."""

from typing import Protocol

from retrain.step import Input, Step
from retrain.store import Artifact, RunContext
from retrain.workload import Workload


class Runner(Protocol):
    """Runs a step or takes its output from the store, as `retrain.runs.run.Run` does."""

    @property
    def workload(self) -> Workload:
        """The workload of the run."""

    @property
    def context(self) -> RunContext:
        """The run, and the project that it runs in."""

    def __call__(self, step: Step, *inputs: Input) -> Artifact:
        """Returns the step's output."""
