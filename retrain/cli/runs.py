"""The command about the last run: `why`."""

import argparse

from flows import pipelines
from retrain.cli.command import Commands, print_json
from retrain.project import Project


def add_commands(commands: Commands) -> None:
    """Adds `why`."""
    help_ = "Show why each step of the last run ran or was cached."
    parser = commands.add("why", _why, help_, workload=True)
    parser.add_argument("--flow", choices=pipelines(), help="the last run of this flow")


def _why(project: Project, options: argparse.Namespace) -> int:
    from retrain.runs import console, records

    records.check_name(project, options.workload)
    last = records.last_run(project, options.workload, options.flow)
    if last is None:
        flow = options.flow or "train"
        raise ValueError(
            f"{options.workload} has not been run here yet: retrain {flow} {options.workload}"
        )
    if options.json:
        print_json(last["steps"])
    else:
        console.print_steps(last)
    return 0
