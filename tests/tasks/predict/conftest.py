"""A registered version of a small network, as `promote` leaves it."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from retrain.project import Project
from retrain.registry import decisions, packages, versions
from retrain.registry.ledger import Decision
from retrain.registry.versions import Candidate
from tasks.data import package
from tasks.data.champion import Registered
from tasks.promote.package import write_package
from tests import templates
from tests.tasks.toy_model import IMAGES, LABELS, write_model, write_report


@dataclass(frozen=True)
class Toy:
    """A project whose model is registered twice.

    Attributes:
        project: The project.
        model: The network's folder.
        champion: Its package as it is.
        older: A package with the same network, whose own decoder inverts each image.
    """

    project: Project
    model: Path
    champion: Registered
    older: Registered


@pytest.fixture(scope="module")
def toy(tmp_path_factory) -> Toy:
    project = Project(tmp_path_factory.mktemp("project"))
    templates.place_mlflow_database(project.root)
    trained = write_model(project.root / "train")
    run = write_report(trained, project)
    written, older = project.root / "package", project.root / "older"
    write_package(trained.folder / "model", "fp32", dict.fromkeys(LABELS, 12), written)
    shutil.copytree(written, older)
    decoder = older / "code" / "models" / "image.py"
    text, last = decoder.read_text(), "return np.asarray(image).reshape(size, size, channels)"
    assert last in text
    decoder.write_text(text.replace(last, last.replace("return ", "return 255 - ")))
    # The one that was registered first is in production.
    champion = register(project, written, run, promote=True)
    return Toy(project, trained.folder / "model", champion, register(project, older, run))


def register(project: Project, folder: Path, run: str, promote: bool = False) -> Registered:
    candidate = Candidate(
        name="toy",
        weights=packages.digest_of_weights(folder / package.MODEL),
        package_digest=package.digest_of_folder(folder),
        train_digest="digest0",
        train_key=None,
        start=None,
        family="vit",
        images=IMAGES,
        classes=package.classes_digest(LABELS),
        metrics={},
        data=None,
        commit=None,
        run_id=run,
    )
    version = versions.register(project, candidate, folder)
    if promote:
        first = Decision("promoted", version.version, None, "first")
        version = decisions.apply(project, version, first)
    return Registered(project, version)
