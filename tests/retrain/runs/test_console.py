import os
import pty
import shutil
import subprocess
import sys
import time
from contextlib import chdir
from pathlib import Path

import pytest

from retrain.runs import console

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("pause", [0.0, 100.0])
def test_progress_is_a_line_now_and_then_where_there_is_no_terminal(monkeypatch, caplog, pause):
    monkeypatch.setattr(console, "PLAIN_LINE_SECONDS", pause)
    caplog.set_level("INFO", "retrain")
    with console.counted("validate", 12_000) as show:
        show(3_000)
        show(9_000)
    with console.progress("pull"):
        with console.counted("checking", 2_500_000, "bytes") as show:
            show(1_000_000)
        with console.counted("downloading", None, "bytes") as show:
            show(1_000_000)
        with console.progress("pull") as update:
            update(None, "unpacking")
    starts = (
        "validate  3,000 of 12,000",
        "validate  12,000 of 12,000",
        "pull  checking  1.0 MB of 2.5 MB",
        "pull  downloading  1.0 MB",
        "pull  unpacking",
    )
    assert len(caplog.messages) == (0 if pause else len(starts))
    for line, start in zip(caplog.messages, starts, strict=False):
        assert line.startswith(start)


# Every way in which a library talks, while a display is live.
NOISE = """
import logging, os, subprocess, sys
from pathlib import Path
from time import sleep
from retrain.runs import console

def noise(text):
    print(text + " by print")
    print(text + " by stderr", file=sys.stderr)
    logging.getLogger("library").warning(text + " by logging")
    os.write(1, (text + " by C").encode() + b"\\n")
    subprocess.run(["echo", text + " by a child"])

console.prepare()
with console.on_screen(Path("run.log"), to_stderr=False):
    noise("noise0")
    with console.progress("train"):
        noise("noise1")
        with console.progress("train") as update:
            update(0.5, "epoch 1/2")
            sleep(0.5)  # the display is drawn ten times a second
            noise("noise2")
        noise("noise3")
    for number in range(LINES):
        console.say_step("train", False, f"line {number}", 1.0)
sys.exit(3)
"""
WAYS = ("print", "stderr", "logging", "C", "a child")


def noise(lines: int = 1) -> str:
    return NOISE.replace("LINES", str(lines))


def on_terminal(program, folder):
    """Runs a program on a terminal; returns its exit code and all that the terminal got."""
    got = []

    def read(terminal):
        got.append(os.read(terminal, 65536))
        return got[-1]

    command = ["env", "TERM=xterm", f"PYTHONPATH={ROOT}", sys.executable, "-c", program]
    with chdir(folder):
        status = pty.spawn(command, read)
    return os.waitstatus_to_exitcode(status), b"".join(got).decode()


def test_what_libraries_print_goes_to_the_log_and_never_to_the_terminal(tmp_path):
    shutil.copy(ROOT / "prefect.toml", tmp_path)
    code, got = on_terminal("from prefect import flow" + noise(), tmp_path)
    assert code == 3
    assert "line 0" in got
    assert "epoch 1/2" in got
    assert "noise" not in got
    log = (tmp_path / "run.log").read_text()
    for number in range(4):
        for way in WAYS:
            assert f"noise{number} by {way}" in log
    assert "line 0" in log
    assert "\x1b" not in log  # no colours, although Prefect has seen a terminal


PARTS = """
from pathlib import Path
from time import sleep
from retrain.runs import console

console.prepare()
with console.on_screen(Path("run.log"), to_stderr=False), console.progress("pull"):
    for unit in ("images", "bytes"):
        with console.counted(f"counting {unit}", 100, unit) as show:
            for _ in range(10):
                sleep(0.06)
                show(10)
    console.say_step("pull", False, "first run", 1.0)
"""


def test_a_bar_on_a_terminal_has_one_line_for_the_parts_of_a_step(tmp_path):
    code, got = on_terminal(PARTS, tmp_path)
    assert code == 0
    assert "first run" in got
    for part in ("counting images", "counting bytes"):
        assert part in got
    assert got.count("\x1b[1A") == 1  # one line is taken away, at the end


TALKS_ON = """
import sys
from pathlib import Path
from retrain.runs import console
console.prepare()
for number in range(20_000):
    print("a line", number)
Path("run.log").write_text("line 4999")
sys.exit(3)
"""


@pytest.mark.parametrize("program", [noise(5000), TALKS_ON], ids=["of a run", "of a command"])
def test_a_reader_that_ends_does_not_end_the_program(tmp_path, program):
    with subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 3
    assert "line 4999" in (tmp_path / "run.log").read_text()


FULL_LOG = """
from pathlib import Path
from retrain.runs import console
console.prepare()
with console.on_screen(Path("/dev/full"), to_stderr=True):
    print("for the log")
print("the result")
"""


def test_a_log_on_a_full_disk_keeps_no_run_from_its_result():
    done = subprocess.run([sys.executable, "-c", FULL_LOG], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "the result\n", "")


def test_a_table_shows_what_a_person_wrote_and_no_column_without_a_value(capsys):
    console.print_table(("reason", "who"), [("[b]wrong[/b] [at night]", None)])
    shown = capsys.readouterr().out
    assert "[b]wrong[/b] [at night]" in shown
    assert "who" not in shown


def test_a_person_reads_the_times_of_this_machine(monkeypatch):
    text = "from run 1 of 2026-07-01T23:30:05+00:00, not 2026-07-01T23:30:05+02:00"
    expected = "from run 1 of 2026-07-02 01:30 CEST, not 2026-07-01T23:30:05+02:00"
    with monkeypatch.context() as in_berlin:
        in_berlin.setenv("TZ", "Europe/Berlin")
        time.tzset()
        assert console.with_local_times(text) == expected
    time.tzset()


OTHER_LOCALE = r"""
import locale
from pathlib import Path
from retrain import file_io
from retrain.runs import console
console.prepare()
assert locale.getpreferredencoding(False) != "UTF-8", "the test needs another locale"
file_io.write_text(Path("file"), "\u00b5")
print(Path("file").read_bytes(), "\u00b5")
"""


def test_the_locale_does_not_matter(tmp_path):
    environment = {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", OTHER_LOCALE],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
    )
    assert done.stdout.decode() == "b'\\xc2\\xb5' \u00b5\n", done.stderr


def test_lines_end_between_words_and_a_path_stays_whole():
    path = "a/long/path/of/which/nobody/wants/two/halves"
    text = console.wrapped(f"Read {path} first.\nThen go on with that.", "  ", width=20)
    assert text.split("\n") == ["Read", f"  {path}", "  first.", "Then go on with", "  that."]
    assert console.wrapped(f"Read {path} first.") == f"Read {path} first."  # no terminal
