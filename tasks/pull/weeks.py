"""Divides the test split by the week in which an image came.

That is the week of the first commit whose version of `data/` had the image's file, by the history
of `data.dvc` and by DVC's listings of these versions. Both are the same in every clone, and no
image is read. Of the images in a Parquet or tar file it is the week of the file.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import PurePath

import pyarrow as pa
import pyarrow.parquet as pq

from retrain.errors import UsageError
from retrain.project import Project
from retrain.step import DataVersion, Facts, Workspace, current_run, digest_of, step
from retrain.store import Artifact
from retrain.workload import Data, Workload
from tasks.data import image_table
from tasks.data.slices import FILE, WEEK, parse
from tasks.pull.dvc_source import DvcSource
from tasks.pull.history import committed_versions
from tasks.pull.step import find_source

WEEKS = 12  # the newest ones with a new version of the data; what came before is one slice
EARLIER, UNCOMMITTED, UNKNOWN = "earlier", "uncommitted", "unknown"
SPLIT = "test"


@dataclass(frozen=True)
class History:
    """The versions of the data, up to the one of a run.

    Attributes:
        source: Where the data is.
        versions: By the name of each week, in order: the last version of that week. Before them is
            the last version of the weeks that are `EARLIER`, if there are any.
        current: The version of the run.
    """

    step = "history"  # its name as an input
    source: DvcSource
    versions: tuple[tuple[str, str], ...]
    current: str

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the versions."""
        return digest_of([self.versions, self.current])


def has_weeks(workload: Workload) -> bool:
    """Whether a workload asks for the weeks in which the test images came."""
    rules = workload.gate
    named = [parsed[0] for name in (*rules.min, *rules.no_worse) if (parsed := parse(name))]
    return WEEK in (*rules.slices, *named)


def slice_by_week(version: DataVersion, checked: Artifact) -> Iterator[Artifact]:
    """Divides the test split by the weeks in which the images came, if a workload asks for it.

    Raises:
        UsageError: The data is not under DVC, or this is no git repository with all commits.
    """
    run = current_run()
    if has_weeks(run.workload):
        yield slice_week(find_history(run.workload.data, run.project, version), checked)


def find_history(data: Data, project: Project, version: DataVersion) -> History:
    """Finds the versions that the data has had; nothing is fetched.

    Raises:
        UsageError: The data is not under DVC, or this is no git repository with all commits.
    """
    source = find_source(data, project, version.revision)
    if not isinstance(source, DvcSource):
        raise UsageError(
            f"gate.slices: {WEEK} is when an image came, by the history of data.dvc; data.path "
            f"{data.path} is not under DVC. Put it into data/, or leave {WEEK} out."
        )
    last: dict[str, str] = {}
    for commit, time in committed_versions(project, version.revision):
        name = week_of(time)
        if name not in last:
            with suppress(UsageError):  # data.dvc was away for a while
                last[name] = DvcSource(project, PurePath(), commit).digest()
        if len(last) > WEEKS:
            break
    weeks = sorted(last)
    names = [EARLIER if week not in weeks[-WEEKS:] else week for week in weeks]
    return History(
        source, tuple(zip(names, map(last.__getitem__, weeks), strict=True)), version.digest
    )


def week_of(time: datetime) -> str:
    """The name of a week, by ISO 8601 and in UTC: `2026-W48`."""
    return f"{time.astimezone(UTC):%G-W%V}"


@step(
    inputs=("history", "validate"),
    reads=("data.path",),
    libraries=("pyarrow",),
    hours=2,
    needed=has_weeks,
    has_stage=False,
)
def slice_week(data: Data, history: History, validated: Artifact, workspace: Workspace) -> Facts:
    """Divides the test split by the week in which an image came.

    Writes `slices.parquet`, as the step `slice` does. An image that no commit has yet is
    `UNCOMMITTED`, and one in an archive `UNKNOWN`.

    Returns:
        `limits`: none.

    Raises:
        OSError: DVC's remote does not give the listing of an earlier version.
    """
    names, versions = zip(*history.versions, strict=True) if history.versions else ((), ())
    *earlier, current = history.source.listings([*versions, history.current])
    table = pa.concat_tables(image_table.read_split(validated.folder, SPLIT, ["sha256", "file"]))
    files = history.source.below(current, history.current)
    came = first_of(names, [{*md5s.values()} for md5s in earlier])
    week_of_file = {name: came.get(md5, UNCOMMITTED) for name, md5 in files.items()}
    weeks = [week_of_file.get(name, UNKNOWN) for name in table["file"].to_pylist()]
    column = pa.array(weeks, pa.string())
    pq.write_table(table.select(["sha256"]).append_column(WEEK, column), workspace.folder / FILE)
    return {"limits": {}}


def first_of(names: Sequence[str], contents: Sequence[set[str]]) -> dict[str, str]:
    """For each content, the name of the first set that has it."""
    first: dict[str, str] = {}
    for name, content in zip(names, contents, strict=True):
        for md5 in content:
            first.setdefault(md5, name)
    return first
