"""What all commands share: how a command is added, and how its JSON is printed."""

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from retrain.errors import UsageError
from retrain.project import Project


class Parser(argparse.ArgumentParser):
    """A parser that leaves its errors to `main`, like those of the commands."""

    def error(self, message: str) -> NoReturn:
        """Refuses the arguments.

        Raises:
            UsageError: Always.
        """
        raise UsageError(f"{message} (see: {self.prog} --help)")


@dataclass(frozen=True)
class Commands:
    """The commands of the command line.

    Attributes:
        parsers: What `argparse.ArgumentParser.add_subparsers` gave.
    """

    parsers: Any

    def add(
        self,
        name: str,
        function: Callable[[Project, argparse.Namespace], int],
        help_: str,
        *,
        workload: bool = False,
    ) -> argparse.ArgumentParser:
        """Adds a command.

        Args:
            name: What the user types.
            function: Runs the command; returns the exit code.
            help_: What the command does, in one sentence.
            workload: Whether it takes the name of a workload.

        Returns:
            The command's parser, for its own options.
        """
        parser: argparse.ArgumentParser = self.parsers.add_parser(
            name, help=help_, description=help_, allow_abbrev=False
        )
        parser.set_defaults(command=function)
        parser.add_argument("--json", action="store_true", help="print one JSON document")
        parser.add_argument(
            "--debug",
            action="store_true",
            default=argparse.SUPPRESS,
            help="show the traceback of an error",
        )
        if workload:
            parser.add_argument("workload", help="an entry of params.yaml")
        return parser


def print_json(value: Any) -> None:
    """Prints the one JSON document of a command."""
    print(json.dumps(value, indent=1))
