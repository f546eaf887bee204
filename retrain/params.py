"""Reads the workloads in `params.yaml`, and `--set`.

Unknown keys and wrong types are refused; the message names the place and what is allowed. Types are
not converted.
"""

import json
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from ruamel.yaml.error import MarkedYAMLError, YAMLError

from models import families
from retrain.errors import UsageError, did_you_mean, names_of, shorten, shown, validate
from retrain.hardware import Node, precision, threads
from retrain.project import Project, parse_yaml as parse_yaml
from retrain.servers import ray_cluster
from retrain.workload import Section, Workload

S = TypeVar("S", bound=Section)

# A workload's name: valid in MLflow, in Prefect and as a folder's name.
NAME = r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}"

# The value of an override that drops the parameter to its default. No parameter can be this, and
# it is valid in JSON.
DEFAULT = ""

SECTIONS = ("store", "workloads")  # of the file


@dataclass(frozen=True)
class ParamsEntry:
    """What a workload was read from, to read another of it with other values.

    Attributes:
        key: The key of the workload in `params.yaml`.
        name: The workload's name, which is the key unless it runs under another.
        tree: The entry, as the file has it.
        overrides: The values that replace the file's, by dotted name.
    """

    key: str
    name: str
    tree: Mapping[str, Any]
    overrides: Mapping[str, Any] = field(default_factory=dict)


def workload_names(params: Path) -> list[str]:
    """The names of the workloads of `params.yaml`."""
    return list(_read(params))


def load_workload(
    params: Path,
    name: str,
    overrides: Mapping[str, Any] | None = None,
    *,
    as_name: str | None = None,
) -> Workload:
    """Reads one workload. Nothing else is asked: see `resolve`.

    Args:
        params: The file `params.yaml`.
        name: An entry under its `workloads`.
        overrides: Values that replace the file's, by dotted name: `{"train.lr": 0.0005}`. An empty
            text drops a parameter or a section to its default: `{"model.layers": ""}`.
        as_name: Another name for the workload, with a production of its own; no entry of the file.

    Raises:
        UsageError: The file is missing or not YAML, or a name, a key or a value is wrong.
    """
    workloads, folder = _read(params), params.absolute().parent
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))  # a workload may name code in the project's folder
    if name not in workloads:
        raise UsageError(f"No workload {name!r} in {params.name}.{did_you_mean(name, workloads)}")
    check_name(name)
    if as_name is not None:
        check_name(as_name)
        if as_name in workloads:
            raise UsageError(
                f"--as {as_name}: {params.name} has a workload of that name, whose production this "
                "run would change. Choose another name."
            )
    return _make(ParamsEntry(name, as_name or name, workloads[name], overrides or {}))


def load_section(params: Path, name: str, kind: type[S]) -> S:
    """A section of a workload, without the rest; the defaults for an unknown name.

    Args:
        params: The file `params.yaml`.
        name: The name of the workload.
        kind: The section is named as this class, in small letters.

    Raises:
        UsageError: A key or a value is wrong.
    """
    section = kind.__name__.lower()
    tree = _read(params).get(name, {}).get(section) or {}
    return validate(kind, tree, name, (section,))


def vary(workload: Workload, values: Mapping[str, Any]) -> Workload:
    """A workload with other values, as `load_workload` would give it for the same file.

    Args:
        workload: A workload that `load_workload` has read.
        values: Further overrides, by dotted name.

    Raises:
        UsageError: A name or a value is wrong.
    """
    entry = params_entry(workload)
    return _make(replace(entry, overrides={**entry.overrides, **values}))


def params_entry(workload: Workload) -> ParamsEntry:
    """What `load_workload` read a workload from."""
    assert isinstance(workload._entry, ParamsEntry), workload.name
    return workload._entry


def _make(entry: ParamsEntry) -> Workload:
    """Makes the workload.

    Raises:
        UsageError: A name, a key or a value is wrong.
    """
    name, overrides = entry.key, entry.overrides
    tree: dict[str, Any] = deepcopy(dict(entry.tree))  # an alias of YAML may share a part of it
    for dotted, value in overrides.items():
        set_value(tree, dotted, deepcopy(value))
    if "name" in tree:
        raise UsageError(f"workload {name}: name: no such key; its key in params.yaml names it.")
    workload = validate(Workload, {"name": entry.name} | tree, name)
    family = workload.model.family
    if family not in families.FAMILIES:
        hint = did_you_mean(family, families.FAMILIES)
        raise UsageError(f"model.family: no {family!r} in models/.{hint}")
    settings = workload.model.model_dump(exclude={"family"})
    declared = validate(families.FAMILIES[family], settings, name, ("model",))
    names = {*names_of(Workload), *names_of(type(declared), ("model",))} - {"name"}
    for dotted, value in overrides.items():
        if value == DEFAULT and dotted not in names:  # to drop it would have no effect
            hint = did_you_mean(dotted, names)
            raise UsageError(f"workload {name}: {shorten(dotted)}: no such key.{hint}")
    if faults := [*workload.faults(), *declared.faults(workload.images.shape)]:
        raise UsageError(f"workload {name}: " + "\n".join(faults))
    workload._entry = entry
    return workload


def resolve(workload: Workload, project: Project) -> Workload:
    """Decides what a workload leaves open: `auto` precision and threads, the version of weights.

    A run does it once, before its first step. They change the bits of what is trained, so they are
    in the keys of the steps. The machines of a cluster are asked once
    (`retrain.servers.ray_cluster.nodes`); pretrained weights are read if they are in a folder, and
    else the Hugging Face hub is asked.

    Args:
        workload: A valid workload.
        project: The clone.

    Raises:
        ConnectionError: The cluster does not answer.
    """
    model, train = workload.model, workload.train
    evaluate, scale = workload.evaluate, workload.scale
    settings = model.model_dump(exclude={"family"})
    network = families.FAMILIES[model.family].model_validate(settings)
    with suppress(ValueError):  # the step `train` says it, before the run
        # The weights are part of what is trained, as the content of the data is.
        if version := network.find_version(project.root):
            model = model.model_copy(update={"pretrained_version": version})
    nodes: tuple[Node, ...] = ()
    if scale.workers and ray_cluster.is_remote():
        nodes = ray_cluster.nodes(project.state)
    of_trained_part = network.training_flops(workload.images.shape)
    of_network = network.flops(workload.images.shape)
    flops = of_trained_part * train.batch_size
    if train.precision == "auto":
        # Nobody knows whether a function follows another one.
        decided = "fp32" if train.function else precision(flops, scale.workers, nodes)
        train = train.model_copy(update={"precision": decided})
    if evaluate.precision == "auto":
        trains_all = of_trained_part == of_network
        follows = train.precision if trains_all else precision(of_network * evaluate.batch_size)
        evaluate = evaluate.model_copy(update={"precision": follows})
    count = threads(flops, scale.workers, scale.threads, nodes)
    scale = scale.model_copy(update={"threads": count})
    sections = (model, train, evaluate, scale)
    return workload.model_copy(update={type(each).__name__.lower(): each for each in sections})


def parse_override(text: str) -> tuple[str, Any]:
    """Parses one `--set` of the command line into the dotted name and the value.

    Args:
        text: `train.lr=1e-3`; the value is read as YAML 1.2, as in `params.yaml`. No value at all
            is the parameter's default: `train.lr=`.

    Raises:
        UsageError: There is no `=`, or the value is not YAML.
    """
    dotted, equals, value = text.partition("=")
    if not equals or not dotted:
        raise UsageError(
            f"--set {shown(text)}: write it as key=value, such as train.lr=1e-3, or as key= for "
            "the default."
        )
    if not value.strip():
        return dotted, DEFAULT
    try:
        return dotted, parse_yaml(value)
    except YAMLError as error:
        raise UsageError(
            f"--set {shown(text)}: the value is no YAML ({_problem(error)})."
        ) from None


# A look at all workloads asks for a section of each. Nobody changes what was read.
_parse_file = lru_cache(maxsize=2)(parse_yaml)


def as_yaml(value: Any) -> str:
    """A value on one line, as `params.yaml` and `--set` take it; a word is not put in quotes."""
    is_word = isinstance(value, str) and re.fullmatch(r"[A-Za-z][\w-]*", value)
    if is_word and parse_yaml(value) == value:
        return str(value)
    return json.dumps(value, ensure_ascii=False)


def _read(params: Path) -> dict[str, Any]:
    """The entries of the workloads of `params.yaml`, not checked yet."""
    try:
        tree = _parse_file(params.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"No file {params}.") from None
    except (UnicodeDecodeError, YAMLError) as error:
        raise UsageError(f"{params.name}: {_problem(error)}.") from None
    workloads = tree.get("workloads") if isinstance(tree, dict) else None
    if not isinstance(workloads, dict) or not all(isinstance(w, dict) for w in workloads.values()):
        raise UsageError(f"{params.name} needs `workloads:` with a mapping for each workload.")
    if unknown := sorted(map(str, tree.keys() - {*SECTIONS})):
        hint = did_you_mean(unknown[0], SECTIONS)
        raise UsageError(f"{params.name}: {unknown[0]}: no such key.{hint}")
    return {str(name): tree for name, tree in workloads.items()}


def _problem(error: Exception) -> str:
    """What is wrong with YAML, and where, without the parser's advice for programmers."""
    if not isinstance(error, MarkedYAMLError):
        return shorten(str(error), 200)
    line = f"line {error.problem_mark.line + 1}, " if error.problem_mark else ""
    return line + shorten(" ".join(filter(None, (error.context, error.problem))), 200)


def set_value(tree: dict[str, Any], dotted: str, value: Any) -> None:
    """Sets a value in a tree, or drops it."""
    *above, last = dotted.split(".")
    for name in above:
        tree = tree.setdefault(name, {})
        if not isinstance(tree, dict):
            raise UsageError(
                f"{shorten(dotted)}: {shorten(name)} is a value, it has nothing below it."
            )
    if value == DEFAULT:
        tree.pop(last, None)
    else:
        tree[last] = value


def check_name(name: str) -> None:
    """Refuses a workload's name that would fail later.

    It is used for folders, a model and an experiment in MLflow, and Prefect's artifacts.
    """
    if not re.fullmatch(NAME, name):
        raise UsageError(
            f"workload {name!r}: MLflow, Prefect and file systems do not all accept this name. Use "
            "at most 100 ASCII letters, digits, - and _; the first is a letter or digit."
        )
