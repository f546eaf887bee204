"""Says what became of a model: the verdict of a run, the model's card, and its lineage.

The document of a run is a mapping with `metrics`, the challenger's; `champion`, its `version` and
`metrics`, or None; `decision`, the gate's other facts; `model`, the facts of `promote`; `promote`,
whether the run was to promote the model or only to compare it; and `how` the latter is promoted, if
that is not by `--promote`.

The card is kept with the MLflow run of the training. It is not in the package, because the identity
of the package covers only what decides its answers. The registry and `retrain export` show it. The
lineage is the record that a version carries.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import models
from retrain.params import params_entry
from retrain.registry import packages
from retrain.registry.lineage import digests_of_images
from retrain.runs import console
from retrain.runs.records import cell
from retrain.runs.run import Run
from retrain.step import DataVersion
from retrain.store import Artifact, Store
from tasks.data import image_table
from tasks.data.gate_rules import difference, failures
from tasks.data.metrics import CLASSES, METRICS, wilson
from tasks.data.package import images_of

MARKS = {True: "[green]passed[/]", False: "[red]failed[/]", None: "cannot tell"}

# Of a card: how many of the classes with the lowest recall, and how many names in a sentence.
WORST, NAMED = 5, 20
FEW = 30  # test images; the interval of a recall is then wider than 0.2, unless it is near 0 or 1

REQUIREMENTS = "requirements.lock"
# Inputs that no step has made, and outputs that are listed first.
KNOWN = ("data", "start", "pull", "validate", "train")


class Verdict(NamedTuple):
    """What became of a model.

    Attributes:
        state: The name of the state in which the run ends: `Promoted`, `Rejected`, `Waiting`;
            `Compared`, if it was not to promote; or `Unchanged`, if the model is the champion.
        sentence: The same for a person, with the reason and what to do.
    """

    state: str
    sentence: str


def precision(training: Mapping[str, Any]) -> str:
    """The precision of a training, by its facts; a user's own function was told it."""
    told = training["numerics"].get("told_precision")
    return f"{told} (as told)" if told else str(training["numerics"]["precision"])


def review_commands(name: str) -> str:
    """The commands for the version of a model that waits."""
    return f"retrain approve {name} --reason WHY, or retrain reject {name} --reason WHY"


def verdict(document: Mapping[str, Any]) -> Verdict:
    """The decision, and the classes that the champion lacks."""
    decision, model, champion = document["decision"], document["model"], document["champion"]
    name = f"{model['name']} version {model['version']}"
    passed = decision["passed"]
    instead = f"new champion, in place of version {champion['version']}" if champion else ""
    why = _why(document)
    if decision["verdict"] == "champion already":
        found = Verdict("Unchanged", f"This model is already the champion, {name}.")
    elif not document["promote"]:
        how = document.get("how", "add --promote to promote it")
        would = f"the {instead or 'first champion'}; {how}" if passed else f"rejected: {why}"
        found = Verdict("Compared", f"{name} would be {would}.")
    elif withheld := model.get("withheld"):
        found = Verdict(
            "Rejected", f"{name} is not promoted: {withheld}; it is promoted only with --promote."
        )
    elif model.get("waiting"):
        how = review_commands(model["name"])
        found = Verdict("Waiting", f"{name} passes the gate and waits for approval: {how}.")
    elif not passed:
        found = Verdict("Rejected", f"{name} is rejected: {why}.")
    elif champion is None:
        found = Verdict("Promoted", f"{name} is the first champion.")
    else:
        found = Verdict("Promoted", f"{name} is the {instead}: {why}.")
    if changed := model.get("changed_rules"):
        sentence = f"{found.sentence} Rules of the gate were not those of params.yaml: {changed}."
        found = found._replace(sentence=sentence)
    classes = ", ".join(
        f"{row['label']} ({row['rows']} test images, recall {row['recall']:.2f})"
        for row in decision["new_classes"]
    )
    return (
        found._replace(sentence=f"{found.sentence} New classes: {classes}.") if classes else found
    )


def _why(document: Mapping[str, Any]) -> str:
    """The rules that failed and which version is champion; or what the verdict rests on."""
    decision, champion = document["decision"], document["champion"]
    clause: str = packages.VERDICTS.get(decision["verdict"], decision["verdict"])
    found = decision["comparisons"].get("champion", {}).get("metrics", {})
    for metric in [*found][:1]:  # the first one decides
        clause += f"; {metric} {difference(metric, found[metric])}"
    if decision["passed"]:
        return clause
    failed = failures(decision["rules"])
    stays = (
        f"Version {champion['version']} stays the champion"
        if champion
        else "There is no champion yet"
    )
    return f"{failed or clause}. {stays}"


def show(document: Mapping[str, Any]) -> None:
    """Shows the metrics, the champion's beside them, the slices, the rules, and the verdict."""
    from rich.markup import escape

    champion = document["champion"] or {"version": None, "metrics": {}}
    console.say_table(
        ("metric", "this model", f"champion (version {champion['version']})"),
        [
            (metric, console.number(value), console.number(champion["metrics"].get(metric)))
            for metric, value in document["metrics"].items()
        ],
    )
    if slices := document["decision"]["slices"]:
        console.say_table(
            ("slice", "images", "accuracy", "95 % interval"), [*map(slice_row, slices)]
        )
    for rule in document["decision"]["rules"]:
        found = rule.get("says") or f"is {rule['value']:.4f}"
        console.say(f"{MARKS[rule['passed']]}  " + escape(f"{rule['rule']}  ({found})"))
    for sentence in document["decision"]["says"]:
        console.say(escape(sentence))
    console.say(f"\n[bold]{escape(verdict(document).sentence)}[/]")


def slice_row(part: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """A slice of the test images as a row of a table: name, images, accuracy, interval."""
    name = f"{part['column']}: {part['value']}"
    if "from" in part:
        name += f" ({part['from']:.4g} to {part['to']:.4g})"
    images = f"{part['images']:,}" + ("" if part["judged"] else " (too few to judge)")
    return name, images, f"{part['accuracy']:.4f}", f"{part['low']:.4f} to {part['high']:.4f}"


def card_of(
    name: str,
    data: DataVersion,
    validated: Mapping[str, Any],
    trained: Artifact,
    scores: Artifact,
    decision: Mapping[str, Any],
) -> str:
    """Describes a model (Markdown).

    Args:
        name: The name of the workload.
        data: The version of the data.
        validated: The facts of `validate`.
        trained: The output of `train`.
        scores: The output of `evaluate`.
        decision: The facts of `gate`.
    """
    table = json.loads((scores.folder / CLASSES).read_text(encoding="utf-8"))["classes"]
    tested = sorted((row for row in table if row["rows"]), key=lambda row: float(row["recall"]))
    model = trained.folder / "model"
    slices, metrics = decision["slices"], scores.facts["metrics"]
    rows = sum(row["rows"] for row in table)
    return render(
        "card",
        name=name,
        labels=json.loads((model / models.LABELS).read_text(encoding="utf-8")),
        images=images_of(model),
        family=json.loads((model / models.MODEL).read_text(encoding="utf-8"))["family"],
        data=data,
        checked=validated,
        counts=sorted(validated["classes"].items(), key=lambda item: int(item[1])),
        scores=scores.facts,
        rows=rows,
        metrics=[  # with the interval of the one that is a share of images
            (name, metrics[name], _interval(metrics[name], rows if name == "accuracy" else 0))
            for name in METRICS
            if name in metrics
        ],
        worst=[row | {"interval": _interval(row["recall"], row["rows"])} for row in tested[:WORST]],
        slices=[slice_row(part) for part in slices],
        columns=["class", *dict.fromkeys(str(part["column"]) for part in slices)],
        rare=[f"{row['label']} ({row['rows']:,})" for row in table if row["rows"] < FEW],
        few=FEW,
        decision=decision,
        verdict=packages.VERDICTS.get(decision["verdict"], decision["verdict"]),
        trained=trained.facts,
        precision=precision(trained.facts) if "numerics" in trained.facts else None,
        commit=trained.provenance.get("commit"),
    )


def render(template: str, **content: Any) -> str:
    """The text (Markdown) of a template that lies beside this file, by its name."""
    from jinja2 import Environment

    environment = Environment(trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    environment.filters |= {"cell": cell, "count": "{:,}".format, "listed": _list}
    environment.filters["number"] = console.number
    text = Path(__file__).with_name(f"{template}.md.j2").read_text(encoding="utf-8")
    return environment.from_string(text).render(content)


def _interval(share: float, rows: int) -> str:
    """The interval of a share of images, by Wilson's method; empty for no images."""
    return "{:.3f} to {:.3f}".format(*wilson(round(share * rows), rows)) if rows else ""


def _list(names: Sequence[str]) -> str:
    hidden = len(names) - NAMED
    return ", ".join(map(cell, names[:NAMED])) + (f" and {hidden:,} more" if hidden > 0 else "")


def lineage_of(
    run: Run,
    pulled: Artifact,
    validated: Artifact,
    trained: Artifact,
    scores: Artifact,
    run_id: str,
) -> dict[str, Any]:
    """Collects the lineage of a model, for the record that its version carries.

    Args:
        run: The run that registers the model.
        pulled: The output of `pull`.
        validated: The output of `validate`.
        trained: The output of `train`.
        scores: The output of `evaluate`.
        run_id: The MLflow run of the training.
    """
    project, workload, version = run.project, run.workload, run.version
    entry = params_entry(workload)
    lock = project.root / REQUIREMENTS
    splits = digests_of_images(validated.folder / image_table.FILE_NAME)
    return {
        "model": workload.name,
        "package": scores.facts["package"],
        "weights": trained.facts["weights"],
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "mlflow_run": run_id,
        "commit": (project.commit or "").removesuffix("+dirty") or None,
        "uncommitted": project.uncommitted,
        "requirements": hashlib.sha256(lock.read_bytes()).hexdigest() if lock.is_file() else None,
        "data": {"version": version.digest, "path": workload.data.path}
        | {name: getattr(version, name) for name in ("tracked", "revision", "pin")},
        "entry": entry.key,
        "overrides": dict(entry.overrides),
        "parameters": workload.model_dump(mode="json", exclude={"name"}),
        "validation": dict(validated.facts),
        "images": {
            "step": validated.step,
            "key": validated.key,
            "file": image_table.FILE_NAME,
            "splits": splits,
        },
        "training": dict(trained.facts),
        "metrics": scores.facts["metrics"],
        "steps": list(_steps(Store.of(project), pulled, validated, trained, scores)),
    }


def _steps(
    store: Store, pulled: Artifact, validated: Artifact, trained: Artifact, scores: Artifact
) -> list[dict[str, Any]]:
    """The outputs from the data to the evaluation, in order."""
    evaluated = _made(store, scores)  # whose inputs are whole; a training leaves the test split
    first = [_made(store, pulled), _made(store, validated)]
    return [*first, *_between(store, evaluated), _made(store, trained), evaluated]


def _made(store: Store, artifact: Artifact) -> dict[str, Any]:
    """The record of an output, with what the store knows; DVC may have outputs that it lacks."""
    manifest = store.inspect(artifact.step, artifact.key)[0]
    if manifest.get("digest") != artifact.digest:
        manifest = {"plan": None, "provenance": dict(artifact.provenance)}
    return {
        "step": artifact.step,
        "digest": artifact.digest,
        "key": artifact.key,
        "plan": manifest["plan"],
        "provenance": manifest["provenance"],
    }


def _between(store: Store, output: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The outputs that an output was made from, except those in `KNOWN`; the first made first."""
    for step, digest in (output["plan"] or {"inputs": {}})["inputs"].items():
        if step not in KNOWN:
            source = {"step": step, "digest": digest, "key": None, "plan": None, "provenance": {}}
            if artifact := store.find_digest(step, digest):
                source = _made(store, artifact)
            yield from _between(store, source)
            yield source
