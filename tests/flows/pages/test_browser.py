"""Pages in a real browser that is as narrow as a phone."""

import pytest

from tests.browser import opened
from tests.flows.pages.test_page import pages_with

pytestmark = pytest.mark.slow


def narrow(tab):
    """Makes a tab as narrow as a phone."""
    metrics = {"width": 420, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    tab.call("Emulation.setDeviceMetricsOverride", **metrics)


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
    folder = clone.root / "reports" / "vit"
    with opened(tmp_path) as tab:
        clone.train("--set", "train.seed=5", "--set", "train.epochs=3")  # beside the champion
        narrow(tab)
        for name in (f"{first['run']}.html", "latest.html"):
            tab.open(folder / name)
            assert tab.evaluate(BROKEN_WORDS) == [], name
