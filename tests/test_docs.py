"""The documentation: its links, its generated pages, and every command that it shows."""

import os
import re
import shlex
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from cyclopts import MissingArgumentError

from retrain.cli import main  # noqa: F401  which adds the commands to `app`
from retrain.cli.command import app
from scripts import reference

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# A block of commands. A comment above it names the test that runs it, or says what it needs.
BLOCK = re.compile(r"(?:<!-- (?P<elsewhere>[^>]*) -->\n)?```sh\n(?P<lines>.*?)```", re.DOTALL)
COMMAND = re.compile(r"`(retrain [^`]*)`|^(retrain .*)$", re.MULTILINE)
USAGE = re.compile(r"```console\n.*?```", re.DOTALL)  # in a generated page
# What the text leaves to the reader, and what stands for it here.
PLACEHOLDERS = {"VERSION": "3", "ID": "0a1b", "…": "train.lr=1"}


@pytest.mark.parametrize("name", reference.pages())
def test_a_generated_file_is_what_the_code_says(name):
    assert (ROOT / name).read_text(encoding="utf-8") == reference.pages()[name], "call: make docs"


def shown_commands() -> list[tuple[str, str]]:
    """Each command line of `retrain` in the pages, with the page's name."""
    found = []
    for page in PAGES:
        text = USAGE.sub("", page.read_text(encoding="utf-8"))
        for inline, line in COMMAND.findall(text):
            command = re.sub(r"\s+(# |> ).*", "", inline or line)
            found.append((page.name, command.replace("\n", " ")))
    return sorted(set(found))


@pytest.mark.parametrize(("page", "command"), shown_commands())
def test_a_command_that_a_page_shows_exists(page, command):
    """Its name, its options and the kinds of their values; what it names need not be there."""
    words = shlex.split(command.removeprefix("retrain "))
    words = [PLACEHOLDERS.get(word, word) for word in words if word not in ("--json", "--debug")]
    with suppress(MissingArgumentError):  # the text speaks of the command as such
        app.parse_args(words, exit_on_error=False, print_error=False)


def test_the_links_of_the_readme_lead_to_files():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", text):
        assert (ROOT / target).exists(), target


def test_the_stations_of_the_first_hour_are_where_it_says():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Targets")[0]
    stations = re.findall(r"`([\w/]+\.py)`: ((?:`\w+`(?:, )?)+)", text)
    assert len({file for file, _ in stations}) >= 10
    for file, names in stations:
        code = (ROOT / file).read_text(encoding="utf-8")
        for name in re.findall(r"\w+", names):
            assert re.search(rf"^(def|class) {name}\b", code, re.MULTILINE), (file, name)


def test_the_site_is_built_without_a_dead_link(tmp_path):
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--site-dir", tmp_path / "site"],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        check=True,
    )


def blocks(page: str) -> list[tuple[str, str]]:
    """The blocks of commands of a page: what runs them elsewhere, if so, and their lines."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [(block["elsewhere"] or "", block["lines"]) for block in BLOCK.finditer(text)]


def test_what_runs_a_block_elsewhere_is_there():
    for page in PAGES:
        for elsewhere, _ in blocks(str(page.relative_to(ROOT))):
            if found := re.search(r"run (?:in small )?by (\S+)", elsewhere):
                assert (ROOT / found[1]).exists(), elsewhere
