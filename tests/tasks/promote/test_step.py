import getpass
import json
from dataclasses import replace

import pytest

from retrain.errors import ChampionChangedError
from retrain.project import Project
from retrain.registry import decisions, packages, tracking, versions
from retrain.runs.liveness import Processes
from tasks.data import package
from tasks.data.predictions import find_reference
from tests.tasks.promote.conftest import COMPARE, ROWS, decide, history, train
from tests.tasks.toy_model import write_scores

pytestmark = pytest.mark.usefixtures("not_loaded")


def state(project: Project):
    """All that the registry says, with its times."""
    client = tracking.client(project)
    return (
        [(dict(each), each.aliases) for each in client.search_model_versions("name = 'toy'")],
        dict(client.get_registered_model("toy").tags),
        client.get_registered_model("toy").aliases,
        history(project),
    )


def test_the_first_model_that_passes_becomes_champion(project, run):
    trained = train(project)
    facts = run(trained, "first")
    assert facts == {
        "name": "toy",
        "version": 1,
        "aliases": ["champion", "reference"],
        "digest": trained.facts["weights"],
    }
    champion = versions.champion(project, "toy")
    assert champion.train_digest == trained.digest
    assert champion.metrics == {"accuracy": 0.95, "log_loss": 0.2, "rows": ROWS}
    assert (champion.images["resize"], champion.images["mean"]) == ("crop", [0.5])
    assert (champion.data, champion.commit) == ("data-1", "c0ffee")
    written = decisions.read(project, "toy")
    [entry] = written.entries
    assert (entry.action, entry.version, entry.previous) == ("promoted", 1, None)
    assert (entry.run, entry.data, entry.who) == ("run-1", "data-1", getpass.getuser())
    assert decisions.document_of(project, written, entry) == decide("first", None)
    assert not any(Processes(project.store).temporary().iterdir())


def test_a_model_that_is_only_compared_is_registered_and_promoted_later(project, run, one):
    challenger = train(project, seed=1)
    compared = run(challenger, "better", champion=1, intent=COMPARE)
    assert (compared["version"], compared["aliases"]) == (2, [])
    assert versions.champion(project, "toy").version == 1
    version, before = versions.get(project, "toy", 2), state(project)
    assert find_reference(project, version) is None
    assert run(challenger, "better", champion=1, intent=COMPARE) == compared
    assert state(project) == before
    facts = run(challenger, "better", champion=1)
    assert (facts["version"], facts["aliases"]) == (2, ["champion", "reference"])
    events = history(project)
    assert [event.action for event in events] == ["promoted", "compared", "promoted"]
    assert len(find_reference(project, version)) == ROWS  # to find drift against


def test_looking_tells_what_there_is_left_to_do_and_does_nothing(project, dry_run, run):
    champion, challenger = train(project), train(project, seed=1)
    assert dry_run(champion, "first", None) is None
    first = run(champion, "first")
    assert dry_run(champion, "champion already", 1) == first
    tracking.client(project).delete_registered_model_alias("toy", "champion")
    assert dry_run(champion, "champion already", 1) is None
    assert run(champion, "champion already", 1) == first
    with pytest.raises(ChampionChangedError):  # there is a champion by now
        dry_run(champion, "first", None)
    assert dry_run(challenger, "cannot tell", 1) is None
    second = run(challenger, "cannot tell", champion=1)
    assert (second["aliases"], second.keys()) == ([], first.keys())  # nothing was withheld
    assert history(project)[-1].reason.startswith("accuracy >= 0.9 fails")
    before = state(project)
    assert dry_run(challenger, "cannot tell", 1) == second
    assert dry_run(challenger, "below bounds", 1) is None
    assert dry_run(challenger, "better", 1) is None
    assert dry_run(challenger, "cannot tell", 1, intent=COMPARE) is None
    assert run(challenger, "cannot tell", champion=1) == second  # nor does the same run again
    assert state(project) == before


@pytest.mark.parametrize("name", ["toy", "a training of another name"])
def test_a_run_that_was_deleted_or_has_another_name_is_made_again(project, run, name):
    trained, client = train(project), tracking.client(project)
    given = tracking.start_run(project, name, trained.key, {}, "digest")
    (trained.folder / "report" / "mlflow.json").write_text(json.dumps({"run_id": given}))
    if name == "toy":
        client.delete_run(given)
    run(trained, "first")
    run_id = versions.champion(project, "toy").run_id
    assert run_id != given
    assert client.get_run(run_id).info.status == "FINISHED"


def test_the_package_has_the_code_that_it_runs_and_no_other(project, one):
    champion = versions.champion(project, "toy")
    folder = packages.download(project, champion)
    code = {path.relative_to(folder / "code").as_posix() for path in folder.glob("code/**/*.*")}
    # Nothing of the hub and of the settings: they may change, and the package stays.
    modules = ("__init__", "image", "network", "serving", "auto_network", "vit_network")
    assert code == {f"models/{name}.py" for name in modules}
    kinds = {path.suffix for path in folder.rglob("*") if path.is_file()}  # nothing is pickled
    assert kinds <= {".safetensors", ".json", ".py", ".txt", ".yaml", ""}
    lines = (folder / "requirements.txt").read_text().split()
    assert "torch==2.13.0" in lines
    assert not [line for line in lines if "+" in line]
    assert package.digest_of_folder(folder) == champion.package_digest


def test_what_changed_after_the_evaluation_is_not_registered(project, run):
    trained = train(project)
    scores = write_scores(project.root / "scores", trained, ROWS)
    scores = replace(scores, facts=scores.facts | {"package": "that of other code"})
    with pytest.raises(ValueError, match="have changed since the model was evaluated"):
        run(trained, "first", None, scores)
    assert versions.every_of(project, "toy") == []
    assert history(project) == ()
