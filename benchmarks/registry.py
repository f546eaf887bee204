"""What a look costs after years and in a large team: thousands of versions, hundreds of workloads.

    python -m benchmarks.registry --versions 10000 --workloads 200

A copy of the project trains the starter workload twice. In one copy of that, the second version and
the decision about it are copied in MLflow's database to as many versions and as many entries of the
ledger, each with a document of its own; the chain of the ledger is whole. In another, as many
workloads with a champion, two decisions, a last run and a deployment each are added. Each figure is
the median of `--rounds` calls of the command line, each in a process of its own; `first` is the
first call after the registry has changed.

Result of 2026-11-25, two cores, 3 rounds, a machine that others used a little. 10,000 versions:
`status vit` 1.4 s, 8.7 s the first time; `history vit` 0.8 s, `train vit --dry-run` 1.5 s, both
times. 200 workloads: `status` 1.2 s, which misses its second, 5.6 s the first time; `up` 28 s with
211 deployments that are new, 17 s with those that the server has. While others kept ten processes
running, `up` took 42 s and 19 s. While it called `prefect deploy --all`, it took 206 s on the quiet
machine, 60 s of them in one wait for the database (see `retrain/servers/program.py`).
"""

import argparse
import json
import shutil
import sqlite3
import statistics
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks.flow import call, copy_project
from benchmarks.table import Row, report
from retrain.project import Project
from retrain.registry import ledger, trust

SECONDS = 2.0  # what a look may take
STATUS_SECONDS = 1.0
UP_SECONDS = 30.0
# MLflow's tables with the name of a registered model.
REGISTRY = (
    "registered_models",
    "registered_model_tags",
    "registered_model_aliases",
    "model_versions",
    "model_version_tags",
)


def main() -> None:
    """Makes the project, and measures the commands."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--versions", type=int, default=10_000)
    parser.add_argument("--workloads", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        root = copy_project(Path(name, "clone"))
        for lr in ("0.003", "0.002"):
            retrain(root, "train", "vit", "--set", f"train.lr={lr}", "--promote")
        team = Path(shutil.copytree(root, Path(name, "team"), symlinks=True))
        multiply(root, options.versions)
        described = f"{options.versions:,} versions and decisions"
        for command in (("status", "vit"), ("history", "vit"), ("train", "vit", "--dry-run")):
            measure(root, command, described, SECONDS, options.rounds)
        add_workloads(team, options.workloads)
        described = f"{options.workloads:,} workloads"
        measure(team, ("status",), described, STATUS_SECONDS, options.rounds)
        measure_servers(team, described)


def retrain(root: Path, *arguments: str) -> float:
    """Calls the command line; returns its seconds."""
    return call(root, ("-m", "retrain.cli", *arguments))[0]


def measure(root: Path, command: tuple[str, ...], what: str, limit: float, rounds: int) -> None:
    """Measures a command: the first call, and the median of others."""
    first = retrain(root, *command)
    median = statistics.median(retrain(root, *command) for _ in range(rounds))
    title = f"`retrain {' '.join(command)}`, {what}"
    for when, seconds in (("first", first), ("again", median)):
        report(Row("registry", f"{title}, {when}", seconds, "limit", limit, "s", "below 1"))


def multiply(root: Path, count: int) -> None:
    """Copies the last version and its decision until there are `count` of each."""
    project = Project(root)
    with closing(sqlite3.connect(root / "mlflow.db")) as database, database:
        database.row_factory = sqlite3.Row
        [model] = database.execute("SELECT value FROM registered_model_tags WHERE key = ?", (
            "retrain.ledger_run",)).fetchall()  # fmt: skip
        run = model["value"]
        [folder] = database.execute("SELECT artifact_uri FROM runs WHERE run_uuid = ?", (run,))
        documents = Path(str(folder["artifact_uri"]).removeprefix("file://"))
        copies = project.state / "registry"
        for table in ("model_versions", "model_version_tags"):
            rows = [
                dict(row) for row in database.execute(f"SELECT * FROM {table} WHERE version = 2")
            ]
            for row in rows:
                numbers = range(3, count + 1)
                insert(database, table, row, [{"version": number} for number in numbers])
        [entry] = database.execute("SELECT value FROM params WHERE key = '000002'").fetchall()
        fields = json.loads(entry["value"])
        document = json.loads((documents / place(fields["document"])).read_text())
        before, values = ledger.sha256_of(entry["value"]), []
        for number in range(3, count + 1):
            text = ledger.compact(document | {"copy": number})
            digest = ledger.sha256_of(text)
            for base in (documents, copies):
                (base / place(digest)).parent.mkdir(parents=True, exist_ok=True)
                (base / place(digest)).write_text(text)
            numbers = {"version": number, "previous": number - 1}
            value = ledger.compact(fields | numbers | {"document": digest, "before": before})
            before = ledger.sha256_of(value)
            values.append((ledger.key_of(number), value, run))
        database.executemany("INSERT INTO params (key, value, run_uuid) VALUES (?, ?, ?)", values)
        seal = (f"{count} {before}", ledger.DONE)
        database.execute("UPDATE registered_model_tags SET value = ? WHERE key = ?", seal)
        database.execute("UPDATE registered_model_aliases SET version = ?", (count,))
    head = trust.Head(run, count, before)
    (root / "ledger" / "vit.json").write_text(json.dumps(vars(head)))


def insert(
    database: sqlite3.Connection, table: str, row: dict[str, Any], changes: list[dict[str, Any]]
) -> None:
    """Inserts copies of a row, each with other values in some columns."""
    names, places = ", ".join(row), ", ".join("?" * len(row))
    statement = f"INSERT INTO {table} ({names}) VALUES ({places})"
    database.executemany(statement, ([*(row | change).values()] for change in changes))


def place(digest: str) -> str:
    """The path of a decision's document."""
    return f"decisions/{digest}.json"


def add_workloads(root: Path, count: int) -> None:
    """Adds workloads like the starter one, and a deployment of each."""
    from ruamel.yaml import YAML

    yaml = YAML()
    shipped = yaml.load((root / "params.yaml").read_text())["workloads"]["vit"]
    workloads = {f"team{number}": shipped for number in range(count)}
    (root / "team" / "params.yaml").write_text(json.dumps({"workloads": workloads}))
    file = root / "prefect.yaml"
    tree = yaml.load(file.read_text())
    deployment = tree["deployments"][0]
    for name in workloads:
        own = {"name": name, "parameters": {"workload": name}, "tags": ["train", name]}
        tree["deployments"].append({**deployment, **own, "triggers": []})
    with file.open("w") as stream:
        yaml.dump(tree, stream)
    runs = root / ".retrain" / "runs" / "train"
    for name in workloads:
        for record in shutil.copytree(runs / "vit", runs / name).glob("*.json"):
            record.write_text(record.read_text().replace('"vit"', f'"{name}"'))
    with closing(sqlite3.connect(root / "mlflow.db")) as database, database:
        database.row_factory = sqlite3.Row
        for table in REGISTRY:
            rows = [dict(row) for row in database.execute(f"SELECT * FROM {table}")]
            for row in rows:
                insert(database, table, row, [{"name": name} for name in workloads])


def measure_servers(root: Path, what: str) -> None:
    """Measures `retrain up`: the first start, and one that finds everything registered."""
    try:
        for when in ("first", "again"):
            began = time.monotonic()
            retrain(root, "up")
            seconds = time.monotonic() - began
            title = f"`retrain up`, {what}, {when}"
            report(Row("registry", title, seconds, "limit", UP_SECONDS, "s", "below 1"))
            retrain(root, "down")
    finally:
        retrain(root, "down")


if __name__ == "__main__":
    main()
