"""Each run leaves a page: of a training, of refused data, and the history of the workload."""

import json
import re
from pathlib import Path

from flows.pages import publish
from retrain.project import Project
from tasks.data.metrics import wilson
from tests.flows.pages.test_page import HOSTILE, assert_stays_text

LIMIT = 2_000_000  # bytes of a page


def page(clone, name="latest.html"):
    html = (clone.root / "reports" / "vit" / name).read_text(encoding="utf-8")
    assert len(html) < LIMIT
    return html


def test_a_training_shows_why_and_what_it_is_made_of(clone, first):
    html = page(clone, f"{first['run']}.html")
    assert first["look"]["report"] == "reports/vit/latest.html"
    assert "Promoted" in html
    assert first["outcome"] in html
    for section in ("Comparison", "Data", "Checks", "Training", "Model", "Run"):
        assert f'<h2 id="{section.lower()}">{section}</h2>' in html
    assert f"version {first['model']['version']}, this model" in html
    low, high = wilson(round(first["metrics"]["accuracy"] * 360), 360)
    assert f"{low:.4f} to {high:.4f}" in html
    assert 'src="data:image/png;base64,' in html
    assert "confused-0" in html
    assert "6 of 64 images of the first batch." in html
    assert f"retrain reproduce vit@{first['model']['version']}" in html


def test_a_report_can_be_made_again_and_says_what_it_lacks(clone, first):
    file, latest = clone.root / "reports" / "vit" / f"{first['run']}.html", page(clone)
    file.unlink()
    answer = clone.json("report", "vit", "--run", first["run"][:8])
    assert answer == {"report": str(file), "run": first["run"]}
    whole = page(clone, file.name)
    [folder] = [Path(each["path"]) for each in first["steps"] if each["step"] == "evaluate"]
    away = folder.rename(folder.with_suffix(".away"))
    clone.json("report", "vit", "--run", first["run"])
    assert page(clone, file.name) == whole
    file.unlink()
    clone.json("report", "vit", "--run", first["run"])
    away.rename(folder)
    assert "no longer has what these steps have made: evaluate." in page(clone, file.name)
    assert first["outcome"] in page(clone, file.name)
    assert page(clone) == latest
    error = clone.json("report", "vit", "--run", "nothing", code=2)["error"]
    assert "no such run is recorded here" in error


def test_refused_data_has_a_page_with_the_images_and_what_to_do(clone, first):
    latest = page(clone)
    error = clone.json("validate", "vit", "--set", "checks.min_side=9", code=1)["error"]
    assert page(clone) == latest  # which is that of the last training
    html = page(clone, "validate.html")
    assert "Refused" in html
    assert error.splitlines()[0] in html
    assert "retrain validate vit" in html
    assert "images with a side below checks.min_side 9" in html
    assert "expect_" not in html  # as functions of Great Expectations begin
    assert "8 x 8 pixels is too small" in html
    assert html.count('src="data:image/png;base64,') == 6  # of one reason
    [record] = re.findall(r'href="file://([^"]*validation_results[.]json)"', html)
    assert len(json.loads(Path(record).read_text(encoding="utf-8"))) == 3


def test_the_page_of_a_refusal_does_not_show_what_a_later_one_has_found(clone, first):
    latest = clone.root / "reports" / "vit" / "validate.html"
    run = re.search(r"run ([0-9a-f]{8})", latest.read_text(encoding="utf-8"))[1]
    setting = "checks.min_images_per_class=90000"
    error = clone.json("train", "vit", "--set", setting, code=1)["error"]
    assert "Refused" in page(clone)
    assert "What was made is kept" in page(clone)
    assert error.splitlines()[1] in page(clone)
    next(latest.parent.glob(f"{run}*.html")).unlink()
    html = Path(clone.json("report", "vit", "--run", run)["report"]).read_text(encoding="utf-8")
    assert "8 x 8 pixels is too small" in html  # its own message
    assert '<h2 id="checks">' not in html


def test_a_failed_run_without_steps_has_a_page_that_says_what_to_do(clone, first, tmp_path):
    (tmp_path / "broken.parquet").write_bytes(b"no images")
    error = clone.json("drift", "vit", "--input", str(tmp_path), code=2)["error"]
    html = page(clone, "drift.html")
    assert "Failed" in html
    assert error in html
    assert "retrain drift vit" in html
    assert re.search(r"[.]retrain/logs/[0-9]+-[0-9]+-drift-vit[.]log", html)


def test_a_report_that_cannot_be_written_is_said_and_the_run_goes_on(clone, first):
    latest = clone.root / "reports" / "vit" / "validate.html"
    latest.unlink(missing_ok=True)
    latest.mkdir()
    try:
        done = clone.retrain("validate", "vit", "--run")
    finally:
        latest.rmdir()
    assert "The report of the run could not be made" in done.stdout
    assert clone.retrain("validate", "vit", "--run").returncode == 0


def test_a_model_that_is_compared_shows_the_difference_and_the_images_and_escapes_all(clone, first):
    document = clone.train("--set", "train.seed=3", "--set", "train.epochs=3")
    html = page(clone)
    assert "Compared" in html
    compared = document["decision"]["comparisons"]["champion"]["metrics"]["accuracy"]
    assert f"{compared['low']:+.4f} to {compared['high']:+.4f}" in html
    assert "Right only in" in html
    assert "Since version 1" in html

    comment = clone.retrain("report", "vit", "--markdown").stdout
    [rule] = document["decision"]["rules"]
    assert comment.startswith("### vit: Compared\n")
    assert rule["says"] in comment
    assert "| champion, version 1 | 1,237 | 200 | 360 | 0 |" in comment
    gained = document["metrics"]["accuracy"] - first["metrics"]["accuracy"]
    assert f" | {gained:+.4f} |\n" in comment
    assert re.search(r"[|] \d [|] 1\d\d [|] 1\d\d [|] 0[.]\d+ [|] [01][.]\d+ [|]", comment)

    content = publish.content(Project(clone.root), document)  # with hostile names in their place
    harmless, hostile = (
        publish.render("run.html", with_texts(content, text)) for text in ("harmless", HOSTILE)
    )
    assert_stays_text(harmless, hostile)


KEPT = {"flow", "style", "type", "time", "thumbnail"}  # what a template compares or reads


def with_texts(value, text, kept=KEPT):
    """A content whose texts are all another one, but for those that are no texts of people."""
    if isinstance(value, dict):
        return {key: of if key in kept else with_texts(of, text, kept) for key, of in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(with_texts(of, text, kept) for of in value)
    return text if isinstance(value, str) else value
