"""Each run leaves a page: of a training, of refused data, and the history of the workload."""

import pytest

from tests.browser import opened

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
    for section in ("Comparison", "Data", "Training", "Model", "Run"):
        assert f'<h2 id="{section.lower()}">{section}</h2>' in html
    assert f"served after this run: version {first['model']['version']}, this model" in html
    assert 'src="data:image/png;base64,' in html
    assert "confused-0" in html
    assert f"retrain reproduce vit@{first['model']['version']}" in html


def test_a_report_can_be_made_again_and_is_found_by_its_run(clone, first):
    file = clone.root / "reports" / "vit" / f"{first['run']}.html"
    file.unlink()
    latest = page(clone)
    answer = clone.json("report", "vit", "--run", first["run"][:8])
    assert page(clone) == latest
    assert answer == {"report": str(file), "run": first["run"]}
    assert first["outcome"] in file.read_text(encoding="utf-8")
    error = clone.json("report", "vit", "--run", "nothing", code=2)["error"]
    assert "no such run is recorded here" in error


def test_refused_data_has_a_page_that_says_what_to_do(clone, first):
    refused = ["--set", "checks.min_images_per_class=100000"]
    error = clone.json("validate", "vit", *refused, code=1)["error"]
    html = page(clone)
    assert "Failed" in html
    assert error.splitlines()[0] in html
    assert "retrain validate vit" in html


def test_a_model_that_is_compared_shows_the_difference_and_the_images(clone, first):
    document = clone.train("--set", "train.seed=3", "--set", "train.epochs=3")
    html = page(clone)
    assert "Compared" in html
    compared = document["decision"]["comparisons"]["champion"]["metrics"]["accuracy"]
    assert f"{compared['low']:+.4f} to {compared['high']:+.4f}" in html
    assert "Right only in" in html
    assert "Since version 1" in html
    assert f'href="{document["run"]}.html"' in page(clone, "index.html")


@pytest.mark.slow
def test_the_pages_of_runs_load_without_a_fault(clone, first, tmp_path):
    with opened(tmp_path) as tab:
        for file in sorted((clone.root / "reports" / "vit").glob("*.html")):
            tab.open(file)
            assert tab.faults == [], file
