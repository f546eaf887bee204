"""Each combination that a workload may have is refused before the run, or trains."""

import pytest

from tests.tasks.train.combinations import TABLE, Place, combinations, document, train_small


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return Place(tmp_path_factory.mktemp("combinations"))


def test_each_network_trains_by_each_loop_and_way_of_images(place):
    chosen = [
        each
        for each in combinations(place.families)
        if (each.recipe, each.sharing) == ("plain", "one process")
        and each.ingest != "stream"
        and place.refusal(each) is None
    ]
    assert len(chosen) > 15
    assert train_small(place, chosen) == {}


@pytest.mark.slow
def test_what_is_not_refused_trains_and_the_page_says_so(place, ray_session):
    refused = {each: place.refusal(each) for each in combinations(place.families)}
    assert train_small(place, [each for each, why in refused.items() if why is None]) == {}
    assert TABLE.read_text(encoding="utf-8") == document(refused)
