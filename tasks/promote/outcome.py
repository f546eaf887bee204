"""Says what was decided about a model, for the flow and for DVC.

A document is a mapping with `metrics`, the challenger's; `champion`, its `version` and `metrics`,
or None; `decision`, the gate's other facts; `model`, the facts of `promote`; `promote`, whether
the run was to promote the model or only to compare it; and `how` the latter is promoted, if that is
not by `--promote`.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from retrain.registry.packages import VERDICTS
from retrain.registry.versions import Latency
from tasks.data.rules import difference, failures

MARKS = {True: "[green]passed[/]", False: "[red]failed[/]", None: "cannot tell"}


class Verdict(NamedTuple):
    """What became of a model.

    Attributes:
        state: The name of the state in which the run ends: `Promoted`, `Rejected`, `Waiting`;
            `Compared`, if it was not to promote; or `Unchanged`, if the model is the champion.
        sentence: The same for a person, with the reason and what to do.
    """

    state: str
    sentence: str


def rules(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The rules by which a model was judged: the gate's, and that about its latency."""
    return [*document["decision"]["rules"], *document["model"].get("rules", ())]


def precision(training: Mapping[str, Any]) -> str:
    """The precision of a training, by its facts; a user's own function was told it."""
    told = training["numerics"].get("told_precision")
    return f"{told} (as told)" if told else str(training["numerics"]["precision"])


def how_to_review(name: str) -> str:
    """The commands for the version of a model that waits."""
    return f"retrain approve {name} --reason WHY, or retrain reject {name} --reason WHY"


def verdict(document: Mapping[str, Any]) -> Verdict:
    """The decision, and the classes that the champion lacks."""
    decision, model, champion = document["decision"], document["model"], document["champion"]
    name = f"{model['name']} version {model['version']}"
    passed = decision["passed"] and not failures(model.get("rules", ()))
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
        how = how_to_review(model["name"])
        found = Verdict("Waiting", f"{name} passes the gate and waits for approval: {how}.")
    elif not passed:
        found = Verdict("Rejected", f"{name} is rejected: {why}.")
    elif champion is None:
        found = Verdict("Promoted", f"{name} is the first champion.")
    else:
        found = Verdict("Promoted", f"{name} is the {instead}: {why}.")
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
    clause: str = VERDICTS.get(decision["verdict"], decision["verdict"])
    found = decision["comparisons"].get("champion", {}).get("metrics", {})
    for metric in [*found][:1]:  # the first one decides
        clause += f"; {metric} {difference(metric, found[metric])}"
    failed = failures(rules(document))
    if decision["passed"] and not failed:
        return clause
    stays = (
        f"Version {champion['version']} stays the champion"
        if champion
        else "There is no champion yet"
    )
    return f"{failed or clause}. {stays}"


def show(document: Mapping[str, Any]) -> None:
    """Shows the metrics, the champion's beside them, the slices, the rules, and the verdict."""
    from rich.markup import escape

    from retrain.runs import console

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
    for rule in rules(document):
        console.say(f"{MARKS[rule['passed']]}  {escape(rule['rule'])}  (is {rule['value']:.4f})")
    for sentence in document["decision"]["says"]:
        console.say(escape(sentence))
    if measured := document["model"].get("latency"):
        console.say(escape(str(Latency(**measured))))
    console.say(f"\n[bold]{escape(verdict(document).sentence)}[/]")


def slice_row(part: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """A slice of the test images as a row of a table: name, images, accuracy, interval."""
    name = f"{part['column']}: {part['value']}"
    if "from" in part:
        name += f" ({part['from']:.4g} to {part['to']:.4g})"
    images = f"{part['images']:,}" + ("" if part["judged"] else " (too few to judge)")
    return name, images, f"{part['accuracy']:.4f}", f"{part['low']:.4f} to {part['high']:.4f}"
