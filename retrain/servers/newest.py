"""Takes the newest commit of the team's branch before a run that nobody has started by hand.

    python -m retrain.servers.newest

Each run of a deployment calls it in a process of its own before any code is loaded
(`retrain/servers/deployments.py`), so that the code, the data and the commit that the run is
recorded with are of one version. It goes forward only, and only where nothing can be lost or change
under somebody: without local changes, and while no other run goes on. Otherwise the run takes what
is here, and a line in the run's log says why.
"""

import os
import subprocess
from collections.abc import Mapping
from typing import TYPE_CHECKING
from uuid import UUID

from retrain.locks import locked
from retrain.project import Project, find_project
from retrain.store import Store

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun

TAG = "newest"  # of a run that was started by hand, or by a CI job, and takes the newest commit
REQUIREMENTS = "requirements.lock"
FETCH_SECONDS = 120.0
# Git asks nobody for a password, neither here nor through ssh, which would look for a terminal.
SILENT: Mapping[str, str] = {"GIT_TERMINAL_PROMPT": "0"}


def main() -> None:
    """Takes the newest commit, if the flow run that the environment names is to have it."""
    from prefect.client.orchestration import get_client
    from prefect.logging.configuration import setup_logging
    from prefect.logging.loggers import flow_run_logger

    project = find_project()
    with get_client(sync_client=True) as client:
        run = client.read_flow_run(UUID(os.environ["PREFECT__FLOW_RUN_ID"]))
    if not (project.schedule.newest and is_for_newest(run)):
        return
    if sentence := take_newest(project):
        setup_logging()
        flow_run_logger(run).info(sentence)  # sent when the process ends


def is_for_newest(run: "FlowRun") -> bool:
    """Whether a run takes the newest commit: it begins, and no person has started it."""
    by_event = run.created_by is not None and run.created_by.type == "AUTOMATION"
    return run.run_count == 0 and (run.auto_scheduled or by_event or TAG in run.tags)


def take_newest(project: Project) -> str | None:
    """Takes the commits that the upstream branch has and the clone lacks, if it may.

    Returns:
        A sentence that says what was done, or why it was not; None if there is nothing to take.
    """
    project.state.mkdir(parents=True, exist_ok=True)
    with locked(project.state / ".newest.lock"):
        try:
            upstream = project.git("rev-parse", "--abbrev-ref", "@{upstream}")
        except (ValueError, FileNotFoundError):  # no such branch, or no git: nothing is newer
            return None
        if not _fetch(project):
            return (
                f"{upstream} could not be fetched, so the run takes the commit that is here; git "
                "fetch says why."
            )
        return _forward(project, upstream)


def _fetch(project: Project) -> bool:
    """Whether the upstream branch could be fetched."""
    try:
        done = subprocess.run(
            ("git", "fetch", "--quiet"),
            cwd=project.root,
            env=os.environ | SILENT,
            capture_output=True,
            start_new_session=True,
            timeout=FETCH_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def _forward(project: Project, upstream: str) -> str | None:
    """Goes forward to a branch that was fetched; a sentence as for `take_newest`."""
    ahead, behind = map(
        int, project.git("rev-list", "--left-right", "--count", f"HEAD...{upstream}").split()
    )
    if not behind:
        return None
    commits = f"{behind:,} commit{'s' if behind > 1 else ''} of {upstream}"
    stays = f"{commits} not taken, and the run takes what is here:"
    changed = project.uncommitted()
    if changed:
        return f"{stays} {changed['files'][0]} differs from the commit."
    if ahead:
        return f"{stays} the clone has commits of its own. Bring them together: git pull."
    if Store(project.store).runs.go_on():
        return f"{stays} another run goes on, whose code must not change."
    before = project.git("rev-parse", "HEAD")
    try:
        project.git("merge", "--quiet", "--ff-only", upstream)
    except ValueError as error:  # such as a file that is not under git, in the place of a new one
        return f"{stays} {' '.join(str(error).split())}"
    taken = f"{commits} taken: {before[:8]} to {project.git('rev-parse', 'HEAD')[:8]}."
    if project.git("diff", "--name-only", before, "HEAD", "--", REQUIREMENTS):
        taken += f" {REQUIREMENTS} is another one, and the packages are as before: make setup."
    return taken


if __name__ == "__main__":
    main()
