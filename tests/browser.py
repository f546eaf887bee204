"""Opens a page in a headless Chromium without a network, and says what went wrong there."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from websockets.sync.client import ClientConnection, connect

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
SECONDS = 30.0


@dataclass
class Tab:
    """An open page.

    Attributes:
        faults: Requests that were made beyond the page, errors of the page and of its console.
    """

    socket: ClientConnection
    faults: list[str] = field(default_factory=list)
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
        method, values = message.get("method"), message.get("params", {})
        if method == "Network.requestWillBeSent":
            url = values["request"]["url"]
            if not url.startswith(("file:", "data:")):
                self.faults.append(f"request to {url}")
        elif method == "Network.loadingFailed":
            self.faults.append(values["errorText"])
        elif method == "Runtime.exceptionThrown":
            self.faults.append(str(values["exceptionDetails"]))
        elif method == "Log.entryAdded" and values["entry"]["level"] in ("error", "warning"):
            self.faults.append(values["entry"]["text"])
        return message


@contextmanager
def opened(folder: Path) -> Iterator[Tab]:
    """A tab of a browser of its own, offline.

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
            for domain in ("Page", "Network", "Runtime", "Log"):
                tab.call(f"{domain}.enable")
            tab.call(
                "Network.emulateNetworkConditions",
                offline=True, latency=0, downloadThroughput=0, uploadThroughput=0,
            )  # fmt: skip
            yield tab
    finally:
        process.kill()
        process.wait()
