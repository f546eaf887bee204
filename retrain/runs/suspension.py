"""Lets the run of a deployment wait for a person, without a process and without its slot.

Prefect suspends the flow run and shows a form. When a person has filled it in, the flow run begins
again from its start.
"""

from contextlib import suppress
from typing import TypeVar
from uuid import UUID

from pydantic import BaseModel

Form = TypeVar("Form", bound=BaseModel)


def is_possible() -> bool:
    """Whether this flow run is one of a deployment; no other one can be begun again."""
    from prefect import runtime

    return runtime.deployment.id is not None


def ask(form: type[Form], key: str, text: str) -> Form:
    """The answer of a person to a form.

    The first call with a key ends this process. The flow run has the state `Suspended` then, for
    as long as it takes; in the flow run that was resumed the same call gives the answer.

    Args:
        form: The fields of the form.
        key: The key of the question, in this flow run.
        text: The question (Markdown).
    """
    from prefect.flow_runs import suspend_flow_run
    from prefect.input import RunInput

    form_with_text = RunInput.subclass_from_base_model_type(form).with_initial_data(
        description=text
    )
    answer = suspend_flow_run(wait_for_input=form_with_text, key=key)
    return form.model_validate(answer.model_dump())


def end(run: str, state: str, message: str) -> None:
    """Ends a flow run that is suspended; another one, and one of another server, is left alone.

    Nothing is left for it to do, so that no process is needed.

    Args:
        run: The id of the flow run.
        state: The name of its final state; the type is `COMPLETED`.
        message: The message of that state.
    """
    from prefect.client.orchestration import get_client
    from prefect.exceptions import ObjectNotFound
    from prefect.states import Completed

    with get_client(sync_client=True) as client, suppress(ObjectNotFound):
        current = client.read_flow_run(UUID(run)).state
        if current is not None and current.is_paused():
            client.set_flow_run_state(UUID(run), Completed(name=state, message=message))
