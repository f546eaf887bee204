"""The runs that use a store: each holds a lock in it, which the system releases when it ends."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import time

from retrain.locks import locked

_KILLED_SECONDS = 7 * 86400.0


@dataclass(frozen=True)
class Runs:
    """The runs that use a store.

    Attributes:
        folder: The folder of their locks.
    """

    folder: Path

    @contextmanager
    def holding(self, run: str) -> Iterator[None]:
        """Protects what a run uses and makes from `retrain gc` while it lasts."""
        hold = self._hold(run)
        hold.parent.mkdir(parents=True, exist_ok=True)
        with locked(hold):
            try:
                yield
            finally:
                self._release(hold)

    def temporary(self, run: str) -> Path:
        """A folder for temporary files, which goes with the run that is `holding` the store."""
        folder = self._hold(run).with_suffix(".files")
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def killed(self) -> set[str]:
        """The runs that were killed, until they are forgotten."""
        killed = {hold.stem.rpartition("-")[0] for hold in self._free_holds()}
        return killed - {"dvc"}

    def forget_killed(self) -> None:
        """Removes what killed runs have left, except their scratch."""
        for hold in self._free_holds():
            self._release(hold)

    def oldest(self) -> float:
        """When the oldest run began that goes on, or was killed and not forgotten for a week.

        Returns:
            Seconds since the epoch; now if there is none.
        """
        began, killed = [time()], set(self._free_holds())
        for hold in self.folder.glob("*.lock"):
            with suppress(FileNotFoundError):  # it has ended
                start = hold.stat().st_mtime
                if hold not in killed or time() - start < _KILLED_SECONDS:
                    began.append(start)
        return min(began)

    def _free_holds(self) -> Iterator[Path]:
        """The locks of killed runs; each is held until the next is asked for."""
        from filelock import Timeout

        for hold in self.folder.glob("*.lock"):
            with suppress(Timeout), locked(hold, wait=False):
                yield hold

    def _release(self, hold: Path) -> None:
        """Removes the files of a run that has ended; the caller has its lock."""
        shutil.rmtree(hold.with_suffix(".files"), ignore_errors=True)
        hold.unlink(missing_ok=True)

    def _hold(self, run: str) -> Path:
        return self.folder / f"{run}-{os.getpid()}.lock"
