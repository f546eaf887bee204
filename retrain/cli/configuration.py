"""The command about the parameters of workloads: `params`."""

from collections.abc import Sequence
from dataclasses import asdict
from textwrap import fill
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from retrain.cli.command import LOOKING, Answer, Clone, app, workloads
from retrain.errors import UsageError
from retrain.messages import wrapped

if TYPE_CHECKING:
    from cyclopts.completion import CompletionContext

    from retrain.cli.params import Parameter as Declared


def keys(_: "CompletionContext | None" = None) -> dict[str, str]:
    """The first sentence about each parameter by its name, for the completion of a shell."""
    from retrain.cli.params import parameters

    return {one.name: one.description.partition(".")[0] for one in parameters()}


def _workloads_and_keys(_: "CompletionContext") -> dict[str, str]:
    return dict.fromkeys(workloads(), "A workload") | keys()


def assignments(_: "CompletionContext") -> dict[str, str]:
    """What `--set` begins with, `KEY=`, for the completion of a shell."""
    return {f"{name}=": sentence for name, sentence in keys().items()}


@app.command(group=LOOKING)
def params(
    workload: Annotated[str, Parameter(completer=_workloads_and_keys)] = "",
    key: Annotated[str, Parameter(completer=keys)] = "",
    /,
    *,
    project: Clone,
) -> Answer:
    """Show parameters: value, default, meaning, and where each was set.

    Examples: `retrain params vit`, `retrain params vit train.lr`, `retrain params train.augment`

    Args:
        workload: An entry of params.yaml. It may be left out, for what any of them may set.
        key: The beginning of parameters' names; all if it is left out.
    """
    from retrain.cli.params import parameters, settings_of
    from retrain.faults import did_you_mean

    names = workloads()
    if workload not in names:
        if key:
            raise UsageError(f"No workload {workload!r}.{did_you_mean(workload, names)}")
        workload, key = "", workload
    every = settings_of(project, workload) if workload else parameters()
    listed = [parameter for parameter in every if parameter.name.startswith(key)]
    if not listed:
        known = [parameter.name for parameter in every] + names
        raise UsageError(f"No parameter begins with {key!r}.{did_you_mean(key, known)}")
    return Answer([asdict(parameter) for parameter in listed], lambda: _show(listed))


def _show(listed: "Sequence[Declared]") -> None:
    from retrain.cli.params import Setting
    from retrain.params import as_yaml

    for parameter in listed:
        name = f"{parameter.name} ({parameter.family})" if parameter.family else parameter.name
        line = f"{name}: {parameter.values}; default: {parameter.default_in_words}"
        if isinstance(parameter, Setting):
            default = "" if parameter.is_required else "default: "
            origin = f"{parameter.set_in}; {default}{parameter.default_in_words}"
            origin = origin if parameter.set_in else "default"
            line = f"{parameter.name} = {as_yaml(parameter.value)}   ({origin})"
        print(wrapped(line.replace("`", ""), "    "))
        print(fill(parameter.description, 80, initial_indent="    ", subsequent_indent="    "))
