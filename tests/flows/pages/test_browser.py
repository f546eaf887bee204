"""Pages in a real browser: no request, no error, nothing that a screen reader stumbles over."""

import shutil
import subprocess
import tarfile

import pytest

from tests.browser import opened
from tests.flows.pages.test_page import pages_with

pytestmark = pytest.mark.slow


def narrow(tab):
    """Makes a tab as narrow as a phone."""
    metrics = {"width": 420, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    tab.call("Emulation.setDeviceMetricsOverride", **metrics)


def test_the_pages_of_runs_load_without_a_network_and_lead_to_images(clone, first, tmp_path):
    folder = clone.root / "reports" / "vit"
    with opened(tmp_path) as tab:
        for file in [*sorted(folder.glob("*.html")), folder / f"{first['run']}.html"]:
            tab.open(file)
            assert tab.faults == [], file
        assert not tab.evaluate("document.querySelector('details:has(#confused-0)').open")
        tab.evaluate("document.querySelector('a[href=\"#confused-0\"]').click()")
        tab.evaluate("new Promise(done => setTimeout(done, 300))")
        assert tab.evaluate("document.querySelector('details:has(#confused-0)').open")


def test_a_page_with_long_names_fits_a_phone(tmp_path):
    file = tmp_path / "page.html"
    with opened(tmp_path / "profile") as tab:
        narrow(tab)
        for html in pages_with("x" * 300):
            file.write_text(html, encoding="utf-8")
            tab.open(file)
            assert tab.evaluate("document.documentElement.scrollWidth") <= 420


# The words that are drawn on two lines, or beyond the window; all that a page has is shown first.
BROKEN_WORDS = r"""(() => {
  document.querySelectorAll("details").forEach(each => each.open = true)
  const found = [], texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT)
  while (texts.nextNode()) {
    const text = texts.currentNode, range = document.createRange()
    if (text.parentElement.closest("title, .skip, .hidden, .path")) continue
    for (const word of text.data.matchAll(/[^\s\/-]+/g)) {
      range.setStart(text, word.index)
      range.setEnd(text, word.index + word[0].length)
      const [first, ...more] = range.getClientRects()
      if (more.length || first?.right > innerWidth || first?.left < 0) found.push(word[0])
    }
  }
  return found
})()"""


def test_a_phone_breaks_no_word_of_the_report_and_cuts_none(clone, first, tmp_path):
    clone.train("--set", "train.seed=5", "--set", "train.epochs=3")  # beside the champion
    folder = clone.root / "reports" / "vit"
    with opened(tmp_path) as tab:
        narrow(tab)
        for name in (f"{first['run']}.html", "latest.html"):
            tab.open(folder / name)
            assert tab.evaluate(BROKEN_WORDS) == [], name


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(clone, first, tmp_path, tmp_path_factory, scheme):
    axe = _axe(tmp_path_factory.mktemp("axe"))
    with opened(tmp_path) as tab:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        tab.call("Emulation.setEmulatedMedia", features=features)
        tab.open(clone.root / "reports" / "vit" / f"{first['run']}.html")
        tab.evaluate(axe)
        found = tab.evaluate("axe.run().then(result => result.violations)")
    serious = [one for one in found if one["impact"] in ("serious", "critical")]
    assert serious == []


def _axe(folder):
    """The code of axe-core, from npm."""
    if shutil.which("npm") is None:
        pytest.skip("there is no npm here")
    done = subprocess.run(
        ["npm", "pack", "axe-core@4"], cwd=folder, capture_output=True, text=True, timeout=120
    )
    if done.returncode:
        pytest.skip("axe-core cannot be fetched here")
    with tarfile.open(folder / done.stdout.split()[-1]) as tar:
        return tar.extractfile("package/axe.min.js").read().decode()
