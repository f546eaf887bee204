"""Says what was decided about a model, for the flow and for DVC.

A document is a mapping with `metrics`, the challenger's; `champion`, its `version` and `metrics`,
or None; `decision`, the gate's other facts; `model`, the facts of `promote`; `promote`, whether
the run was to promote the model or only to compare it; and `how` the latter is promoted, if that is
not by `--promote`.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from retrain.registry.versions import Latency

MARKS = {True: "[green]passed[/]", False: "[red]failed[/]", None: "cannot tell"}


def rules(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The rules by which a model was judged: the gate's, and that about its latency."""
    return [*document["decision"]["rules"], *document["model"].get("rules", ())]


def precision(training: Mapping[str, Any]) -> str:
    """The precision of a training, by its facts; a user's own function was told it."""
    told = training["numerics"].get("told_precision")
    return f"told {told}" if told else str(training["numerics"]["precision"])


def passed(document: Mapping[str, Any]) -> bool:
    """Whether a model may be promoted, if nobody is against it."""
    latency_rules = document["model"].get("rules", ())
    return bool(document["decision"]["passed"]) and failed(latency_rules) == []


def failed(judged: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The rules that failed; one that too few images were there for is none of them."""
    return [rule for rule in judged if rule["passed"] is False]


def verdict(document: Mapping[str, Any]) -> str:
    """The decision about the model, and the classes that the champion does not know."""
    new = document["decision"].get("new_classes", ())  # not in the records of older versions
    classes = ", ".join(
        f"{row['label']} ({row['rows']} test images, recall {row['recall']:.2f})" for row in new
    )
    return _verdict(document) + (f" New classes: {classes}." if new else "")


def _verdict(document: Mapping[str, Any]) -> str:
    decision, model, champion = document["decision"], document["model"], document["champion"]
    if decision["verdict"] == "champion already":
        return f"This very model is the champion already (version {champion['version']})."
    name = f"{model['name']} version {model['version']}"
    if not document["promote"]:
        return f"{name} {compared(document)}."
    if why := model.get("withheld"):
        return f"{name} is not promoted: {withheld(why)}."
    if model.get("waiting"):
        return f"{name} {waits(document)}."
    if not passed(document):
        return f"{name} is rejected {why_rejected(document)}."
    if decision["verdict"] == "repackaged":
        return (
            f"{name}, the training of version {champion['version']} in a new package, is the "
            "champion now."
        )
    over = f" over version {champion['version']}" if champion else ": the first"
    return f"{name} is the champion now{over}."


def withheld(why: str) -> str:
    """Why a version that passed the gate was not promoted, and what would promote it."""
    return f"{why}; it is promoted only with --promote"


def waits(document: Mapping[str, Any]) -> str:
    """Says what a person has to do about a version that passed."""
    return f"passes and waits for approval: {how_to_review(document['model']['name'])}"


def how_to_review(name: str) -> str:
    """The commands for the version of a model that waits."""
    return f"retrain approve {name} --reason WHY, or retrain reject {name} --reason WHY"


def compared(document: Mapping[str, Any]) -> str:
    """Says what the gate would do with a model that the run did not promote."""
    if not passed(document):
        return f"would be rejected {why_rejected(document)}"
    champion = document["champion"]
    place = f"champion over version {champion['version']}" if champion else "first champion"
    how = document.get("how", "add --promote to promote it")
    return f"would be the {place}; {how}"


def why_rejected(document: Mapping[str, Any]) -> str:
    """The rules that failed, and which version is champion."""
    champion, decision = document["champion"], document["decision"]
    reasons = "; ".join(
        rule.get("says") or f"{rule['rule']} is {rule['value']:.4f}"
        for rule in failed(rules(document))
    )
    reasons = reasons or decision["verdict"]
    stays = f"version {champion['version']} stays champion" if champion else "there is no champion"
    return f"({reasons}); {stays}"


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
    console.say(f"\n[bold]{escape(verdict(document))}[/]")


def slice_row(part: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """A slice of the test images as a row of a table: name, images, accuracy, interval."""
    name = f"{part['column']}: {part['value']}"
    if "from" in part:
        name += f" ({part['from']:.4g} to {part['to']:.4g})"
    images = f"{part['images']:,}" + ("" if part["judged"] else " (too few to judge)")
    return name, images, f"{part['accuracy']:.4f}", f"{part['low']:.4f} to {part['high']:.4f}"
