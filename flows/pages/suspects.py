"""The pages of listed images: what is suspect in the data, and what to label next."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from flows.pages import thumbnails
from flows.pages.blocks import (
    Block,
    Command,
    Gallery,
    Page,
    Picture,
    Section,
    Summary,
    Text,
    Verdict,
)
from flows.pages.files import files_of
from flows.pages.training import failure, gone, run_blocks
from flows.pages.without_training import page_of_run, title_of
from retrain.project import Project
from retrain.runs.records import Document
from retrain.store import Store
from tasks.data import listed
from tasks.data.listed import CONTRADICTION, OUTLIER, TO_LABEL
from tasks.suspects.step import COUNTS

STEP = "find_suspects"
MAX_SHOWN = 200  # pictures of a gallery
KINDS = {  # why an image is listed: the title of the gallery, and what it shows
    "wrong_labels": (
        "Labels that are probably wrong",
        "A classifier that has not seen the label of these images finds it so improbable that half "
        "of these labels or more should be wrong. The most improbable first.",
    ),
    "contradictions": (
        "Near-duplicates with different labels",
        "Each looks like another image that has another label.",
    ),
    "outliers": (
        "Outliers",
        "They are far from the images of every class. The farthest first.",
    ),
}


def page_of(project: Project, document: Document) -> Page:
    """The page of a run of the flow `suspects`, which may have failed."""
    files = files_of(project, document)
    run = Section("Run", list(run_blocks(project, document, files)))
    name, facts = document["workload"], document["suspects"]
    if facts is None:
        verdict = Verdict("Failed", "The run failed.", "✗", "bad")
        return page_of_run(document, name, verdict, failure(project, document), [run])
    verdict = Verdict(
        "Suspects",
        document["outcome"],
        "●",
        "wait" if any(facts[kind] for kind in KINDS) else "good",
    )
    top: list[Block] = [
        Summary([("Images", f"{facts['rows']:,}"), ("Model", title_of(document["model"]))]),
        *how_to_correct(document),
        *gone(files),
    ]
    sections = [run]
    if files.has(STEP):
        pictures = _pictures(listed.read(files.folders[STEP]))
        found = [_gallery(kind, facts, pictures[COUNTS[kind]]) for kind in KINDS if facts[kind]]
        sections = [*found, run]
    return page_of_run(document, name, verdict, top, sections)


def selection(project: Project, document: Document) -> Page:
    """The page of a run of the flow `select`."""
    verdict = Verdict("Selected", document["outcome"], "●", "good")
    facts = [("Input", document["input"]), ("Model", title_of(document["model"]))]
    folder = Store.of(project).runs.temporary(document["run"])
    pictures = [_picture(row) for row in islice(listed.read(folder), MAX_SHOWN)]
    shown = Text(f"{len(pictures):,} pictures of {document['chosen']:,} images.", "muted")
    meaning = Text(
        "The model is unsure of them, they are new, and they differ from each other. The most "
        "useful first."
    )
    sections = [Section("What to label next", [meaning, shown, Gallery(pictures)])]
    top = [Summary(facts), *how_to_correct(document)]
    return page_of_run(document, document["workload"], verdict, top, sections)


def how_to_correct(document: Document) -> Iterator[Block]:
    """What to do with the lists."""
    look, name = document["look"], document["workload"]
    yield Text(
        f"All of them are in {look['csv']}, and as tasks for Label Studio in {look['tasks']}."
    )
    yield Command(
        "Takes over the labels that were put into the column `corrected`, or an export of Label "
        "Studio",
        f"retrain labels import {name} {look['csv']}",
    )


def _pictures(rows: Iterator[dict[str, Any]]) -> Mapping[str, list[Picture]]:
    """The first pictures of each kind; a near-duplicate beside the image that it looks like."""
    shown: dict[str, list[Picture]] = defaultdict(list)
    pairs: dict[str, dict[str, Any]] = {}
    for row in rows:
        for kind in row["why"].split("; "):
            if kind == CONTRADICTION:
                other = pairs.get(row["look_alike"])
                if other is None:
                    pairs[row["path"]] = row
                elif len(shown[kind]) < MAX_SHOWN:
                    shown[kind].append(_picture(other, row))
            elif len(shown[kind]) < MAX_SHOWN:
                shown[kind].append(_picture(row))
    return shown


def _picture(*rows: Mapping[str, Any]) -> Picture:
    lines = []
    for row in rows:
        label, split = row["label"], row["split"]
        sure = f"{row['confidence']:.0%} sure" + (f", {split}" if split else "")
        lines.append(
            Text(f"{label} → {row['proposed']}", "bad") if label else Text(row["proposed"])
        )
        lines.append(Text(sure, "muted"))
        if row["why"] in (OUTLIER, TO_LABEL):
            lines.append(Text(f"{row['distance']:.1f} times the usual distance", "muted"))
        lines.append(Text(row["path"], "path"))
    images = [thumbnails.of_encoded(row["image"], row["path"]) for row in rows]
    return Picture(images, lines)


def _gallery(kind: str, facts: Mapping[str, Any], pictures: list[Picture]) -> Section:
    title, meaning = KINDS[kind]
    shown = Text(f"{len(pictures):,} pictures of {facts[kind]:,} images.", "muted")
    return Section(title, [Text(meaning), shown, Gallery(pictures)])
