"""Databases whose creation is killed, fails, or happens twice at once."""

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from retrain.errors import UsageError
from retrain.project import Project
from retrain.registry import versions
from retrain.runs.flow_runs import start_ephemeral_server
from retrain.servers import databases
from tests import templates

# Creates a table of two, says so, and waits for a line before it creates the other.
SLOW = """
import sqlite3, sys
from pathlib import Path
from retrain.servers import databases

def create(path):
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE a (value)")
        print("begun", flush=True)
        sys.stdin.readline()
        database.execute("CREATE TABLE b (value)")

with databases.created(Path(sys.argv[1]), create):
    with sqlite3.connect(sys.argv[1]) as database:
        database.execute("INSERT INTO b VALUES (1)")
"""


def query(path, text):
    with closing(sqlite3.connect(path)) as database, database:
        return [row[0] for row in database.execute(text).fetchall()]


def test_a_killed_creation_leaves_no_database_and_of_all_that_wait_one_creates_it(tmp_path):
    path, pipe = tmp_path / "some.db", subprocess.PIPE
    command = [sys.executable, "-c", SLOW, str(path)]

    def start():
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)

    with start() as killed:
        assert killed.stdout.readline() == "begun\n"
        with start() as second, start() as third:
            killed.kill()
            killed.wait()
            assert not path.exists()
            for process in (second, third):  # the one that waits for the other may be the first
                print(file=process.stdin, flush=True)
            outputs = [process.communicate(timeout=60)[0] for process in (second, third)]
    assert sorted(outputs) == ["", "begun\n"]
    assert query(path, "SELECT value FROM b") == [1, 1]
    assert list(tmp_path.iterdir()) == [path]


def test_a_creation_that_fails_leaves_nothing_and_a_database_that_is_there_is_left_alone(tmp_path):
    def fail(path):
        path.touch()
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"), databases.created(tmp_path / "some.db", fail):
        pass
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "some.db").write_text("of another tool")
    with databases.created(tmp_path / "some.db", fail):
        pass


NEWER = "UPDATE alembic_version SET version_num = 'ffffffffffff'"


def first_use(project, tool):
    """What a run does first with the database of a tool."""
    if tool == "mlflow":
        versions.champion(project, "vit")
    else:
        start_ephemeral_server(project, [])


DAMAGED = r"/mlflow\.db is damaged.*: bring it back from a"


@pytest.mark.parametrize(
    ("tool", "damage", "said"),
    [
        ("mlflow", lambda file: file.write_bytes(b""), DAMAGED),
        ("mlflow", lambda file: file.write_bytes(b"this is no database" * 100), DAMAGED),
        ("mlflow", lambda file: file.write_bytes(file.read_bytes()[:4096] + b"x" * 9999), DAMAGED),
        ("mlflow", lambda file: query(file, "DELETE FROM alembic_version"), DAMAGED),
        ("mlflow", lambda file: query(file, NEWER), "was made by a newer mlflow than "),
        ("prefect", lambda file: file.write_bytes(b""), r"/prefect\.db is damaged.*: delete it\."),
        ("prefect", lambda file: query(file, NEWER), "was made by a newer prefect than "),
    ],
)
def test_a_database_that_cannot_be_used_is_refused_in_a_sentence(tmp_path, tool, damage, said):
    place, project = getattr(templates, f"place_{tool}_database"), Project(tmp_path)
    file = {"mlflow": tmp_path / "mlflow.db", "prefect": databases.of_prefect(project)}[tool]
    place(tmp_path)
    databases.check(file, tool)
    damage(file)
    with pytest.raises(UsageError, match=said) as refused:
        first_use(project, tool)
    assert len(str(refused.value).splitlines()) == 1


@pytest.fixture(params=databases.MIGRATIONS)
def earlier(request, tmp_path, monkeypatch):
    """A project with a database that lacks the last migration; its tool, and the file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text("workloads: {}")
    if request.param == "mlflow":
        from alembic import command
        from alembic.script import ScriptDirectory
        from mlflow.store.db.utils import _get_alembic_config
        from mlflow.store.tracking.dbmodels.initial_models import Base
        from sqlalchemy import create_engine

        engine = create_engine(f"sqlite:///{tmp_path}/mlflow.db")
        Base.metadata.create_all(engine)
        config = _get_alembic_config(str(engine.url))
        _, last, *_ = ScriptDirectory.from_config(config).walk_revisions()
        with engine.begin() as config.attributes["connection"]:
            command.upgrade(config, last.revision)
        return request.param, tmp_path / "mlflow.db"
    templates.place_prefect_database(tmp_path)
    file = databases.of_prefect(Project(tmp_path))
    url = {"PREFECT_SERVER_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{file}"}
    down = [sys.executable, "-m", "prefect", "server", "database", "downgrade", "-y", "-r", "-1"]
    subprocess.run(down, check=True, env=os.environ | url)
    return request.param, file


@pytest.mark.slow
def test_a_database_of_an_earlier_release_is_migrated_by_the_command_that_its_refusal_names(
    earlier, tmp_path
):
    tool, file = earlier
    query(file, "CREATE TABLE of_the_user (value)")
    with pytest.raises(UsageError, match=f"earlier {tool} than .*: make down && ") as refused:
        first_use(Project(tmp_path), tool)
    assert len(str(refused.value).splitlines()) == 1
    command = str(refused.value).partition("make down && ")[2]
    programs = f"{Path(sys.executable).parent}/"
    subprocess.run(command.replace(".venv/bin/", programs), shell=True, check=True, cwd=tmp_path)
    databases.check(file, tool)
    assert query(file, "SELECT count(*) FROM of_the_user") == [0]
