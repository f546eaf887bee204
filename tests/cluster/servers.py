"""The servers that a team runs, on a machine of their own; and Ray on the machines that train.

PostgreSQL, an S3 server (moto) behind a proxy that can misbehave, Prefect's server and MLflow's.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tests.cluster.hosts import Host
from tests.flows.conftest import until

POSTGRES = ("setpriv", "--reuid", "nobody", "--regid", "nogroup", "--clear-groups")
DATA = "/tmp/postgres"
BUCKET = "team"
MODE = "s3-mode"  # the word for the proxy in front of S3; see unreliable.py
START_SECONDS = 180.0  # on a busy machine
KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}
RAY = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0123456789abcdef" * 4}
RAY_PORT = 6379


def postgres(program: str) -> str | None:
    """Where a program of PostgreSQL is; Debian keeps them outside the path."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    return shutil.which(program, path=os.pathsep.join([os.environ["PATH"], *map(str, folders)]))


@dataclass
class Server:
    """A process on a machine that can be stopped and started again."""

    host: Host
    name: str
    arguments: Sequence[str]
    ready: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    process: "subprocess.Popen[bytes] | None" = None

    def start(self) -> None:
        """Starts it, and waits until it answers."""
        log = f"{self.name}.log"
        self.process = self.host.start(*self.arguments, log=log, **self.environment)

        def answers() -> bool:
            assert self.process
            assert self.process.poll() is None, (self.host.disk / log).read_text()[-3000:]
            return not subprocess.call(
                self.host.command(self.ready),
                env=self.host.environment(self.environment),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )

        until(answers, START_SECONDS)

    def kill(self) -> None:
        """Ends it and all that it has started."""
        self.send(signal.SIGKILL)
        if self.process:
            self.process.wait()
            self.process = None

    def send(self, number: int) -> None:
        """Sends a signal to it and all that it has started."""
        if self.process:
            os.killpg(self.process.pid, number)

    def mend(self) -> None:
        """Lets it run, if it does not."""
        self.send(signal.SIGCONT)
        if self.process is None:
            self.start()


class Servers:
    """All servers, running."""

    def __init__(self, host: Host, opened: ExitStack) -> None:
        """Starts them on a machine; they end with it, or when `opened` is closed."""
        self.host = host
        self.s3 = f"http://{host.address}:9000"
        self.mlflow_url = f"http://{host.address}:5000"
        self.prefect_url = f"http://{host.address}:4200"
        self.aws = KEYS | {"AWS_ENDPOINT_URL": self.s3, "AWS_DEFAULT_REGION": "us-east-1"}
        self._make_database()
        database, python = f"retrain@{host.address}/", ("python", "-m")
        self.postgres = self._server(
            "postgres", (*POSTGRES, str(postgres("postgres")), "-D", DATA, "-k", "/tmp", "-h", "*")
        )
        self.moto = self._server("moto", (*python, "moto.server", "-p", "9001"), 9001)
        shutil.copy(Path(__file__).with_name("unreliable.py"), host.disk)
        proxy = ("python", "unreliable.py", "9000", "9001", f"/tmp/{MODE}")
        self.proxy = self._server("proxy", proxy, 9000)
        self.prefect = self._server(
            "prefect",
            (*python, "prefect", "server", "start", "--host", "0.0.0.0"),
            4200,
            "/api/health",
            PREFECT_SERVER_DATABASE_CONNECTION_URL=f"postgresql+asyncpg://{database}prefect",
            PREFECT_SERVER_UI_ENABLED="false",
        )
        self.mlflow = self._server(
            "mlflow",
            (
                *(*python, "mlflow", "server", "--host", "0.0.0.0", "--workers", "1"),
                *("--backend-store-uri", f"postgresql://{database}mlflow"),
                *("--artifacts-destination", f"s3://{BUCKET}/mlflow"),
            ),
            5000,
            "/health",
            MLFLOW_SERVER_ENABLE_JOB_EXECUTION="false",
            **self.aws,
        )
        for server in (self.postgres, self.moto, self.proxy):
            opened.callback(server.kill)
            server.start()
        for name in ("prefect", "mlflow"):
            host.run(str(postgres("createdb")), "-h", host.address, "-U", "retrain", name)
        make = f"import boto3; boto3.client('s3').create_bucket(Bucket={BUCKET!r})"
        host.run("python", "-c", make, **self.aws)
        for server in (self.prefect, self.mlflow):
            opened.callback(server.kill)
            server.start()

    def mend(self) -> None:
        """Lets all run, and S3 behave."""
        self.misbehave("")
        for server in (self.postgres, self.moto, self.proxy, self.prefect, self.mlflow):
            server.mend()

    def misbehave(self, mode: str) -> None:
        """Lets S3 answer `503`, or be `slow`; well again with an empty word."""
        (self.host.disk / MODE).write_text(mode, encoding="utf-8")

    def objects(self, prefix: str) -> list[str]:
        """The keys in the bucket that begin with a prefix, without the marks of empty folders."""
        names = (
            "import boto3; pages = boto3.client('s3').get_paginator('list_objects_v2').paginate("
            f"Bucket={BUCKET!r}, Prefix={prefix!r}); "
            "[print(one['Key']) for page in pages for one in page.get('Contents', ())]"
        )
        keys = self.host.run("python", "-c", names, **self.aws).splitlines()
        return [key for key in keys if not key.endswith("/")]

    def ask(self, database: str, query: str) -> list[str]:
        """The rows that PostgreSQL answers, each as text."""
        psql = (str(postgres("psql")), "-h", self.host.address, "-U", "retrain", "-d", database)
        return self.host.run(*psql, "-At", "-c", query).splitlines()

    def _make_database(self) -> None:
        self.host.run(
            *(*POSTGRES, str(postgres("initdb")), "-D", DATA, "-U", "retrain", "-A", "trust"),
            *("--no-sync", "-E", "UTF8", "--locale", "C"),
        )
        # Whoever is in the network of the machines.
        network = self.host.address.rpartition(".")[0] + ".0/24"
        with (self.host.disk / "postgres" / "pg_hba.conf").open("a", encoding="utf-8") as file:
            file.write(f"host all all {network} trust\n")

    def _server(
        self,
        name: str,
        arguments: Sequence[str],
        port: int | None = None,
        page: str = "",
        **environment: str,
    ) -> Server:
        ready: Sequence[str] = ("curl", "-sf", "-m", "5", f"http://127.0.0.1:{port}{page}")
        if port is None:
            ready = (str(postgres("pg_isready")), "-h", "127.0.0.1")
        return Server(self.host, name, arguments, ready, environment)


def ray_node(host: Host, head: Host) -> Server:
    """Ray on a machine, started again when it ends, as a service manager does; not started yet."""
    own = ("--head", "--port", str(RAY_PORT), "--include-dashboard", "false")
    other = ("--address", f"{head.address}:{RAY_PORT}")
    start = (
        *("ray", "start", *(own if host == head else other), "--node-ip-address", host.address),
        *("--num-cpus", "2", "--object-store-memory", "100000000"),
        *("--block", "--disable-usage-stats"),
    )
    again = ("bash", "-c", 'while true; do "$@"; sleep 2; done', "ray", *start)
    ready = ("ray", "health-check", "--address", f"{head.address}:{RAY_PORT}")
    return Server(host, "ray", again, ready, RAY | {"GLOO_SOCKET_IFNAME": "eth0"})
