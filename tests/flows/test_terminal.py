"""The command line as a person sees it, in a terminal, after a first run."""

import fcntl
import os
import pty
import re
import select
import subprocess
import sys
import termios
from contextlib import suppress
from pathlib import Path
from time import time

from tests.flows.conftest import RETRAIN

COLUMNS = 80
ESCAPE = re.compile(r"\x1b\[[?0-9;]*[A-Za-z]")
COLOUR = re.compile(r"\x1b\[[0-9;]*(3[0-8]|9[0-7])[0-9;]*m")
TABLES = """
from retrain.cli.main import main

for command in ("status", "history", "lineage"):
    assert main([command, "vit"]) == 0
"""


class Terminal:
    """A command that runs in a terminal."""

    def __init__(self, clone, *command, columns=COLUMNS, **more):
        self.screen, shown = pty.openpty()
        self.process = subprocess.Popen(
            command,
            cwd=clone.root,
            env=clone.environment | {"TERM": "xterm-256color", "COLUMNS": str(columns)} | more,
            stdin=shown,
            stdout=shown,
            stderr=shown,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # for Ctrl-C
        )
        os.close(shown)
        self.text = ""

    def type(self, keys):
        """Types keys."""
        os.write(self.screen, keys.encode())

    def read_until(self, text):
        """Reads until a text has appeared on the screen, or to the end if it is None."""
        with suppress(OSError):  # the command has ended
            while text is None or text not in self.text:
                assert select.select([self.screen], [], [], 60)[0], self.text
                self.text += os.read(self.screen, 65536).decode()
        return self.text

    def end(self, code=0):
        """Waits for the end of the command; returns what it has shown."""
        text = self.read_until(None)
        assert self.process.wait(60) == code, text
        os.close(self.screen)
        return text


def test_tables_fit_the_terminal_and_are_coloured_where_it_is_wanted(clone, first):
    shown = Terminal(clone, sys.executable, "-c", TABLES).end()
    assert "\x1b[" in shown
    assert max(len(ESCAPE.sub("", line).rstrip()) for line in shown.splitlines()) <= COLUMNS
    assert not COLOUR.search(Terminal(clone, *RETRAIN, "status", NO_COLOR="1").end())
    assert "\x1b" not in Terminal(clone, *RETRAIN, "status", TERM="dumb").end()
    assert "\x1b" not in clone.retrain("status").stdout


def test_gc_lists_and_asks_before_it_removes(clone, first):
    old = clone.root / ".retrain" / "logs" / "20250101-000000-train-vit.log"
    old.write_text("old")
    os.utime(old, (time() - 90 * 86400,) * 2)
    refused = clone.retrain("gc", code=2).stderr
    assert refused == (
        "retrain: Nobody can be asked here: add --yes, or look first with --dry-run.\n"
    )
    for keys, remains in (("\n", True), ("y\n", False)):
        terminal = Terminal(clone, *RETRAIN, "gc")
        shown = terminal.read_until("Remove them?")
        assert old.name in shown
        assert "\x1b[" in shown
        assert old.exists()
        terminal.type(keys)
        assert ("Nothing was removed." in terminal.end()) == remains
        assert old.exists() == remains


def test_the_report_opens_in_the_browser(clone, first, tmp_path):
    browser, opened = tmp_path / "browser", tmp_path / "opened"
    browser.write_text(f'#!/bin/sh\necho "$1" >> {opened}\n')
    browser.chmod(0o755)
    done = clone.run(*RETRAIN, "report", "vit", "--open", BROWSER=str(browser))
    page = Path(done.stdout.strip())
    assert opened.read_text().strip() == page.as_uri()
    assert page.stem == first["run"]
    assert clone.json("report", "vit", "--open")["report"] == str(page)
    assert opened.read_text().strip() == page.as_uri()  # not again
