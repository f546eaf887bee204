"""Every example that is shipped, with small stand-ins for the data and weights of its own."""

import pytest

from tests import hub
from tests.flows.conftest import ROOT, draw_photos, shorten_trainings

EXAMPLES = sorted(path.stem for path in (ROOT / "examples").glob("*.yaml"))

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """What replaces the data and the weights of workloads that would download them."""
    root = tmp_path_factory.mktemp("hub")
    data = {
        "data.path": draw_photos(root / "photos", each=24, size=40), "data.format": "folders",
    }  # fmt: skip
    vit, clip = hub.write_vit(root / "vit", 32), hub.write_clip(root / "clip", 32)
    more = {
        "beans": {"images.size": 32, "model.pretrained": vit},
        "mnist": {"model.config.embedding_size": 8, "model.config.hidden_sizes": [8, 8, 8, 8]},
        "doggos": {"images.size": 32, "model.pretrained": clip},
        "cifar10": {"model.hidden_size": 16, "model.layers": 1, "model.heads": 2},
    }
    return {
        name: [
            word for each in (data | values).items() for word in ("--set", "{}={}".format(*each))
        ]
        for name, values in more.items()
    }


@pytest.fixture(scope="module")
def examples(clone):
    """Those of `examples/`, as workloads of the clone, with short trainings."""
    for name in EXAMPLES:
        clone.retrain("init", "--example", name)
    shorten_trainings(clone.root)


@pytest.mark.parametrize("workload", EXAMPLES)
def test_every_example_runs(clone, small, examples, workload):
    document = clone.train(*small.get(workload, ()), workload=workload)
    assert document["model"]["version"] >= 1
    assert (clone.root / "reports" / workload / f"{document['run']}.html").is_file()
