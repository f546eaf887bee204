"""Opens a page in a headless Chromium."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from websockets.sync.client import ClientConnection, connect

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
SECONDS = 30.0


@dataclass
class Tab:
    """An open page."""

    socket: ClientConnection
    _number: int = 0

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Calls a method of the DevTools protocol."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        self.socket.send(json.dumps(message))
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    def open(self, file: Path) -> None:
        """Opens a file, and waits until it is loaded."""
        self.call("Page.navigate", url=file.as_uri())
        while self._next().get("method") != "Page.loadEventFired":
            pass

    def evaluate(self, code: str) -> Any:
        """The value of an expression of JavaScript; a promise is waited for."""
        result = self.call(
            "Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def _next(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(self.socket.recv(SECONDS))
        return message


@contextmanager
def opened(folder: Path) -> Iterator[Tab]:
    """A tab of a browser of its own.

    Args:
        folder: An empty one, for the browser's profile.
    """
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        pytest.skip("there is no Chromium here")
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0")
    process = subprocess.Popen(
        [program, *options, f"--user-data-dir={folder}", "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr
        line = next(line for line in process.stderr if "DevTools listening" in line)
        port = line.split(":")[2].split("/")[0]
        with urlopen(f"http://127.0.0.1:{port}/json/list", timeout=SECONDS) as answer:
            pages = [one for one in json.load(answer) if one["type"] == "page"]
        with connect(pages[0]["webSocketDebuggerUrl"], max_size=None) as socket:
            tab = Tab(socket)
            tab.call("Page.enable")
            yield tab
    finally:
        process.kill()
        process.wait()
