"""Writes what is generated from the code: the pages of commands and parameters, and the schema.

python scripts/reference.py
"""

import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from models import families
from retrain.cli import main  # noqa: F401  which adds the commands to `app`
from retrain.cli.command import app
from retrain.params import as_yaml
from retrain.workload import Workload

ROOT = Path(__file__).parents[1]
OF_EVERY_COMMAND = "Options of every command"

Schema = Mapping[str, Any]

# JSON Schema's names of bounds, and how a person writes them.
BOUNDS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
TYPES = {
    "integer": "whole number",
    "string": "text",
    "boolean": "true or false",
    "null": "none",
    "number": "number",
}


def pages() -> dict[str, str]:
    """The texts of the generated files, by their paths below the project's folder."""
    return {
        "docs/commands.md": commands_page(),
        "docs/parameters.md": parameters_page(),
        "params.schema.json": json.dumps(json_schema(), indent=1) + "\n",
    }


def commands_page() -> str:
    """The page of all commands, as their help says it."""
    with patch.object(sys, "argv", ["retrain"]):  # which Cyclopts puts into some usages
        text = app.generate_docs(usage_name="retrain")
    text = re.sub(r"## Table of Contents\n.*?(?=\n[^-\n ])", "", text, count=1, flags=re.DOTALL)
    overview, *sections = re.split(r"(?=^## )", text, flags=re.MULTILINE)
    block = re.compile(rf"\n\*\*{OF_EVERY_COMMAND}\*\*:\n\n(?:\*.*\n)+")
    sections = [block.sub("", section) for section in sections]
    title = "# Commands\n\nMade by `make docs` from the help of the command line.\n"
    return title + overview.partition("\n")[2] + "".join(sections)


def parameters_page() -> str:
    """The parameters as a page, with a table for each section."""
    lines = [
        "# The parameters of a workload",
        "",
        "Made by `make docs` from the code.",
        "",
    ]
    heading = None
    for parameter in parameters():
        section = parameter.name.partition(".")[0]
        new_heading = f"{section} of the family {parameter.family}" if parameter.family else section
        if new_heading != heading:
            heading = new_heading
            lines += [
                "",
                f"## {heading}",
                "",
                "| parameter | values | default | |",
                "|---|---|---|---|",
            ]
        cells = [f"`{parameter.name}`", parameter.values, parameter.default_in_words]
        cells.append(parameter.description)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join([*lines, ""])


@dataclass(frozen=True)
class Parameter:
    """A parameter of a workload.

    Attributes:
        name: Its dotted name: `train.lr`.
        values: What it may be: a type with bounds, or the values themselves.
        is_required: Whether a workload has to set it.
        default: The default, as a JSON value.
        description: What it does.
        family: The family whose networks have it; None for all.
    """

    name: str
    values: str
    is_required: bool
    default: Any
    description: str
    family: str | None = None

    @property
    def default_in_words(self) -> str:
        """The default, for a person."""
        if self.is_required:
            return "must be set"
        return "none" if self.default is None else f"`{as_yaml(self.default)}`"


REMOTE = (
    "The mirror of the store, where all machines find what one has made: `s3://bucket/prefix`, "
    "`gs://bucket/prefix` or `file:///folder`. `RETRAIN_STORE_REMOTE` wins over it."
)


def json_schema() -> dict[str, Any]:
    """The JSON schema of `params.yaml`."""
    schema = Workload.model_json_schema()
    definitions = schema.pop("$defs")
    del schema["properties"]["name"]  # it is the key
    schema["required"].remove("name")
    definitions |= {"Workload": schema, "Model": {"oneOf": [*map(_family, families.FAMILIES)]}}
    workloads = {"type": "object", "additionalProperties": {"$ref": "#/$defs/Workload"}}
    store = {
        "type": "object",
        "additionalProperties": False,
        "properties": {"remote": {"type": "string", "description": REMOTE}},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "additionalProperties": False,
        "properties": {"store": store, "workloads": workloads},
        "$defs": definitions,
    }


def parameters() -> list[Parameter]:
    """All parameters, in the order of their declaration; those of the families come last."""
    schema = Workload.model_json_schema()
    del schema["properties"]["name"], schema["properties"]["model"]
    parameters_found = [*_below(schema, schema["$defs"], "")]
    for family in families.FAMILIES:
        parameters_found += _below(_family(family), {}, "model.", family)
    return parameters_found


def _family(family: str) -> dict[str, Any]:
    """The schema of the section `model` for a family."""
    schema: dict[str, Any] = families.FAMILIES[family].model_json_schema()
    name = {"const": family, "description": "The kind of network: a module of `models/`."}
    schema["properties"] = {"family": name} | schema["properties"]
    return schema | {"required": ["family", *schema.get("required", [])]}


def _below(
    schema: Schema, definitions: Mapping[str, Schema], above: str, family: str | None = None
) -> Iterator[Parameter]:
    """The parameters of a section and of the sections in it."""
    for name, declared in schema["properties"].items():
        kinds = declared.get("anyOf", [declared])
        sections = [kind["$ref"].rpartition("/")[2] for kind in kinds if "$ref" in kind]
        if not sections or "description" in declared:
            values = " or ".join(map(_values, kinds))
            details = (declared.get("default"), declared.get("description", ""), family)
            yield Parameter(above + name, values, name in schema.get("required", ()), *details)
        for section in sections:
            yield from _below(definitions[section], definitions, f"{above}{name}.", family)


def _values(kind: Schema) -> str:
    """What a parameter of a kind may be, for a person."""
    if "$ref" in kind:
        return "a section"
    if "const" in kind or "enum" in kind:
        return ", ".join(f"`{value}`" for value in kind.get("enum", [kind.get("const")]))
    if kind.get("type") == "array":
        items = kind.get("items", {})
        return f"list of {_values(items)}" if items else "list"
    if kind.get("type") == "object":
        return "mapping"
    name = TYPES[kind["type"]] if "type" in kind else "anything"
    bounds = [f"{sign} {kind[bound]}" for bound, sign in BOUNDS.items() if bound in kind]
    return " ".join([name, *bounds])


if __name__ == "__main__":
    for name, content in pages().items():
        (ROOT / name).write_text(content, encoding="utf-8")
