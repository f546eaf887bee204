"""The commands that the pages of the documentation show, run as they stand there."""

from copy import deepcopy

import pyarrow.parquet as pq
import pytest
from pyarrow import csv
from ruamel.yaml import YAML

from tests.flows.conftest import Clone, copy_clone, draw_photos
from tests.test_docs import PAGES, ROOT, blocks

pytestmark = pytest.mark.slow

# What makes the commands of a page quick: the number of trials, and a place for the DVC remote.
QUICK = {"--trials 20": "--trials 2", "/mnt/team": "../team"}


def with_blocks() -> list[str]:
    """The pages whose commands are run here."""
    names = [str(page.relative_to(ROOT)) for page in PAGES]
    return [name for name in names if any(not elsewhere for elsewhere, _ in blocks(name))]


@pytest.fixture(scope="module")
def prepared(clone, tmp_path_factory) -> Clone:
    """A clone with two versions, a folder of photos, and a shell that finds its programs."""
    own = copy_clone(clone, tmp_path_factory.mktemp("docs") / "clone")
    own.train("--set", "train.epochs=3", "--promote")
    draw_photos(own.root / "photos")
    (own.root / ".venv" / "bin").mkdir(parents=True)
    (own.root / ".venv" / "bin" / "activate").touch()  # the programs are on the path already
    return own


def let_one_wait(clone: Clone) -> None:
    """Has a model wait for a person, as the page about approval begins."""
    path = clone.root / "params.yaml"
    text = path.read_text().replace("    gate:", "    gate:\n      approval: manual", 1)
    path.write_text(text.replace("epochs: 2", "epochs: 4", 1))
    assert clone.train()["waiting"]


def label(clone: Clone) -> None:
    """Writes the labels that came later."""
    table = pq.read_table(clone.root / "predictions.parquet", columns=["sha256", "label"])
    csv.write_csv(table, clone.root / "labels.csv")


def write_entry(clone: Clone) -> None:
    """Writes a workload `photos`, as the page about one's own images shows it, in small."""
    path, yaml = clone.root / "params.yaml", YAML()
    tree = yaml.load(path.read_text())
    entry = deepcopy(tree["workloads"]["vit"])
    entry["data"]["path"] = "data/photos"
    entry["images"].update(size=24, channels=3)
    tree["workloads"]["photos"] = entry
    with path.open("w") as file:
        yaml.dump(tree, file)


# What happens before a block of a page, by its number among those that are run.
BEFORE = {
    ("docs/add-a-workload.md", 2): write_entry,
    ("docs/gate.md", 0): let_one_wait,
    ("docs/predict.md", 2): label,
}
# Where a page begins anew: "The rest of this page does the same by hand."
ANEW = {("docs/add-a-workload.md", 1)}
ENVIRONMENT = {
    "BROWSER": "true",
    **{f"GIT_{who}_{what}": "t@t" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
}


@pytest.mark.parametrize("page", with_blocks())
def test_the_commands_of_a_page_run(page, prepared, tmp_path):
    clone = copy_clone(prepared, tmp_path / "clone")
    shown = [lines for elsewhere, lines in blocks(page) if not elsewhere]
    for number, lines in enumerate(shown):
        if (page, number) in ANEW:
            clone = copy_clone(prepared, tmp_path / "anew")
        if prepare := BEFORE.get((page, number)):
            prepare(clone)
        for long, short in QUICK.items():
            lines = lines.replace(long, short)
        clone.run("bash", "-euo", "pipefail", "-c", lines, **ENVIRONMENT)
