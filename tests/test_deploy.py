"""The files in deploy/: what is pinned, who may what, and that no secret stands in them."""

import json
import re
import subprocess
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests.test_lock import locked

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
COMPOSE = YAML(typ="safe").load(DEPLOY / "compose.yaml")
SERVICES = COMPOSE["services"]
POOL = json.loads((KUBERNETES / "work-pool.json").read_text(encoding="utf-8"))
SECRET = re.compile("PASSWORD|SECRET|TOKEN|AUTH_STRING|ACCESS_KEY")
NO_SECRET = {"MLFLOW_AUTH_CONFIG_PATH"}
# Variables of programs that have no list of them.
OTHERS = re.compile(
    "AWS_(ENDPOINT_URL|(DEFAULT_)?REGION|ACCESS_KEY_ID|SECRET_ACCESS_KEY)|POSTGRES_(USER|PASSWORD)"
    "|PG(HOST|USER|PASSWORD)|RAY_(ADDRESS|AUTH_MODE|AUTH_TOKEN)|(GLOO|NCCL)_SOCKET_IFNAME"
    "|DO_NOT_TRACK"
)


def documents(name: str) -> list[dict]:
    return list(YAML(typ="safe").load_all(KUBERNETES / name))


CLUSTER = documents("ray-cluster.yaml")[0]["spec"]
WORKER = documents("prefect-worker.yaml")[-1]["spec"]
RUN = POOL["job_configuration"]["job_manifest"]["spec"]
[SECRETS] = documents("secret.example.yaml")
# All that the files of Kubernetes describe.
PODS = [
    owner["template"]["spec"]
    for owner in (CLUSTER["headGroupSpec"], *CLUSTER["workerGroupSpecs"], WORKER, RUN)
]
CONTAINERS = [each for pod in PODS for each in (*pod.get("initContainers", ()), *pod["containers"])]
ENVIRONMENT = [
    variable
    for container in CONTAINERS
    if isinstance(container.get("env"), list)  # else Prefect's own
    for variable in container["env"]
]


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_pinned_and_reached_from_this_machine_only(name):
    service = SERVICES[name]
    assert service["image"] == "retrain:local" or re.search(r":\d.*@sha256:", service["image"])
    assert service["restart"] == ("on-failure" if name == "prepare" else "unless-stopped")
    assert "no-new-privileges:true" in service["security_opt"]
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
    for needed, condition in service.get("depends_on", {}).items():
        is_server = condition["condition"] == "service_healthy"
        assert ("healthcheck" in SERVICES[needed]) == is_server


def test_no_secret_stands_in_a_file():
    given = dict(
        line.split("=", 1)
        for line in (DEPLOY / ".env.example").read_text().splitlines()
        if not line.startswith("#")
    )
    asked = re.findall(r"\$\{(\w+):", (DEPLOY / "compose.yaml").read_text())
    assert given == dict.fromkeys(asked, "")
    for service in SERVICES.values():
        for name, value in service.get("environment", {}).items():
            if SECRET.search(name) and name not in NO_SECRET:
                assert re.fullmatch(r"(team:)?\$\{\w+:\?.*\}", value), name
    assert set(SECRETS["stringData"].values()) == {""}
    assert not [variable for variable in ENVIRONMENT if SECRET.search(variable["name"])]
    subprocess.run(["git", "check-ignore", "-q", "deploy/.env"], cwd=ROOT, check=True)


def test_every_variable_is_one_that_its_program_knows():
    import mlflow.environment_variables
    import prefect.settings

    code = "".join(path.read_text() for path in (ROOT / "retrain").rglob("*.py"))
    page = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
    names = {name for service in SERVICES.values() for name in service.get("environment", ())}
    names |= {variable["name"] for variable in ENVIRONMENT} | SECRETS["stringData"].keys()
    names |= POOL["variables"]["properties"]["env"]["default"].keys()
    for name in names | {*re.findall(r"\b(?:MLFLOW|PREFECT|RETRAIN)_[A-Z_]+[A-Z]\b", page)}:
        if name.startswith("MLFLOW_"):
            assert hasattr(mlflow.environment_variables, name), name
        elif name.startswith("PREFECT_"):
            assert hasattr(prefect.settings, name), name
        elif name.startswith("RETRAIN_"):
            assert f'"{name}"' in code, name
        else:
            assert OTHERS.fullmatch(name), name


def test_the_image_is_made_of_what_is_locked_and_runs_as_nobody_special():
    text = (DEPLOY / "Dockerfile").read_text()
    assert re.findall("^FROM (.*)", text, re.MULTILINE) == re.findall(
        r"^FROM (python:3\.11\.\d+-slim-\w+@sha256:[0-9a-f]{64})$", text, re.MULTILINE
    )
    assert "--require-hashes --requirement requirements.lock" in text
    assert re.findall("^USER (.*)", text, re.MULTILINE) == ["10001"]
    assert "useradd --uid 10001" in text


def test_the_image_has_all_of_the_commit_and_nothing_else():
    """Otherwise the runs of a container would record a changed commit."""
    of_docker, of_git = (
        [line for line in (ROOT / name).read_text().splitlines() if line and line[0] != "#"]
        for name in (".dockerignore", ".gitignore")
    )
    excluded = [line if line.startswith("**/") else f"/{line}" for line in of_docker]
    command = ["git", "ls-files", "-ci", *(f"--exclude={line}" for line in excluded)]
    assert subprocess.check_output(command, cwd=ROOT, text=True) == ""
    assert {line.strip("/") for line in of_git} <= {line.removeprefix("**/") for line in of_docker}


def test_a_pod_may_little_and_has_bounds():
    for pod in PODS:
        assert pod["securityContext"].items() >= {"runAsNonRoot": True, "runAsUser": 10001}.items()
    for container in CONTAINERS:
        little = {"capabilities": {"drop": ["ALL"]}, "allowPrivilegeEscalation": False}
        assert container["securityContext"].items() >= little.items()
        assert container["resources"]["limits"]["memory"]
        assert container["resources"]["requests"]["cpu"]


def test_a_pool_of_kubernetes_gets_a_limit_when_it_is_made_and_keeps_another_one():
    """As that of deploy/worker.sh, which tests/test_team_servers.py runs."""
    [shell] = WORKER["template"]["spec"]["initContainers"]
    limit = (
        r'if \[ "\$is_new" \]; then.*\n +prefect work-pool set-concurrency-limit kubernetes 1\nfi'
    )
    assert re.search(limit, shell["args"][0])


def test_all_that_run_steps_see_one_store():
    volume = {"name": "store", "persistentVolumeClaim": {"claimName": "retrain-store"}}
    [claim] = documents("store.yaml")
    assert claim["metadata"]["name"] == "retrain-store"
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    head, workers, _, run = PODS  # Prefect's worker runs no steps
    for pod in (head, workers, run):
        assert volume in pod["volumes"]
        [container] = pod["containers"]
        assert {"name": "store", "mountPath": "/store"} in container["volumeMounts"]
        # Of a run, Prefect puts the variables in.
        place = {"name": "RETRAIN_STORE", "value": "/store"}
        assert container["env"] == "{{ env }}" if pod is run else place in container["env"]
    assert POOL["variables"]["properties"]["env"]["default"]["RETRAIN_STORE"] == "/store"
    for name in ("ray-head", "ray-worker", "worker"):
        assert SERVICES[name]["environment"]["RETRAIN_STORE"] == "/store"
        assert "store:/store" in SERVICES[name]["volumes"]


def test_kubernetes_runs_the_versions_that_are_locked():
    versions = locked("requirements.lock")
    assert CLUSTER["rayVersion"] == versions["ray"]
    image = POOL["variables"]["properties"]["image"]["default"]
    others = {each["image"] for each in CONTAINERS} - {image, "{{ image }}"}
    assert others == {f"prefecthq/prefect:{versions['prefect']}-python3.11-kubernetes"}
    used = set(re.findall(r"\{\{ (\w+) \}\}", json.dumps(POOL["job_configuration"])))
    assert used == set(POOL["variables"]["properties"])
