"""A team's servers as docs/cluster.md starts them, on loopback: PostgreSQL, S3, MLflow, Prefect.

PostgreSQL is the one of the system. It refuses to run as root, so a test of root runs it as nobody.
"""

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from retrain.servers import reachable
from tests.flows.conftest import free_port, until

DEPLOY = Path(__file__).parents[1] / "deploy"
PROGRAMS = ("initdb", "postgres")
PLACES = os.pathsep.join(
    [os.environ["PATH"], *map(str, sorted(Path("/usr/lib/postgresql").glob("*/bin")))]
)
START_SECONDS = 180.0


def postgres_is_missing() -> bool:
    """Whether this machine has no PostgreSQL."""
    return not all(shutil.which(program, path=PLACES) for program in PROGRAMS)


@contextmanager
def started(
    log: Path, command: list[str], answers: Callable[[], Any], **more: Any
) -> Iterator[int]:
    """Runs a server until the block ends; gives its process id when it answers."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, start_new_session=True, **more
        )
    try:
        until(lambda: process.poll() is not None or answers(), START_SECONDS)
        assert process.poll() is None, log.read_text("utf-8", "replace")[-3000:]
        yield process.pid
    finally:
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(20)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def postgres(password: str) -> Iterator[dict[str, str]]:
    """PostgreSQL, still without databases; gives the variables with its address."""
    import psycopg2

    initdb, program = (shutil.which(name, path=PLACES) for name in PROGRAMS)
    user = {"user": "nobody"} if os.getuid() == 0 else {}
    folder, port = Path(tempfile.mkdtemp(prefix="retrain-postgres-")), free_port()
    try:
        (folder / "password").write_text(password)
        for path in (folder, folder / "password") if user else ():
            shutil.chown(path, **user)
        subprocess.run(
            [
                initdb, "--pgdata", folder / "data", "--username", "retrain", "--no-sync",
                "--auth", "scram-sha-256", "--pwfile", folder / "password",
            ],
            check=True, stdout=subprocess.DEVNULL, cwd=folder, **user,
        )  # fmt: skip
        command = [program, "-D", folder / "data", "-p", str(port), "-k", folder, "-c", "fsync=off"]
        login = {"user": "retrain", "password": password, "dbname": "postgres"}

        def connect() -> Any:
            with suppress(psycopg2.OperationalError):
                return psycopg2.connect(host="127.0.0.1", port=port, **login)
            return None

        with started(folder / "log", [*map(str, command)], connect, cwd=folder, **user):
            yield {"PGHOST": "127.0.0.1", "PGPORT": str(port), "PGUSER": "retrain"}
    finally:
        shutil.rmtree(folder)


@contextmanager
def team_servers(folder: Path) -> Iterator[dict[str, str]]:
    """All servers; gives the environment of somebody who uses them.

    Args:
        folder: For their logs.
    """
    folder.mkdir(exist_ok=True)
    password, s3, mlflow, prefect = secrets.token_hex(8), *(free_port() for _ in range(3))
    keys = {"AWS_ACCESS_KEY_ID": "team", "AWS_SECRET_ACCESS_KEY": password}
    keys |= {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{s3}", "AWS_DEFAULT_REGION": "us-east-1"}
    url = {"prefect": f"http://127.0.0.1:{prefect}/api", "mlflow": f"http://127.0.0.1:{mlflow}"}
    login = {"MLFLOW_TRACKING_USERNAME": "admin", "MLFLOW_TRACKING_PASSWORD": password * 2}

    def answers(address: str) -> Callable[[], bool]:
        return lambda: reachable.answers(address)

    with ExitStack() as stack:
        database = stack.enter_context(postgres(password))
        command = [sys.executable, "-m", "moto.server", "--port", str(s3)]
        stack.enter_context(started(folder / "s3.log", command, answers(keys["AWS_ENDPOINT_URL"])))
        environment = os.environ | keys | database | {"PGPASSWORD": password}
        for _ in range(2):  # the second time, all is there
            command = [sys.executable, str(DEPLOY / "prepare.py"), "retrain"]
            subprocess.run(command, env=environment, check=True)
        more = environment | {
            "MLFLOW_AUTH_CONFIG_PATH": str(DEPLOY / "mlflow-logins.ini"),
            "MLFLOW_AUTH_ADMIN_USERNAME": login["MLFLOW_TRACKING_USERNAME"],
            "MLFLOW_AUTH_ADMIN_PASSWORD": login["MLFLOW_TRACKING_PASSWORD"],
            "MLFLOW_FLASK_SERVER_SECRET_KEY": secrets.token_hex(),
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        }
        command = [*command_of("mlflow"), "--host=127.0.0.1", f"--port={mlflow}"]
        ready = answers(f"{url['mlflow']}/health")
        stack.enter_context(started(folder / "mlflow.log", command, ready, env=more, cwd=folder))
        more = environment | {
            "PREFECT_HOME": str(folder / "prefect"),
            "PREFECT_SERVER_API_AUTH_STRING": f"team:{password}",
            "PREFECT_API_DATABASE_CONNECTION_URL": "postgresql+asyncpg:///prefect",
        }
        command = [*command_of("prefect"), "--host=127.0.0.1", f"--port={prefect}"]
        ready = answers(f"{url['prefect']}/health")
        stack.enter_context(started(folder / "prefect.log", command, ready, env=more, cwd=folder))
        yield {
            **keys,
            **login,
            "MLFLOW_TRACKING_URI": url["mlflow"],
            "PREFECT_API_URL": url["prefect"],
            "PREFECT_API_AUTH_STRING": f"team:{password}",
        }


def command_of(service: str) -> list[str]:
    """The command of a service in deploy/compose.yaml, to be followed by another host and port."""
    command = YAML(typ="safe").load(DEPLOY / "compose.yaml")["services"][service]["command"]
    return [sys.executable, "-m", *(each for each in command if not each.startswith("--host="))]
