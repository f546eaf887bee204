"""Changes values in the text of `params.yaml`, and leaves its comments and quotes as they are."""

import difflib
import json
from collections.abc import Mapping, Sequence
from io import StringIO
from typing import Any

from ruamel.yaml import YAML

from retrain.params import DEFAULT, parse_override, parse_yaml


def patch(text: str, entry: str, values: Mapping[str, Any], file: str) -> str | None:
    """A unified diff that gives parameters of a workload other values.

    Args:
        text: Of `params.yaml`.
        entry: The workload's key.
        values: By dotted name.
        file: The file's name in the diff.

    Returns:
        For `git apply` or `patch -p1`; empty if nothing changes. None if it takes a person: a value
        is to be dropped, or workloads share a part of the text.
    """
    if DEFAULT in values.values():
        return None
    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 4096  # or long lines would be broken
    yaml.indent(mapping=2, sequence=4, offset=2)
    tree, expected = yaml.load(text), parse_yaml(text)
    for dotted, value in values.items():
        path = ["workloads", entry, *dotted.split(".")]
        _set(tree, path, value)
        expected = _replaced(expected, path, value)
    stream = StringIO()
    yaml.dump(tree, stream)
    if parse_yaml(stream.getvalue()) != expected:
        return None
    before, after = (each.splitlines(keepends=True) for each in (text, stream.getvalue()))
    lines = difflib.unified_diff(before, after, f"a/{file}", f"b/{file}")
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )


def as_yaml(value: Any) -> str:
    """A value on one line, as `params.yaml` and `--set` take it."""
    if isinstance(value, str) and value == value.strip() and not set(value) & set("#,[]{}:"):
        try:
            if parse_override(f"key={value}")[1] == value:
                return value
        except ValueError:
            pass
    return json.dumps(value, ensure_ascii=False)


def _set(tree: Any, path: Sequence[str], value: Any) -> None:
    """Sets a value in a tree that keeps its comments; sections that are missing are added."""
    *sections, last = path
    for name in sections:
        if tree.get(name) is None:
            tree[name] = {}
        tree = tree[name]
    if last not in tree or tree[last] != value:  # or 1e-3 would become 0.001
        tree[last] = value


def _replaced(tree: Any, path: Sequence[str], value: Any) -> dict[str, Any]:
    """A tree with another value at a path; what an alias shares is changed at the path alone."""
    name, *below = path
    inner = _replaced(tree.get(name) or {}, below, value) if below else value
    return {**tree, name: inner}
