"""Processes with a limit of time and memory."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

GB = 2**30


class Limited:
    """A process, ended with all its children when it breaks a limit."""

    def __init__(
        self, command: Sequence[str], root: Path, environment: Mapping[str, str],
        memory: int = 2 * GB, **options,
    ) -> None:  # fmt: skip
        self.process = subprocess.Popen(
            [sys.executable, *command], cwd=root, env=environment, start_new_session=True, **options
        )
        self.memory = memory
        self.deadline = float("inf")
        self.broken = ""  # which limit
        threading.Thread(target=self._watch, daemon=True).start()

    def end(self) -> None:
        """Ends it and its children, if it is still there."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def _watch(self) -> None:
        while self.process.poll() is None:
            if time.monotonic() > self.deadline:
                self.broken = "hangs"
            try:
                top = psutil.Process(self.process.pid)
                used = max(each.memory_info().rss for each in (top, *top.children(recursive=True)))
            except psutil.NoSuchProcess:
                continue
            if used > self.memory:
                self.broken = f"takes {used / GB:.1f} GB"
            if self.broken:
                self.end()
                return
            time.sleep(0.05)
