"""`retrain init`: from a folder of images to a workload, in a clone."""

import shutil
import sys

import pytest
from ruamel.yaml import YAML

from tests.flows.conftest import ROOT, copy_clone, draw_photos
from tests.hub import write_clip

IDENTITY = {
    f"GIT_{who}_{what}": "t@t" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
}
WRITTEN = (".gitignore", "params.yaml", "prefect.yaml", "data.dvc", ".dvc/config")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return draw_photos(tmp_path_factory.mktemp("given") / "my photos")


@pytest.fixture(autouse=True)
def as_before(clone):
    """Leaves the clone as it was."""
    before = state(clone)
    yield
    for name, content in before.items():
        if content is None:
            (clone.root / name).unlink(missing_ok=True)
        else:
            (clone.root / name).write_bytes(content)
    shutil.rmtree(clone.root / "data", ignore_errors=True)


def state(clone):
    """What is in the files that `init` writes; None of one that is not there."""
    paths = {name: clone.root / name for name in WRITTEN}
    return {name: path.read_bytes() if path.exists() else None for name, path in paths.items()}


def init(clone, *arguments, code=0):
    return clone.json("init", *map(str, arguments), "--pretrained", "none", code=code)


def entries(clone):
    """The workloads and deployments that are not shipped."""
    yaml = YAML(typ="safe")
    params = yaml.load(clone.root / "params.yaml")["workloads"]
    deployments = yaml.load(clone.root / "prefect.yaml")["deployments"]
    added = [each for each in deployments if each.get("parameters", {}).get("workload") in params]
    return (
        {name: entry for name, entry in params.items() if name != "vit"},
        [each for each in added if each["name"] != "vit"],
    )


def test_a_workload_a_deployment_and_a_version_of_the_data_are_written(clone, photos):
    before = {path: path.read_bytes() for path in photos.rglob("*.png")}
    shipped = state(clone)
    document = init(clone, photos)
    assert document["files"] == ["params.yaml", "prefect.yaml", "data.dvc"]
    params, deployments = entries(clone)
    assert params == {"my-photos": document["entry"]}
    assert [each["parameters"] for each in deployments] == [{"workload": "my-photos"}]
    assert document["survey"]["classes"] == {f"class-{number}": 12 for number in range(3)}
    assert {path: path.read_bytes() for path in photos.rglob("*.png")} == before
    assert len(list((clone.root / "data/my-photos").rglob("*.png"))) == 36
    assert {path.name for path in (clone.root / "data").iterdir()} == {"my-photos"}
    for name in document["files"][:2]:  # all else stays, byte by byte
        assert (clone.root / name).read_bytes().startswith(shipped[name])
    facts = clone.json("validate", "my-photos")["data"]
    assert sum(facts["rows"].values()) == 36
    # The other workload's images were never here, and what is advised keeps them.
    assert "warning" not in clone.json("train", "vit", "--dry-run")["data"]
    (clone.root / "data/my-photos/class-0/new.png").write_bytes(b"new")
    said = "data.dvc: dvc add data/my-photos to use what is there."
    preview = clone.json("validate", "my-photos", "--dry-run")
    assert preview["data"]["warning"].endswith(said)
    assert said in clone.retrain("validate", "my-photos", "--dry-run").stdout
    assert said in " ".join(clone.retrain("status", "my-photos").stdout.split())
    again = clone.retrain("init", str(photos), "--yes", code=2)
    assert "There is a workload my-photos already" in again.stderr


def test_its_commands_commit_all_that_it_wrote_and_run_the_deployment(clone, photos, tmp_path):
    own = copy_clone(clone, tmp_path / "clone")
    own.run("git", "commit", "-qam", "all before", **IDENTITY)
    shutil.copytree(photos, own.root / "in [it]" / "photos")
    document = init(own, "in [it]/photos")
    assert document["files"] == ["params.yaml", "prefect.yaml", "data.dvc", ".gitignore"]
    commit, train, up, run, _ = document["next"]
    assert (train, up) == ("retrain train photos", "make up")
    assert run == "prefect deployment run train/photos --watch"
    own.run("bash", "-euc", commit, **IDENTITY)
    assert own.run("git", "status", "--porcelain").stdout == ""


@pytest.mark.slow
def test_the_images_are_pushed_to_a_remote_of_ones_own(clone, photos, tmp_path):
    clone.edit(".dvc/config", "    remote = starter\n", "")  # nor is a default remote needed
    document = init(clone, photos, "--remote", tmp_path / "remote")
    assert document["files"][-1] == ".dvc/config"
    shutil.rmtree(clone.root / ".dvc/cache")
    clone.run(sys.executable, "-m", "dvc", "pull", "-q", "data.dvc")
    assert len(list((clone.root / "data").rglob("*.png"))) == 36
    assert (clone.root / "data/digits").is_dir()
    other = clone.retrain("init", str(photos), "--name", "more", "--remote", "x", code=2)
    assert "DVC has a remote here, team" in other.stderr


@pytest.mark.parametrize("with_data", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_nothing_half_written_stays_if_it_fails(clone, photos, tmp_path, with_data):
    if with_data:
        (clone.root / "data/mine").mkdir(parents=True)
    before = state(clone)
    (tmp_path / "file").touch()
    failed = init(clone, photos, "--remote", tmp_path / "file" / "remote", code=1)
    assert failed["error"].startswith("dvc push: ")
    assert state(clone) == before
    assert (clone.root / "data/mine").exists() == with_data
    assert (clone.root / "data").exists() == with_data
    assert not (clone.root / "data/my-photos").exists()


@pytest.mark.parametrize("more", ["store: {}\n", "  odd: 1\n"])
def test_where_nothing_can_be_added_nothing_is_changed(clone, photos, more):
    with (clone.root / "prefect.yaml").open("a") as file:
        file.write(more)
    before = state(clone)
    assert "prefect.yaml: nothing can be added at its end" in init(clone, photos, code=2)["error"]
    assert state(clone) == before


def test_an_example_is_taken_over(clone):
    document = clone.json("init", "--example", "mnist")
    assert document["files"] == ["params.yaml", "prefect.yaml"]
    params, deployments = entries(clone)
    assert params == YAML(typ="safe").load(ROOT / "examples/mnist.yaml")["workloads"]
    assert [each["parameters"] for each in deployments] == [{"workload": "mnist"}]
    again = clone.retrain("init", "--example", "mnist", code=2)
    assert "There is a workload mnist already" in again.stderr


@pytest.mark.slow
def test_images_in_data_stay_where_they_are(clone, photos):
    place = shutil.copytree(photos, clone.root / "data/pets")
    document = init(clone, place)
    assert document["entry"]["data"]["path"] == "data/pets"
    assert len(list(place.rglob("*.png"))) == 36


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "Name a folder of images"),
        (["--example", "bean"], 2, "There are: beans, cifar10, custom, doggos, mnist."),
        (["nowhere"], 2, "There is no folder"),
        (["."], 2, "holds this project itself"),
        (["{photos}", "--name", "no/name"], 2, "do not all accept this name"),
        (["{photos}", "--name", "vit"], 2, "There is a workload vit already"),
        (["{photos}/class-0"], 1, "It should hold Parquet files, a folder of images per class"),
        (["{photos}", "--set", "data.form=x"], 2, "data.form: no such key. Did you mean"),
        (["{photos}", "--set", "train.epochs=2"], 2, "--set takes parameters of data here"),
        (["{photos}", "--pretrained", "./gone"], 2, "--pretrained: there is no folder ./gone"),
    ],
)
def test_what_cannot_be_is_refused_with_a_sentence(clone, photos, arguments, code, message):
    before = state(clone)
    words = [word.format(photos=photos) for word in arguments]
    refused = clone.retrain("init", *words, "--yes", code=code)
    assert message in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    assert state(clone) == before


@pytest.fixture(scope="module")
def listed(photos, tmp_path_factory):
    """A table that lists the same images, by other names of the classes."""
    folder = shutil.copytree(photos, tmp_path_factory.mktemp("listed") / "flat")
    rows = [f"{path.relative_to(folder)},{path.parent.name}!" for path in folder.rglob("*.png")]
    (folder / "labels.csv").write_text("\n".join(["path,label", *rows]))
    return folder


def test_a_download_is_taken_as_it_lies_and_the_proposal_has_its_reasons(clone, photos, tmp_path):
    for split in ("train", "val"):
        shutil.copytree(photos, tmp_path / "pets" / split)
    for name in ("__pycache__/x.pyc", "notes/x.h5"):
        (tmp_path / "pets" / name).parent.mkdir()
        (tmp_path / "pets" / name).touch()
    shown = clone.retrain("init", str(tmp_path / "pets"), "--pretrained", "none", "--yes").stdout
    for said in (
        "72 images (folders",
        "Left out as no images (1): notes/x.h5",
        "The splits are those of the data: train 36, val 36",
        "A small ResNet is trained from scratch, as no pretrained network is at hand",
        "  retrain train pets",
    ):
        assert said in shown


def test_what_is_asked_is_answered_with_set(clone, photos, tmp_path):
    for colours in ("color", "grey"):
        shutil.copytree(photos, tmp_path / "leaves" / colours)
    asked = init(clone, tmp_path / "leaves", code=1)["error"]
    assert "hold folders of the same names" in asked
    assert "(Here: --set data.format=folders or the like.)" in asked
    document = init(clone, tmp_path / "leaves", "--set", "data.format=folders")
    assert document["survey"]["classes"] == {"color": 36, "grey": 36}
    assert document["entry"]["data"]["format"] == "folders"


@pytest.mark.slow
@pytest.mark.parametrize("given", ["photos", "listed"])
def test_what_is_given_becomes_a_champion_without_an_edit(clone, given, request):
    init(clone, request.getfixturevalue(given), "--name", given)
    document = clone.train(workload=given)
    assert document["model"]["aliases"] == ["champion", "reference"]
    if given == "listed":
        classes = clone.json("lineage", f"{given}@champion")
        assert "class-0!" in str(classes)
        page = (clone.root / "reports" / given / "latest.html").read_text()
        assert "class-0!" in page
        assert "cannot be decoded" not in page


@pytest.mark.slow
def test_a_head_on_a_pretrained_network_becomes_a_champion(clone, photos, tmp_path):
    network = write_clip(tmp_path / "clip", 32)
    document = clone.json("init", str(photos), "--pretrained", str(network), "--name", "head")
    assert document["entry"]["model"]["family"] == "embedding_head"
    document = clone.train(workload="head")
    assert document["model"]["aliases"] == ["champion", "reference"]
