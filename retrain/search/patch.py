"""Changes values in the text of `params.yaml`, and leaves all else as it is, comments too."""

import difflib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from retrain.params import DEFAULT, parse_override, parse_yaml

INDENT = "  "  # of a section that is added


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
    expected = parse_yaml(text)
    changed = text
    for dotted, value in values.items():
        if value == DEFAULT:
            return None
        path = ["workloads", entry, *dotted.split(".")]
        new = _replaced(expected, path, value)
        if new != expected:
            changed, expected = _with(changed, path, value), new
    try:
        if parse_yaml(changed) != expected:
            return None
    except YAMLError:
        return None
    before, after = (each.splitlines(keepends=True) for each in (text, changed))
    lines = difflib.unified_diff(before, after, f"a/{file}", f"b/{file}")
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )


def as_yaml(value: Any) -> str:
    """A value on one line, as `params.yaml` and `--set` take it."""
    if isinstance(value, str) and value == value.strip():
        try:
            if parse_override(f"key={value}")[1] == value and not set(value) & set("#,[]{}:"):
                return value
        except ValueError:
            pass
    return json.dumps(value, ensure_ascii=False)


def _replaced(tree: Any, path: Sequence[str], value: Any) -> dict[str, Any]:
    """A tree with another value at a path; what an alias shares is changed at the path alone."""
    name, *below = path
    inner = _replaced(tree.get(name) or {}, below, value) if below else value
    return {**tree, name: inner}


def _with(text: str, path: Sequence[str], value: Any) -> str:
    """A text with another value at a path, which is added if it is not there."""
    before: Any = None
    node = YAML(typ="safe", pure=True).compose(text)
    for depth, name in enumerate(path):
        pair = next((pair for pair in node.value if pair[0].value == name), None)
        if pair is None:
            return _added(text, node, path[depth:], value)
        before, node = pair
        if not isinstance(node.value, list):
            break
    start, end = node.start_mark.index, _end(text, before, node)
    is_block = isinstance(node.value, list) and not node.flow_style
    if is_block or start >= end:  # it begins on a line of its own, or there is none
        start = text.index(":", before.end_mark.index) + 1
        return f"{text[:start]} {as_yaml(value)}{text[end:]}"
    return text[:start] + as_yaml(value) + text[end:]


def _added(text: str, node: Any, names: Sequence[str], value: Any) -> str:
    """A text with new keys in a mapping: after the others, or in the same braces."""
    *above, last = names
    if node.flow_style:
        entry = f"{last}: {as_yaml(value)}"
        for name in reversed(above):
            entry = f"{name}: {{{entry}}}"
        start = node.start_mark.index + text[node.start_mark.index :].index("{") + 1
        return text[:start] + entry + (", " if node.value else "") + text[start:]
    indent = " " * node.value[0][0].start_mark.column
    lines = [f"{indent}{INDENT * depth}{name}:" for depth, name in enumerate(names)]
    end = _end(text, *node.value[-1])
    after = text.find("\n", end)
    after = len(text) if after < 0 else after
    return text[:after] + "\n" + "\n".join(lines) + f" {as_yaml(value)}" + text[after:]


def _end(text: str, key: Any, node: Any) -> int:
    """Where a value ends, without the comments and blank lines behind it."""
    if isinstance(node.value, list) and not node.flow_style and node.value:
        last = node.value[-1]
        return _end(text, *last) if isinstance(last, tuple) else _end(text, None, last)
    start, end = int(node.start_mark.index), int(node.end_mark.index)
    if start == end and key is not None:  # its mark is that of what follows
        return text.index(":", int(key.end_mark.index)) + 1
    return start + len(text[start:end].rstrip())
