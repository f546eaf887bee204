"""Creates the database of Prefect or MLflow if necessary, then runs a module as `python -m` does.

    python -m retrain.servers.with_database prefect uvicorn --port 4200

Both servers would create it themselves, and leave a part of it if they are killed meanwhile. In
the server's own process, the tool is imported only once.
"""

import asyncio
import gc
import runpy
import sys
from pathlib import Path

from retrain import databases, tracking
from retrain.project import find_project

PREFECT_TABLES = ("block_type", "deployment", "flow", "flow_run", "variable", "work_pool")


def main() -> None:
    """Creates the database that the first argument names, and runs the module that follows."""
    gc.set_threshold(50_000)  # a sixth of the time of its start goes into looking for garbage
    _, tool, *command = sys.argv
    if tool == "prefect":
        create_prefect_database()
    else:
        tracking.client(find_project())
    sys.argv[:] = command
    runpy.run_module(command[0], run_name="__main__", alter_sys=True)


def create_prefect_database() -> None:
    """Creates the SQLite database that Prefect's settings name; another kind is left to Prefect."""
    from prefect.settings import get_current_settings
    from sqlalchemy.engine import make_url

    setting = get_current_settings().server.database.connection_url
    url = make_url(setting.get_secret_value()) if setting else None
    if url and url.get_backend_name() == "sqlite" and url.database and not url.query:
        with databases.created(Path(url.database), PREFECT_TABLES, _migrate):
            pass


def _migrate(path: Path) -> None:
    from prefect.server.database import provide_database_interface
    from prefect.server.database.configurations import AioSqliteConfiguration
    from prefect.server.database.dependencies import temporary_database_config

    other = AioSqliteConfiguration(connection_url=f"sqlite+aiosqlite:///{path}")
    with temporary_database_config(other):
        asyncio.run(provide_database_interface().create_db())


if __name__ == "__main__":
    main()
