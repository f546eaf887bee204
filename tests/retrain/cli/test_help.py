"""What `retrain` and `--help` show, and what the completion of a shell offers."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from retrain.cli.command import app
from retrain.cli.main import main

PARAMS = """\
workloads:
  toy: {data: {path: data/toy}, model: {family: vit}}
  ours: {data: {path: data/ours}, model: {family: vit}}
"""
COMMANDS = [name for name in app if not name.startswith("-") and app[name].show]


@pytest.fixture(autouse=True)
def clone(tmp_path, monkeypatch):
    """A project with one workload, in a terminal of 80 columns."""
    (tmp_path / "params.yaml").write_text(PARAMS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path


def shown(capsys, *arguments):
    assert main(arguments) == 0
    return capsys.readouterr().out


def test_each_command_has_one_line_of_at_most_80_characters(capsys):
    text = shown(capsys)
    assert text == shown(capsys, "--help")
    assert len(COMMANDS) <= 24
    for command in COMMANDS:
        [line] = [line for line in text.splitlines() if line.startswith(f"  {command}: ")]
        assert line.rstrip().endswith(".")
    assert max(map(len, text.splitlines())) <= 80
    assert re.fullmatch(r"\d+\.\d+.*\n", shown(capsys, "--version"))


@pytest.mark.parametrize("command", COMMANDS)
def test_the_examples_in_the_help_of_a_command_can_be_called(capsys, command):
    assert shown(capsys, command, "--help").startswith(f"Usage: retrain {command}")
    examples = re.findall(rf"`(retrain {command}.*?)`", app[command].help, re.DOTALL)
    if command not in ("up", "down"):
        assert examples
    for example in examples:
        words = shlex.split(example.replace("vit", "toy"))[1:]
        app.parse_args(words, exit_on_error=False, print_error=False)  # it raises, if one is wrong


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("retrain stat", {"status"}),
        ("retrain train ''", {"toy", "ours"}),
        ("retrain rollback t", {"toy"}),
        ("retrain train toy --refr", {"--refresh"}),
        ("retrain train toy --set train.lr", {"train.lr="}),
    ],
)
def test_bash_completes_commands_workloads_and_keys(clone, words, offered):
    """By the script that cyclopts installs."""
    script = clone / "completion.bash"
    script.write_text(app.generate_completion(shell="bash"), encoding="utf-8")
    program = (
        f'source {script}; retrain() {{ {sys.executable} -m retrain.cli "$@"; }}; '
        f"COMP_WORDS=({words}); COMP_CWORD={len(words.split()) - 1}; _retrain; "
        "printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    environment = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    done = subprocess.run(
        ["bash", "-c", program], cwd=clone, env=environment, capture_output=True, text=True
    )
    assert (done.stderr, {*done.stdout.split()}) == ("", offered)
