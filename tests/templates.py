"""What is made once for all processes of a test run, and copied where a test needs it.

Creating the databases of Prefect and MLflow takes seconds of arithmetic. That they are created
rightly is shown by `tests/retrain/servers/test_databases.py`.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from retrain.project import Project
from retrain.registry import tracking
from retrain.servers import databases

# The processes of one run of pytest-xdist inherit it from the process that starts them.
_VARIABLE = "RETRAIN_TEST_TEMPLATES"
if _VARIABLE not in os.environ:
    os.environ[_VARIABLE] = tempfile.mkdtemp(prefix="retrain-tests-")
FOLDER = Path(os.environ[_VARIABLE])


def once(name: str, make: Callable[[Path], None]) -> Path:
    """Makes a folder, if no process of this test run has made it yet.

    Args:
        name: Of the folder.
        make: Fills the empty folder of a path.
    """
    folder = FOLDER / name
    with FileLock(f"{folder}.lock"):
        if not (done := folder.with_suffix(".done")).exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            done.touch()
    return folder


def place_mlflow_database(root: Path) -> None:
    """Gives a project MLflow's database, as its first run would create it."""
    shutil.copy(once("mlflow", _make_mlflow_database) / "mlflow.db", root / "mlflow.db")


def place_prefect_database(root: Path, name: str = ".retrain/prefect/prefect.db") -> None:
    """Gives a project Prefect's database, as its first run would create it."""
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(once("prefect", _make_prefect_database) / "prefect.db", root / name)


def copy_working_tree(root: Path) -> Path:
    """Copies what is in git here, or would be, to a folder that becomes a repository of its own."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (source := Path(__file__).parents[1] / name).is_file():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, root / name)
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    return root


def copy_project(original: Path, root: Path) -> None:
    """Copies a project that nothing uses, over an empty one; its MLflow names the copy's folders.

    Args:
        original: The root of the project.
        root: That of the copy.
    """
    from mlflow.tracking._tracking_service import utils

    shutil.copytree(original, root, symlinks=True, dirs_exist_ok=True)
    if kept := databases.mend_moved(root):
        kept.unlink()
    utils._artifact_repos_cache.clear()  # MLflow remembers the folder of a run, by its id alone


def _make_mlflow_database(folder: Path) -> None:
    tracking.client(Project(folder))


def _make_prefect_database(folder: Path) -> None:
    databases.create_prefect(folder / "prefect.db")
