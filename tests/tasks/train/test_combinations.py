"""Each combination that a workload may have is refused before the run, or trains."""

from pathlib import Path

import pytest

from tasks.train.session import Session
from tasks.train.step import train_and_save
from tasks.train.train import best_network, save
from tests.tasks.train.combinations import (
    TABLE,
    Place,
    check_saved,
    document,
    to_train,
    train_on_workers,
)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return Place(tmp_path_factory.mktemp("combinations"))


def test_the_page_says_what_is_refused(place):
    assert TABLE.read_text(encoding="utf-8") == document(place.refused)


@pytest.mark.slow
def test_what_is_not_refused_trains(place, ray_session):
    place.write_images()
    alone, shared = (
        [place.job(each, Path(f"{kind}-{n}")) for n, each in enumerate(chosen)]
        for kind, chosen in zip(("alone", "shared"), to_train(place.refused), strict=True)
    )
    for job in alone:
        train_and_save(job)
    train_on_workers(shared, place.root / "workers")
    for job in shared:
        save(job, best_network(Session(job)))
    for job in alone + shared:
        check_saved(job)
