"""The command about the parameters of workloads: `params`."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from retrain.cli.command import TRAINING, Answer, app

if TYPE_CHECKING:
    from retrain.parameters import Parameter


@app.command(group=TRAINING)
def params(prefix: str = "", /, *, schema: bool = False, markdown: bool = False) -> Answer:
    """Show what a workload may set, its defaults and what each parameter does.

    Examples: `retrain params train.augment`, `retrain params --schema > params.schema.json`

    Args:
        prefix: The beginning of parameters' names; all if it is left out.
        schema: Write the JSON schema of params.yaml, for editors.
        markdown: Write the page docs/parameters.md.
    """
    from retrain import parameters

    if schema:
        document = parameters.json_schema()
        return Answer(document, lambda: print(json.dumps(document, indent=1)))
    if markdown:
        page = parameters.markdown()
        return Answer({"markdown": page}, lambda: print(page, end=""))
    listed = [each for each in parameters.parameters() if each.name.startswith(prefix)]
    if not listed:
        raise ValueError(f"No parameter begins with {prefix}. All are listed by: retrain params")
    return Answer([_as_json(each) for each in listed], lambda: _show(listed))


def _as_json(parameter: "Parameter") -> dict[str, Any]:
    """A parameter as JSON-able values; one that has to be set has no `default`."""
    values = asdict(parameter)
    if values["default"] is ...:
        del values["default"]
    return values


def _show(listed: "list[Parameter]") -> None:
    for parameter in listed:
        of_family = f" ({parameter.family})" if parameter.family else ""
        default = "must be set" if parameter.default is ... else f"default {parameter.default}"
        values = parameter.values.replace("`", "")
        print(f"{parameter.name}{of_family}: {values}; {default}\n    {parameter.description}")
