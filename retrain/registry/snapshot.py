"""Reads what MLflow keeps about a registered model: its aliases, versions, and ledger.

To import MLflow takes 1.3 to 2 s, more than everything else in a run that finds nothing changed. So
if its store is an SQLite file, what it answers is kept until the file changes: SQLite counts the
changes in the file's header, as its documentation of the format says.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from retrain import atomic, tracking
from retrain.project import Project

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import RegisteredModel

LEDGER_RUN = "retrain.ledger_run"  # the tag of a registered model with the id of its ledger's run
MODEL = "retrain.ledger"  # a tag of that run: the name of the model
# https://www.sqlite.org/fileformat.html#the_database_header
HEADER = 28  # bytes up to the end of the count of changes, which are the last four
WRITES_IN_PLACE = b"\x01\x01"  # the versions of the format, if each change is counted
VERSIONS = slice(18, 20)


@dataclass(frozen=True)
class Version:
    """A version of a model, with those of MLflow's attributes that are used here."""

    name: str
    version: int
    run_id: str
    creation_timestamp: int
    tags: Mapping[str, str]


@dataclass(frozen=True)
class Model:
    """A registered model, with those of MLflow's attributes that are used here.

    Attributes:
        name: The name of the model.
        aliases: The number of a version, by alias.
        tags: The tags of the model itself.
        versions: The versions; the one that was changed last comes first.
        ledger: The parameters of the run with its ledger.
    """

    name: str
    aliases: Mapping[str, int] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[int, Version] = field(default_factory=dict)
    ledger: Mapping[str, str] = field(default_factory=dict)


def read(project: Project, name: str) -> Model:
    """Reads a model; one that is not registered has neither versions nor tags."""
    file = tracking.database_of(project)
    if file and not file.exists():
        return Model(name)
    state = state_of(file) if file else None
    if state is None:
        return ask(project, name)
    cache_file = project.state / "registry" / f"{name}.json"
    adapter = _kept_answer()
    with suppress(FileNotFoundError, ValueError):
        cached_state, model = adapter.validate_json(cache_file.read_bytes())
        if cached_state == state and model.name == name:
            return model
    model = ask(project, name)
    cache_file.parent.mkdir(parents=True, exist_ok=True)
    with atomic.replacing(cache_file) as aside:
        aside.write_bytes(adapter.dump_json((state, model)))
    return model


@cache
def _kept_answer() -> TypeAdapter[tuple[str, Model]]:
    """A model, and before it the state of the database's file before it was asked."""
    return TypeAdapter(tuple[str, Model])


def state_of(file: Path) -> str | None:
    """A text that differs after each change of an SQLite file.

    None if the file's header does not count each of them, because it is written to a log first, or
    if it is no such file.
    """
    with file.open("rb") as database:
        header = database.read(HEADER)
    if header[VERSIONS] != WRITES_IN_PLACE:
        return None
    status = file.stat()
    count = int.from_bytes(header[-4:])
    return f"{file.absolute()} {status.st_ino} {status.st_size} {status.st_mtime_ns} {count}"


def names(project: Project) -> list[str]:
    """The names of all registered models; no database is made to find none."""
    file = tracking.database_of(project)
    if file and not file.exists():
        return []
    search = tracking.client(project).search_registered_models
    return [model.name for model in all_pages(search)]


def ask(project: Project, name: str) -> Model:
    """Asks MLflow for a model.

    The ledger is read last. So what is newer in it than the aliases and the tags seems unfinished,
    and is looked at again.
    """
    client = tracking.client(project)
    model = _find(client, name)
    if model is None:
        return Model(name)
    listed = all_pages(partial(client.search_model_versions, f"name = '{name}'"))
    run_id = model.tags.get(LEDGER_RUN)
    run = tracking.find_run(project, run_id) if run_id else None
    return Model(
        name=name,
        aliases={alias: int(number) for alias, number in model.aliases.items()},
        tags=model.tags,
        versions={
            int(version.version): Version(
                name,
                int(version.version),
                version.run_id or "",
                version.creation_timestamp,
                version.tags,
            )
            for version in listed
        },
        ledger=run.data.params if run else {},
    )


def all_pages(search: Callable[..., Any]) -> Iterator[Any]:
    """What a search of MLflow finds, which it gives in pages: of versions, 10,000 in each."""
    token = None
    while True:
        page = search(page_token=token)
        yield from page
        if not (token := page.token):
            return


def find_or_create(client: "MlflowClient", project: Project, name: str) -> str:
    """Finds the run of a model's ledger; the first time, creates it and the registered model.

    The registered model is created with the tag that names the run. Only one of several machines
    can do that; the others take its run.

    Returns:
        The id of the run.
    """
    from mlflow.exceptions import MlflowException

    model = _find(client, name)
    if model and LEDGER_RUN in model.tags:
        return str(model.tags[LEDGER_RUN])
    experiment = tracking.experiment(client, project, name)
    existing = client.search_runs([experiment], f"tags.`{MODEL}` = '{name}'")
    empty = [run for run in existing if not run.data.params]  # of a process that was killed here
    ledger_run = empty[0] if empty else client.create_run(experiment, None, {MODEL: name}, "ledger")
    run = str(ledger_run.info.run_id)
    client.update_run(run, "FINISHED")  # else it would seem to go on
    if model:  # made by a person
        client.set_registered_model_tag(name, LEDGER_RUN, run)
        return run
    try:
        about = (
            f"The models of the workload {name}. The alias `champion` names the one in production; "
            "only Retrain moves it. How each came about, and why it was promoted or not: "
            f"`retrain history {name}`, `retrain lineage {name}@NUMBER --card`."
        )
        client.create_registered_model(name, {LEDGER_RUN: run}, about)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
        taken = str(client.get_registered_model(name).tags[LEDGER_RUN])
        if taken != run:  # the other machine may have taken the empty run that this one made
            client.delete_run(run)
        return taken
    return run


def _find(client: "MlflowClient", name: str) -> "RegisteredModel | None":
    from mlflow.exceptions import MlflowException

    try:
        return client.get_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        return None
