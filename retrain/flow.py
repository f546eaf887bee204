"""The decorator of flows: `@flow` above a function in `flows/` makes a Prefect flow of it.

Prefect is imported when a flow is run as a flow run, and not before: importing it takes a second,
and a command that has nothing to do should take less. Prefect itself loads a file by its path
(`flows/train.py:train` in `prefect.yaml`), which makes a module outside of any package; there, the
name stands for Prefect's own flow.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, ParamSpec, TypeVar

from retrain.runs.notify import notify_of_end, run_name

if TYPE_CHECKING:
    from prefect import Flow as PrefectFlow

P = ParamSpec("P")
R = TypeVar("R")


class Flow(Generic[P, R]):
    """A flow without steps.

    Attributes:
        fn: The function under the decorator; to call it runs it without Prefect.
        name: The name of the flow, and of its command.
        description: What the flow does: the first line of the function's docstring.
    """

    def __init__(self, fn: Callable[P, R]) -> None:
        assert fn.__doc__, f"{fn.__name__} has no docstring"
        self.fn = fn
        self.name = fn.__name__
        self.description = fn.__doc__.strip().splitlines()[0]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs the function inside a Prefect flow run."""
        return self.as_prefect_flow()(*args, **kwargs)

    def as_prefect_flow(self) -> "PrefectFlow[P, R]":
        """The flow that Prefect runs; it notifies people when a run fails."""
        from prefect import Flow as PrefectFlow

        return PrefectFlow(
            self.fn,
            self.name,
            description=self.description,
            flow_run_name=self._run_name,
            persist_result=False,
            on_failure=[notify_of_end],
            on_crashed=[notify_of_end],
        )

    def _run_name(self) -> str:
        """The name of the flow run that begins, for Prefect."""
        from prefect import runtime

        return f"{self.name}-{run_name(runtime.flow_run.parameters)}"


def flow(fn: Callable[P, R]) -> Flow[P, R]:
    """Makes a flow of a function: `@flow`.

    The function's name is the flow's, and the first line of its docstring describes it. One of its
    parameters is `workload`, or another by which a run is named (`retrain.runs.notify.run_name`).
    """
    made = Flow(fn)
    return made if "." in fn.__module__ else made.as_prefect_flow()  # type: ignore[return-value]
