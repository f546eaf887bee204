"""Says what was decided about a model, for the flow and for DVC.

A document is a mapping with `metrics`, the challenger's; `champion`, its `version` and `metrics`,
or None; `decision`, the gate's other facts; `model`, the facts of `promote`; `promote`, whether
the run was to promote the model or only to compare it; and `how` the latter is promoted, if that is
not by `--promote`.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from retrain.registry.model_card import VERDICTS
from retrain.registry.versions import Latency

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
    return f"told {told}" if told else str(training["numerics"]["precision"])


def _passed(document: Mapping[str, Any]) -> bool:
    """Whether a model may be promoted, if nobody is against it."""
    latency_rules = document["model"].get("rules", ())
    return bool(document["decision"]["passed"]) and not _failed(latency_rules)


def _failed(judged: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The rules that failed; one that too few images were there for is none of them."""
    return [rule for rule in judged if rule["passed"] is False]


def verdict(document: Mapping[str, Any]) -> Verdict:
    """The decision, and the classes that the champion lacks."""
    state, sentence = _verdict(document)
    new = document["decision"].get("new_classes", ())  # not in the records of older versions
    classes = ", ".join(
        f"{row['label']} ({row['rows']} test images, recall {row['recall']:.2f})" for row in new
    )
    return Verdict(state, sentence + (f" New classes: {classes}." if new else ""))


def _verdict(document: Mapping[str, Any]) -> tuple[str, str]:
    decision, model, champion = document["decision"], document["model"], document["champion"]
    name = f"{model['name']} version {model['version']}"
    if decision["verdict"] == "champion already":
        return "Unchanged", f"This model is already the champion, {name}."
    if not document["promote"]:
        return "Compared", f"{name} {_compared(document)}."
    if why := model.get("withheld"):
        return "Rejected", f"{name} is not promoted: {why}; it is promoted only with --promote."
    if model.get("waiting"):
        how = how_to_review(model["name"])
        return "Waiting", f"{name} passes the gate and waits for approval: {how}."
    if not _passed(document):
        return "Rejected", f"{name} is rejected: {_why_rejected(document)}."
    if champion is None:
        return "Promoted", f"{name} is the first champion."
    instead = f"in place of version {champion['version']}"
    return "Promoted", f"{name} is the new champion, {instead}: {_why_promoted(decision)}."


def _why_promoted(decision: Mapping[str, Any]) -> str:
    """The verdict of the gate, and the difference that it rests on."""
    why: str = VERDICTS.get(decision["verdict"], decision["verdict"])
    found = decision["comparisons"].get("champion", {}).get("metrics", {})
    for metric, values in found.items():  # the first one decides
        interval = f"between {values['low']:+.4f} and {values['high']:+.4f}"
        return f"{why} ({metric} {values['difference']:+.4f}, {interval})"
    return why


def how_to_review(name: str) -> str:
    """The commands for the version of a model that waits."""
    return f"retrain approve {name} --reason WHY, or retrain reject {name} --reason WHY"


def _compared(document: Mapping[str, Any]) -> str:
    """Says what the gate would do with a model that the run did not promote."""
    if not _passed(document):
        return f"would be rejected: {_why_rejected(document)}"
    champion = document["champion"]
    new = f"new champion, in place of version {champion['version']}" if champion else None
    how = document.get("how", "add --promote to promote it")
    return f"would be the {new or 'first champion'}; {how}"


def _why_rejected(document: Mapping[str, Any]) -> str:
    """The rules that failed, and which version is champion."""
    champion, verdict = document["champion"], document["decision"]["verdict"]
    reasons = "; ".join(
        rule.get("says") or f"{rule['rule']} fails with {rule['value']:.4f}"
        for rule in _failed(rules(document))
    )
    stays = (
        f"Version {champion['version']} stays the champion"
        if champion
        else "There is no champion yet"
    )
    return f"{reasons or VERDICTS.get(verdict, verdict)}. {stays}"


def show(document: Mapping[str, Any]) -> None:
    """Shows the metrics, the champion's beside them, the slices, the rules, and the verdict."""
    from rich.markup import escape

    from retrain.runs import console

    champion = document["champion"] or {"version": None, "metrics": {}}
    version = f" (version {champion['version']})" if champion["version"] else ""
    console.say_table(
        ("metric", "this model", f"champion{version}"),
        [
            (metric, console.number(value), console.number(champion["metrics"].get(metric)))
            for metric, value in document["metrics"].items()
        ],
    )
    # Not in the records of older versions, like the sentences below.
    if slices := document["decision"].get("slices"):
        console.say_table(
            ("slice", "images", "accuracy", "95 % interval"), [*map(slice_row, slices)]
        )
    for rule in rules(document):
        console.say(f"{MARKS[rule['passed']]}  {escape(rule['rule'])}  (is {rule['value']:.4f})")
    for sentence in document["decision"].get("says", ()):
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
