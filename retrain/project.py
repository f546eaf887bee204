"""The folders and files of a clone of the project."""

import hashlib
import json
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.events import CollectionEndEvent, CollectionStartEvent

from retrain.errors import UsageError, has_login
from retrain.file_io import sha256_of

PARAMS = "params.yaml"
REMOTE = "RETRAIN_STORE_REMOTE"  # wins over `store.remote` in the file; if empty, there is none
SCHEMES = ("s3", "gs", "file")
EXPERIMENTS = (".dvc", "tmp", "exps")  # the folder of DVC's copies
DEEPEST = 100  # levels of a text in YAML
CODE = Path(__file__).parent  # of this package, which runs


@dataclass(frozen=True)
class Project:
    """A clone of the project: its root, and the paths below it.

    Attributes:
        root: The folder that holds `params.yaml`, absolute.
    """

    root: Path

    @property
    def params(self) -> Path:
        """The workloads' parameters."""
        return self.root / PARAMS

    @cached_property
    def home(self) -> Path:
        """The root; in the copy of a clone in which DVC runs an experiment, that of the clone.

        `dvc exp run --temp` and `--queue` make such copies, below `.dvc/tmp/exps`. What git and DVC
        do not know is in the clone alone: the store, the registry, and data elsewhere.
        """
        copies = (each for each in self.root.parents if each.parts[-3:] == EXPERIMENTS)
        return next((each.parents[2] for each in copies), self.root)

    @property
    def state(self) -> Path:
        """The folder for the files of runs, except MLflow's; ignored by git and DVC."""
        return self.home / ".retrain"

    @property
    def store(self) -> Path:
        """The artifacts of the steps: `RETRAIN_STORE`, or a folder of the project."""
        return Path(os.environ.get("RETRAIN_STORE") or self.state / "store").absolute()

    @property
    def store_remote(self) -> str | None:
        """The URL of the object store behind the store; None if there is none.

        It is `RETRAIN_STORE_REMOTE`, or `store.remote` in `params.yaml`.

        Raises:
            UsageError: It is no such URL, or has a login.
        """
        place, url = REMOTE, os.environ.get(REMOTE)
        if url is None:
            text = self.params.read_text(encoding="utf-8") if self.params.exists() else ""
            store = _store_section(text)
            if not isinstance(store, dict) or store.keys() - {"remote"}:
                raise UsageError(f"{PARAMS}: store: it has one key, remote.")
            place, url = f"{PARAMS}: store.remote", store.get("remote")
        if not url:
            return None
        scheme, _, rest = str(url).partition("://")
        if scheme not in SCHEMES or not rest or has_login(str(url)):
            raise UsageError(
                f"{place}: write it as s3://bucket/prefix, gs://bucket/prefix or file:///folder, "
                "without a login: credentials belong into the environment (AWS_ACCESS_KEY_ID)."
            )
        return str(url).rstrip("/")

    @property
    def logs(self) -> Path:
        """One log file per run, with the output of the libraries."""
        return self.state / "logs"

    @property
    def tracking_uri(self) -> str:
        """MLflow's store: `MLFLOW_TRACKING_URI`, or the SQLite file that MLflow uses by default."""
        return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{self.home / 'mlflow.db'}"

    def relative(self, path: Path) -> str:
        """A path as it is shown: relative to the root, if it lies below it."""
        return str(path.relative_to(self.root) if path.is_relative_to(self.root) else path)

    def git(self, *arguments: str) -> str:
        """Runs git in the project.

        Returns:
            What it printed, stripped.

        Raises:
            ValueError: Git failed; the message is git's own.
            FileNotFoundError: Git is not installed.
        """
        try:
            process = subprocess.run(
                ["git", *arguments],
                cwd=self.root,
                capture_output=True,
                encoding="utf-8",
                errors="surrogateescape",  # the name of a file may be no UTF-8
            )
        except FileNotFoundError:
            raise FileNotFoundError("git is not installed here: install it.") from None
        if process.returncode:
            raise ValueError(f"git {' '.join(arguments)}: {process.stderr.strip()}")
        return process.stdout.strip()

    def is_in_git(self) -> bool:
        """Whether the project lies in a git repository; an unpacked archive does not."""
        return any((folder / ".git").exists() for folder in (self.root, *self.root.parents))

    def git_fault(self) -> str | None:
        """Why git does not tell the commit of a project that is in a repository; None if it does.

        So it is in a folder of another user, which git refuses as "dubious ownership".
        """
        try:
            if self.is_in_git():
                self.git("rev-parse", "HEAD")
        except (ValueError, FileNotFoundError) as error:
            reason = str(error).partition(": ")[2].partition("\n")[0] or error
            return (
                f"No commit is recorded, because git does not tell it ({reason}): git status says "
                "what to do."
            )
        return None

    @cached_property
    def commit(self) -> str | None:
        """The commit that is checked out, with `+dirty` behind it when files differ from it.

        None without git, and in a project that is in no git repository. It stays what it was when
        it was first asked for, before the steps of a run: what is edited meanwhile does not count.
        """
        try:
            is_changed = self.git("status", "--porcelain", "-uno")
            return self.git("rev-parse", "HEAD") + ("+dirty" if is_changed else "")
        except (ValueError, FileNotFoundError):
            return None

    @cached_property
    def uncommitted(self) -> dict[str, Any] | None:
        """What differs from the commit that is checked out: tracked files, and new ones with code.

        Returns:
            `files`, their names in order, and `sha256` (hex) over the names and the contents; None
            if there are none, without git, and outside a git repository. It stays what it was when
            it was first asked for.
        """
        listings = (
            ("diff", "HEAD", "--name-only", "--relative", "-z", "--", "."),
            ("ls-files", "--others", "--exclude-standard", "-z", "*.py"),
        )
        try:
            names = {
                name for listing in listings for name in self.git(*listing).split("\0") if name
            }
        except (ValueError, FileNotFoundError):
            return None
        if not names:
            return None
        paths = {name: self.root / name for name in sorted(names)}
        contents = {
            name: sha256_of(path) if path.is_file() else None for name, path in paths.items()
        }
        digest = hashlib.sha256(json.dumps(contents).encode()).hexdigest()
        return {"sha256": digest, "files": list(contents)}


@lru_cache(maxsize=2)
def _store_section(params: str) -> Any:
    """The section `store` of a text of parameters; what is no YAML is said where it is read."""
    with suppress(YAMLError, AttributeError):
        return parse_yaml(params).get("store") or {}
    return {}


def parse_yaml(text: str) -> Any:
    """Reads YAML 1.2, as DVC does for the same file: 1e-3 is a number and `no` is a string.

    Raises:
        YAMLError: The text is not YAML, or is nested so deep that to read it would end the process.
    """
    yaml, depth = YAML(typ="safe"), 0  # in C: the text of 200 workloads takes 0.2 s, not 3 s
    for event in yaml.parse(text):
        depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
        if depth > DEEPEST:
            raise YAMLError(f"it is nested more than {DEEPEST} deep")
    try:
        return yaml.load(text)
    except ValueError as error:  # a value may look like a date or a number
        raise YAMLError(str(error).partition(";")[0]) from None


def find_project(start: Path | None = None) -> Project:
    """Finds the project that a folder lies in.

    Args:
        start: The folder to start from; the working directory when None.

    Raises:
        UsageError: Neither the folder nor one above it holds `params.yaml`; or the project has code
            of its own, and another clone's runs.
    """
    start = (start or Path.cwd()).absolute()
    for folder in (start, *start.parents):
        if (folder / PARAMS).is_file():
            _check_code(folder)
            return Project(folder)
    raise UsageError(f"No {PARAMS} in {start} or above it: run this inside a clone of the project.")


def _check_code(root: Path) -> None:
    """Refuses a project whose commit is not that of the code that runs, as in a git worktree.

    Raises:
        UsageError: The project has code of its own.
    """
    own = root / CODE.name
    if own.is_dir() and not own.samefile(CODE):
        raise UsageError(
            f"The code of {CODE.parent} runs here, and the commit of {root} would be recorded. "
            f"Run the code that is here: cd {root}; {sys.executable} -m retrain.cli …"
        )
