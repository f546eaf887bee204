"""The commands about the project's servers: `up`, `down`."""

import argparse

from retrain.cli.command import Commands, print_json
from retrain.project import Project


def add_commands(commands: Commands) -> None:
    """Adds `up` and `down`."""
    commands.add("up", _up, "Start the Prefect server, a worker, the MLflow UI and Ray.")
    commands.add("down", _down, "Stop what `up` started.")


def _up(project: Project, options: argparse.Namespace) -> int:
    from retrain.servers import services

    before = services.running(project)
    now = services.up(project)
    if options.json:
        print_json([{"name": service.name, "url": service.url} for service in now])
        return 0
    for service in now:
        state = "runs already" if service in before else "started"
        print(f"{service.name:<8} {state:<13} {service.url or ''}")
    return 0


def _down(project: Project, options: argparse.Namespace) -> int:
    from retrain.servers import services

    stopped = services.down(project)
    if options.json:
        print_json(stopped)
    else:
        print("Stopped: " + ", ".join(stopped) if stopped else "Nothing was running.")
    return 0
