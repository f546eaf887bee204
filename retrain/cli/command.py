"""What all commands share: the application, the groups of `retrain --help`, and an answer.

To add a command, write a typed function with a docstring under `@app.command(group=…)` in a module
that `retrain/cli/main.py` imports. Its parameters are the arguments and options, and the docstring
says what each is for, unless it is one of those below that several commands have. Heavy libraries
are imported inside the function.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Group, Parameter

from retrain.project import Project

app = App(
    name="retrain",
    help="Keep an image classifier trained.",
    help_format="markdown",
    version=lambda: version("retrain"),
    default_parameter=Parameter(negative=()),
)
app.register_install_completion_command()

TRAINING = Group.create_ordered("Training")
MODELS = Group.create_ordered("Models and images")
REGISTRY = Group.create_ordered("What is in production")
MACHINE = Group.create_ordered("Store and servers")

UNKNOWN = "not recorded"

# A command that has a parameter `project: Clone`, or `to_json: ToJson`, is given it by `main`.
Clone = Annotated[Project, Parameter(parse=False)]
ToJson = Annotated[bool, Parameter(parse=False)]


# Arguments that several commands have.
Workload = Annotated[str, Parameter(help="An entry of params.yaml.")]
Name = Annotated[str, Parameter(help="An entry of params.yaml, or a name of `--as`.")]
Version = Annotated[
    str, Parameter(help="A version as NAME@NUMBER or NAME@ALIAS; NAME is its champion.")
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


def place(text: str) -> str:
    """A path or URL as it is meant here: a flow runs in the project's folder, and stores it."""
    return text if "://" in text else str(Path.cwd() / text)


def in_words(value: Any) -> str:
    """A value of a document for a person, in one line."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {in_words(part)}" for name, part in value.items()) or UNKNOWN
    if isinstance(value, list | tuple):
        return " ".join(map(in_words, value)) or "none"
    if isinstance(value, float):
        return f"{value:.4g}"
    return UNKNOWN if value is None else str(value)
