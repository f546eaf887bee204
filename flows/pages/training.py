"""The page of a training, from the document of its run and the files of its steps."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flows.pages import answers, charts, data
from flows.pages.blocks import (
    Block,
    Cell,
    Columns,
    Command,
    Details,
    Heading,
    Page,
    Section,
    Summary,
    Table,
    Text,
    Verdict,
    cells,
)  # fmt: skip
from flows.pages.charts import Interval, Line, Point
from flows.pages.files import Files, files_of
from retrain.messages import local_time
from retrain.params import workload_names
from retrain.project import Project
from retrain.runs import console
from retrain.runs.records import Document
from retrain.step import REPORT
from tasks.data.image_table import SPLITS
from tasks.data.metrics import wilson
from tasks.promote import outcome

MAX_DRAWN_CLASSES = 20
LOOKS = {"Promoted": ("✓", "good"), "Rejected": ("✗", "bad"), "Waiting": ("…", "wait")}
MAX_SENTENCES = 5  # on top of the page
MARKS = {True: Cell("✓", "good"), False: Cell("✗", "bad"), None: Cell("?", "muted")}
CURVES = {
    "Loss": ("train_loss", "val_loss"),
    "Accuracy": ("train_accuracy", "val_accuracy"),
    "Learning rate": ("lr",),
    "Images per second": ("images_per_second",),
}


def page_of(project: Project, document: Document) -> Page:
    """The page of a run, whether it ended well or failed at any step.

    Args:
        project: The clone.
        document: As `flows.reports.training.TrainingReport` makes it.
    """
    files, verdict = files_of(project, document), _verdict(document)
    has_answers = files.has("evaluate", "preprocess")
    sections = [
        Section("Comparison", list(_comparison(document, files)) if document["metrics"] else []),
        *data.sections(project, document, files),
        Section("Training", list(_training(files)) if files.has("train") else []),
        Section("Model", answers.blocks(files) if has_answers else []),
        Section("Run", list(run_blocks(project, document, files))),
    ]
    run, name = document["run"][:8], document["workload"]
    return Page(
        title=f"{name}: {verdict.name}",
        origin=f"{name} · run {run} · {local_time(document['time'])}",
        verdict=verdict,
        top=list(_top(project, document, files)),
        sections=[section for section in sections if section.blocks],
    )


def _verdict(document: Document) -> Verdict:
    if "error" in document:
        return failed_verdict(document)
    state = outcome.verdict(document).state
    return Verdict(state, document["outcome"], *LOOKS.get(state, ("=", "muted")))


def _top(project: Project, document: Document, files: Files) -> Iterator[Block]:
    """What one sees in five seconds: why, and what is served after the run."""
    if "error" in document:
        yield from failure(project, document)
    yield from gone(files)
    facts = [("Served after this run", _served(document))]
    if rows := document["data"]["rows"]:
        counts = ", ".join(f"{rows[split]:,} {split}" for split in SPLITS)
        facts.append(("Images", counts))
    facts.append(("Data version", document["data"]["version"][:12]))
    if latency := (document["model"] or {}).get("latency"):
        facts.append(("One image takes", f"{latency['p50']:.1f} ms ({latency['device']})"))
    yield Summary(facts)
    if document["decision"] is None or document["model"] is None:
        return
    yield from _differences(document["decision"], files)
    rules = [
        (Cell(rule["rule"]), MARKS[rule["passed"]], Cell(f"is {console.number(rule['value'])}"))
        for rule in outcome.rules(document)
    ]
    if rules:
        yield Table("The rules of the gate", rules, numbers=frozenset({2}))
    sentences = [Text(sentence) for sentence in document["decision"]["says"]]
    yield from sentences[:MAX_SENTENCES]
    if more := sentences[MAX_SENTENCES:]:  # there may be one for each class
        yield Details(f"{len(more):,} more findings", more)


def failed_verdict(document: Document) -> Verdict:
    """Whether the data of a run that failed was refused, or the run broke off."""
    if document.get("refused"):  # documents of earlier versions do not say it
        return Verdict("Refused", "The data does not pass its checks.", "✗", "bad")
    return Verdict("Failed", "The run failed.", "✗", "bad")


def failure(project: Project, document: Document) -> list[Block]:
    """What failed in a run, what to do about it, and where its log is."""
    name = document["workload"]
    entry = name if name in workload_names(project.params) else f"ENTRY --as {name}"
    command = document.get("command") or f"retrain {document['flow']} {entry}"
    shown: list[Block] = [Text(document["error"], "error")]
    if steps := [step["step"] for step in document.get("steps", ())]:
        kept = "What was made is kept, and the same command goes on there."
        shown.append(Text(f"It ended after the step {steps[-1]}. {kept}"))
    shown.append(Command("When the cause is gone, with the options of this run", command))
    if log := document.get("log"):
        shown.append(Command("Its log, with what the libraries have told", log))
    return shown


def gone(files: Files) -> Iterator[Block]:
    """What a page lacks because outputs of the run are no longer in the store."""
    if missing := ", ".join(files.missing()):
        yield Text(
            f"The store no longer has what these steps have made: {missing}. "
            "What was shown of it is left out.",
            "wait",
        )


def _served(document: Document) -> str:
    """What is served after the run; a run that failed has not changed it."""
    if document["promoted"]:
        return f"version {document['model']['version']}, this model"
    if champion := document["champion"]:
        return f"version {champion['version']}"
    return "what was before" if "error" in document else "nothing"


def _differences(decision: Mapping[str, Any], files: Files) -> Iterator[Block]:
    """The differences that decide, with their intervals, against zero and the margin."""
    rows = [
        interval(f"{metric} against {opponent} {found['version']}", values)
        for opponent, found in decision["comparisons"].items()
        for metric, values in found["metrics"].items()
    ]
    if not rows:
        return
    margin = 0.0
    if files.has("compare_champion"):
        margin = files.manifest("compare_champion")["plan"]["config"]["gate.margin"]
    yield differences(rows, margin)


def interval(label: str, values: Mapping[str, Any]) -> Interval:
    """A difference with its interval, to be drawn."""
    difference, low, high = (values[name] for name in ("difference", "low", "high"))
    return Interval(label, difference, low, high, f"{difference:+.4f} ({low:+.4f} to {high:+.4f})")


def differences(rows: Sequence[Interval], margin: float = 0.0) -> Block:
    """A picture of differences with their intervals, against zero and a margin."""
    ends = [abs(end) for row in rows for end in (row.low, row.high) if end is not None]
    reach = 1.15 * max(*ends, margin, 1e-6)
    legend = "The dot is the measured difference, and the line its interval. Grey is no difference"
    lines = [Line(0.0, "no difference", "zero")]
    if margin:
        lines.append(Line(-margin, f"the margin, {margin:g}", "bound"))
        legend += "; the dashed red line is the margin by which a model may seem worse"
    description = "Differences with their intervals"
    return charts.intervals(
        description, rows, (-reach, reach), "+.3f", lines, f"{legend}.", dots=True
    )


def _comparison(document: Document, files: Files) -> Iterator[Block]:
    scores, decision = document["metrics"], document["decision"] or {}
    champion = document["champion"] or {"version": None, "metrics": {}}
    compared = decision.get("comparisons", {}).get("champion", {}).get("metrics", {})
    decides = next(iter(compared), None)
    rows = []
    for name in (name for name in scores if name != "rows"):
        opponent, found = champion["metrics"].get(name), compared.get(name)
        interval = f"{found['low']:+.4f} to {found['high']:+.4f}" if found else ""
        style = "strong" if name == decides else ""
        texts = (
            name,
            console.number(scores[name]),
            console.number(opponent),
            "" if opponent is None else f"{scores[name] - opponent:+.4f}",
            interval,
        )
        rows.append([Cell(text, style) for text in texts])
    title = f"champion, version {champion['version']}" if champion["version"] else "champion"
    caption = f"On {scores['rows']:,} test images" + (f"; {decides} decides" if decides else "")
    names = ("metric", "this model", title, "difference", "interval")
    yield Table(caption, rows, names, frozenset({1, 2, 3, 4}))
    if slices := decision.get("slices"):
        yield Heading("Slices of the test images, the worst first")
        yield _slices(slices)
    if files.has("evaluate"):
        yield from _classes(files.json("evaluate", "per_class.json"))
    if files.has("evaluate", "evaluate_champion", "preprocess"):
        yield from answers.disagreements(files)


def _slices(slices: Sequence[Mapping[str, Any]]) -> Block:
    rows = []
    for row in sorted(slices, key=lambda row: float(row["accuracy"])):
        name, images, accuracy, interval = outcome.slice_row(row)
        text = f"{accuracy} ({interval}) of {images} images"
        rows.append(Interval(name, row["accuracy"], row["low"], row["high"], text))
    return charts.intervals("Accuracy of each slice with its 95 % interval", rows, (0.0, 1.0))


def _classes(classes: Sequence[Mapping[str, Any]]) -> Iterator[Block]:
    worst = sorted(classes, key=lambda row: float(row["recall"]))[:MAX_DRAWN_CLASSES]
    rows = []
    for row in worst:
        low = high = None
        if images := row["rows"]:
            low, high = wilson(round(row["recall"] * images), images)
        text = f"{row['recall']:.1%} of {images:,} images"
        rows.append(Interval(row["label"], row["recall"], low, high, text))
    yield Heading("Recall of the classes, the worst first")
    yield charts.intervals("Recall of each class with its 95 % interval", rows, (0.0, 1.0))
    if more := len(classes) - len(worst):
        yield Text(f"{more:,} classes with a higher recall are left out.", "muted")


def _training(files: Files) -> Iterator[Block]:
    history = files.json("train", f"{REPORT}/history.json")
    facts = files.manifest("train")["facts"]
    kept, epochs = facts["best_epoch"], [row["epoch"] for row in history]
    yield Text(
        f"Best epoch {kept} of {len(history)}; {facts['parameters']:,} parameters, "
        f"{outcome.precision(facts)}, batches of {facts['batch_size']}.",
        "muted",
    )
    labels = [(value, f"{value:g}") for value in charts.ticks(epochs[0], epochs[-1], whole=True)]
    pictures: list[Block] = []
    for title, names in CURVES.items():
        lines = [(name, points) for name in names if (points := _points(history, name, kept))]
        if lines:
            mark = Line(kept, f"epoch {kept}", "zero")
            pictures.append(charts.curves(title, lines, labels, mark))
    yield Columns(pictures)
    yield Text(f"By epoch. The vertical line is epoch {kept}, whose weights were kept.", "muted")
    columns = list(dict.fromkeys(name for row in history for name in row))
    rows = [cells(*(console.number(row.get(name)) for name in columns)) for row in history]
    table = Table("All epochs", rows, columns, frozenset(range(len(columns))))
    yield Details("All epochs as a table", [table])


def _points(history: Sequence[Mapping[str, Any]], name: str, kept: int) -> list[Point]:
    return [
        Point(
            row["epoch"],
            row[name],
            f"epoch {row['epoch']}: {name} {console.number(row[name])}",
            marked=row["epoch"] == kept,
        )
        for row in history
        if row.get(name) is not None
    ]


def run_blocks(project: Project, document: Document, files: Files) -> Iterator[Block]:
    """The steps of a run and why each ran, the machine, and how to have its model again."""
    steps = [
        cells(
            step["step"], "cached" if step["cached"] else "ran", f"{step['seconds']:.1f}",
            step["why"],
        )
        for step in document["steps"]
    ]  # fmt: skip
    yield Table("Steps", steps, ("step", "result", "seconds", "why"), frozenset({2}))
    name = document["workload"]
    if model := document.get("model"):
        version = f"{name}@{model['version']}"
        yield Command("Trains it again, and proves that the weights are the same",
                      f"retrain reproduce {version}")  # fmt: skip
        yield Command("Its data, its commit and its parameters", f"retrain lineage {version}")
    if document.get("promoted") and document["champion"]:
        yield Command("Has the champion before serve again",
                      f"retrain rollback {name} --reason WHY")  # fmt: skip
    made = [files.manifest(step)["provenance"] for step in ("train", "validate") if files.has(step)]
    if made:
        yield _machine(made[0])
    places = [
        (Cell(step), Cell(f"{step}/{folder.name[:12]}…", link=folder.as_uri()))
        for step, folder in files.folders.items()
    ]
    if run := document["look"].get("MLflow run"):
        places.append((Cell("MLflow run"), Cell(run)))
    if places:
        yield Table("Where the results are", places)


def _machine(provenance: Mapping[str, Any]) -> Block:
    machine = provenance["machine"]
    return Table(
        "Machine and code",
        [
            cells("processor", machine["processor"]),
            cells("cores", machine["cores"]),
            cells("memory", f"{machine['memory_gb']} GB"),
            cells("accelerators", ", ".join(machine["accelerators"]) or "none"),
            cells("commit", provenance["commit"] or "unknown"),
            cells("uncommitted changes", "yes" if provenance["uncommitted"] else "no"),
        ],
    )
