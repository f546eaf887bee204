"""What `retrain` and `--help` show, a shell completes, and a command says that does not succeed."""

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from retrain.cli.command import app, place
from retrain.cli.main import main

ROOT = Path(__file__).parents[3]
PARAMS = """\
workloads:
  toy: {data: {path: data/toy}, model: {family: vit}}
  ours: {data: {path: data/ours}, model: {family: vit}}
"""
COMMANDS = [name for name in app if not name.startswith("-") and app[name].show]


@pytest.fixture(autouse=True)
def clone(tmp_path, monkeypatch):
    """A project with two workloads, which have never been run, in a terminal of 80 columns."""
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
    assert examples or command in ("up", "down")
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


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["train"], 2, "Which workload is to be trained?"),
        (["trian", "toy"], 2, 'Did you mean "train"?'),
        (["train", "toy", "--epochs", "3"], 2, "Unknown option: --epochs."),
        (["train", "toy", "--refres"], 2, "Did you mean --refresh?"),
        (["train", "toy", "more"], 2, "Unused Tokens: ['more']."),
        (["rollback", "toy"], 2, "--reason requires an argument."),
        (["gc", "--days", "few"], 2, 'unable to convert "few" into int.'),
        (["train", "tyo"], 2, "Did you mean 'toy'?"),
        (["train", "toy", "--set", "train.epoch=3"], 2, "Did you mean 'train.epochs'?"),
        (["train", "toy"], 2, "There is no data.dvc"),
        (["why", "toy"], 1, "toy has not been trained here yet"),
    ],
)
def test_a_failure_is_one_line_and_with_json_one_document(clone, capsys, arguments, code, message):
    assert main(arguments) == code
    output, errors = capsys.readouterr()
    assert output == ""
    assert errors.startswith("retrain: ")
    assert message in errors
    assert len(errors.splitlines()) == 1
    assert main([*arguments, "--json"]) == code
    output, errors_again = capsys.readouterr()
    assert errors_again == errors
    [(name, value)] = json.loads(output).items()
    assert name == "error"
    assert errors == f"retrain: {value}\n"


def test_a_path_may_begin_with_the_home_of_the_user(clone, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(clone / "home"))
    assert place("~/photos") == str(clone / "home" / "photos")
    assert place("s3://bucket/~") == "s3://bucket/~"


def test_the_traceback_of_an_unexpected_error_is_in_a_log(clone, capsys):
    (clone / ".retrain" / "runs" / "train" / "vit" / "latest.json").mkdir(parents=True)
    assert main(["status", "--json"]) == 1
    output, errors = capsys.readouterr()
    assert len(errors.splitlines()) <= 5
    log = Path(errors.splitlines()[-1].removeprefix("More is in "))
    assert "Traceback" in log.read_text(encoding="utf-8")
    assert "Is a directory" in json.loads(output)["error"]
    (clone / "params.yaml").unlink()  # outside a clone there is a document, too
    assert main(["status", "--json", "--debug"]) == 2
    output, errors = capsys.readouterr()
    assert "No params.yaml in" in json.loads(output)["error"]
    assert "Traceback" in errors


@pytest.mark.parametrize(
    ("number", "code", "message"),
    [(signal.SIGINT, 130, "Interrupted."), (signal.SIGTERM, 143, "Terminated.")],
)
def test_a_command_that_is_ended_gives_a_document_too(clone, number, code, message):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with subprocess.Popen(
            [sys.executable, "-m", "retrain.cli", "status", "--json"],
            cwd=clone,
            env=os.environ | {"MLFLOW_TRACKING_URI": uri, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            connection, _ = silent.accept()  # now it waits for an answer
            process.send_signal(number)
            output, errors = process.communicate(timeout=30)
            connection.close()
    assert process.returncode == code
    assert json.loads(output) == {"error": message}
    assert errors.decode() == f"retrain: {message}\n"
