"""Databases whose creation is killed, twice at once, or was begun by the tools themselves."""

import os
import sqlite3
import subprocess
import sys
import textwrap
from contextlib import closing
from time import monotonic, sleep

import pytest

from retrain import databases, tracking
from retrain.project import Project

# Creates a table of three, says so, and waits for a line before it creates the others.
SLOW = textwrap.dedent(
    """
    import sqlite3, sys
    from pathlib import Path
    from retrain import databases

    def create(path):
        with sqlite3.connect(path) as database:
            database.execute("CREATE TABLE a (value)")
            print("begun", flush=True)
            sys.stdin.readline()
            database.executescript("CREATE TABLE b (value); CREATE TABLE c (value)")

    with databases.created(Path(sys.argv[1]), ("a", "c"), create):
        with sqlite3.connect(sys.argv[1]) as database:
            database.execute("INSERT INTO c VALUES (1)")
    """
)


def query(path, text):
    with closing(sqlite3.connect(path)) as database:
        rows = database.execute(text).fetchall()
        database.commit()
        return [row[0] for row in rows]


def tables(path):
    return query(path, "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")


def create(path):
    for name in "abc":
        query(path, f"CREATE TABLE {name} (value)")


def ensure(path):
    with databases.created(path, ("a", "c"), create):
        pass


@pytest.fixture
def slow(tmp_path):
    """Starts a process that creates a database slowly."""
    started = []

    def start():
        process = subprocess.Popen(
            [sys.executable, "-c", SLOW, str(tmp_path / "some.db")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_killed_creation_leaves_no_database_and_the_next_one_succeeds(slow, tmp_path):
    process = slow()
    assert process.stdout.readline() == "begun\n"
    process.kill()
    process.wait()
    assert not (tmp_path / "some.db").exists()
    ensure(tmp_path / "some.db")
    assert tables(tmp_path / "some.db") == ["a", "b", "c"]
    assert [path.name for path in tmp_path.iterdir()] == ["some.db"]


def test_of_two_at_once_one_creates_it(slow, tmp_path):
    processes = [slow(), slow()]
    sleep(0.5)
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    outputs = [process.communicate(timeout=30)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert sorted(outputs) == ["", "begun\n"]
    assert query(tmp_path / "some.db", "SELECT value FROM c") == [1, 1]
    assert [path.name for path in tmp_path.iterdir()] == ["some.db"]


@pytest.mark.parametrize("half", ["", "CREATE TABLE a (value)"])
def test_an_incomplete_one_is_replaced_with_its_journals(tmp_path, half):
    path = tmp_path / "some.db"
    query(path, half) if half else path.touch()
    (tmp_path / "some.db-journal").write_text("of the old file")
    ensure(path)
    assert tables(path) == ["a", "b", "c"]
    assert [path.name for path in tmp_path.iterdir()] == ["some.db"]


def test_one_with_a_row_is_left_alone_whatever_it_lacks(tmp_path):
    path = tmp_path / "some.db"
    query(path, "CREATE TABLE a (value)")
    query(path, "INSERT INTO a VALUES (1)")
    before = path.read_bytes()
    ensure(path)
    assert path.read_bytes() == before


def test_another_file_of_that_name_is_left_alone(tmp_path):
    (tmp_path / "some.db").write_text("no database " * 100)
    with pytest.raises(sqlite3.DatabaseError):
        ensure(tmp_path / "some.db")
    assert (tmp_path / "some.db").read_text() == "no database " * 100


def kill_halfway(path, *command, **environment):
    """Runs a migration, and kills it when it has created some of its tables."""
    process = subprocess.Popen(
        [sys.executable, "-m", *command],
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    deadline = monotonic() + 120
    while not path.exists() or not tables(path):
        assert process.poll() is None
        assert monotonic() < deadline
        sleep(0.01)
    process.kill()
    process.communicate()  # what wrote into the database has ended, too


def test_what_a_killed_mlflow_left_is_replaced(tmp_path):
    project = Project(tmp_path)
    path = tmp_path / "mlflow.db"
    kill_halfway(path, "mlflow", "db", "upgrade", f"sqlite:///{path}")
    assert "experiments" in tables(path)
    assert "model_versions" not in tables(path)
    run = tracking.start_run(project, "digits", "key", {}, "ab" * 32)
    assert tracking.client(project).get_run(run.run_id).info.status == "RUNNING"
    assert {path.name for path in tmp_path.iterdir()} == {"mlflow.db"}


def test_what_a_killed_prefect_left_is_replaced(tmp_path):
    path = tmp_path / "prefect.db"
    environment = {"PREFECT_HOME": str(tmp_path)}
    kill_halfway(path, "prefect", "server", "database", "upgrade", "-y", **environment)
    assert "flow" in tables(path)
    assert "variable" not in tables(path)
    # A module that does nothing else stands in for the server.
    command = [sys.executable, "-m", "retrain.servers.program", "prefect", "this"]
    subprocess.run(command, env=os.environ | environment, check=True, capture_output=True)
    assert "variable" in tables(path)
    assert not list(tmp_path.glob(".prefect.db*"))
    assert not list(tmp_path.glob("prefect.db-*"))
