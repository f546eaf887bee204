"""What all commands share: the application, the groups of `retrain --help`, and an answer.

To add a command, write a typed function with a docstring under `@app.command(group=…)` in a module
that `retrain/cli/main.py` imports. Its parameters are the arguments and options, and the docstring
says what each is for, unless it is one of those below that several commands have. Heavy libraries
are imported inside the function.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import chdir, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Group, Parameter
from cyclopts.completion import CompletionContext

from retrain.errors import UsageError
from retrain.params import workload_names
from retrain.project import Project, find_project
from retrain.runs.console import with_local_times

TRAINING = Group.create_ordered("Train")
DECIDING = Group.create_ordered("Decide")
USING = Group.create_ordered("Use")
IMPROVING = Group.create_ordered("Improve")
LOOKING = Group.create_ordered("Look")
KEEPING = Group.create_ordered("Keep")
SERVING = Group.create_ordered("Servers")
OPTIONS = Group.create_ordered("Options")
EVERYWHERE = Group.create_ordered("Options of every command")

app = App(
    name="retrain",
    help="Keep an image classifier trained.",
    help_format="markdown",
    help_formatter="plain",
    version=lambda: version("retrain"),
    default_parameter=Parameter(
        negative=(), show_default=lambda value: None if value in (False, "", ()) else value
    ),
    group_parameters=OPTIONS,
    group_commands=EVERYWHERE,
)
app.register_install_completion_command()
app.meta.group_parameters = EVERYWHERE

UNKNOWN = "not recorded"

# A command that has a parameter `project: Clone`, or `to_json: ToJson`, is given it by `main`.
Clone = Annotated[Project, Parameter(parse=False)]
ToJson = Annotated[bool, Parameter(parse=False)]


def complete_workloads(_: CompletionContext | None = None) -> list[str]:
    """The entries of `params.yaml`, for the completion of a shell."""
    return workload_names(find_project().params)


def complete_names(_: CompletionContext | None = None) -> list[str]:
    """The workloads and the names of `--as` that were run here, for the completion of a shell."""
    from retrain.runs import records

    return records.names(find_project())


# Arguments that several commands have.
Workload = Annotated[str, Parameter(help="An entry of params.yaml.", completer=complete_workloads)]
Name = Annotated[
    str, Parameter(help="An entry of params.yaml, or a name of `--as`.", completer=complete_names)
]
Version = Annotated[
    str,
    Parameter(
        help="A version as NAME@NUMBER or NAME@ALIAS; NAME is its champion.",
        completer=complete_names,
    ),
]


@dataclass(frozen=True)
class Answer:
    """What a command answers.

    Attributes:
        document: What `--json` prints: JSON-able values, or a dataclass of them, or a list of such.
        show: Shows it to a person; None if the command has done so already.
        failed: Whether what was asked for did not succeed.
    """

    document: Any
    show: Callable[[], object] | None = None
    failed: bool = False


_started_in: ContextVar[Path] = ContextVar("started_in")


@contextmanager
def in_folder_of(project: Project) -> Iterator[None]:
    """Works in the project's folder for the block, as flows do; see `place`."""
    token = _started_in.set(Path.cwd())
    try:
        with chdir(project.root):
            yield
    finally:
        _started_in.reset(token)


def place(text: str) -> str:
    """A path as the user means it, who may be in another folder than the project's; or a URL."""
    if "://" in text:
        return text
    return str(_started_in.get(Path.cwd()) / Path(text).expanduser())


def confirmed(question: str, to_json: bool) -> bool:
    """Asks a person whether something is to be done.

    Raises:
        UsageError: There is nobody to ask.
    """
    from rich.prompt import Confirm

    if to_json or not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("Nobody can be asked here: add --yes, or look first with --dry-run.")
    return Confirm.ask(question, default=False)


def format_value(value: Any) -> str:
    """A value of a document for a person, in one line."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {format_value(part)}" for name, part in value.items()) or UNKNOWN
    if isinstance(value, list | tuple):
        return " ".join(map(format_value, value)) or "none"
    if isinstance(value, float):
        return f"{value:.4g}"
    return UNKNOWN if value is None else with_local_times(str(value))
