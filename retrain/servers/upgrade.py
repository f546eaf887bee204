"""Migrates the clone's databases that earlier releases of MLflow and Prefect have made.

    python -m retrain.servers.upgrade

A copy of each stays as it was. `make upgrade` calls it.
"""

import sys

from retrain.project import find_project
from retrain.servers import databases, services


def main() -> None:
    """Migrates the databases of the clone, and says which."""
    project = find_project()
    if services.running(project):
        sys.exit("The servers use the databases: make down, and then again.")
    for tool, path, to_newest in (
        ("mlflow", databases.of_mlflow(project), databases.migrate_mlflow),
        ("prefect", databases.of_prefect(project), databases.migrate_prefect),
    ):
        if path and (kept := databases.migrate(path, tool, to_newest)):
            print(f"{path} is migrated to this {tool}, and {kept.name} is as it was.")


if __name__ == "__main__":
    main()
