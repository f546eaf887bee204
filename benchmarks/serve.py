"""How fast `retrain serve` answers, against `mlflow models serve`; and what a new champion costs.

    python -m benchmarks.serve --rounds 3

In a clone of what is committed, the starter workload is trained twice. Each round starts the two
servers in turns, with as many workers, and has clients in threads send requests with one image each
over connections that stay open for some 50 of them. A server's first requests are left out as
warm-up. The figures are requests/s and the median and the 95th percentile of the time that a
request takes, medians of the rounds.

Then, of `retrain serve` alone: the memory of all its processes (USS) after the warm-up, and after
many requests more; and a rollback while the clients ask: how many requests fail, and how many
seconds after the command has ended the first answer comes from the other version, and the last one
from the version before.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from itertools import count
from math import inf
from pathlib import Path
from time import monotonic, sleep

import psutil

from benchmarks.flow import call, clone_project
from benchmarks.table import Row, report
from retrain.servers.scoring import HEADER, IMAGE

PORT, WORKERS, CLIENTS, WARM_UP = 5099, 2, 4, 400
BODY, TYPE = json.dumps({"inputs": [IMAGE]}), {"Content-Type": "application/json"}
SERVE = ("-m", "retrain.cli", "serve", "vit", "--workers", str(WORKERS))
MLFLOW = (
    *("-m", "mlflow", "models", "serve", "--model-uri", "models:/vit@champion"),
    *("--env-manager", "local", "--workers", str(WORKERS)),
)
TRAIN = ("-m", "retrain.cli", "train", "vit", "--json")
ANOTHER = ("--set", "train.seed=1", "--set", "gate.margin=0.5", "--promote")
ROLLBACK = ("-m", "retrain.cli", "rollback", "vit", "--reason", "a benchmark", "--json")
SECONDS_TO_START = 300.0


@dataclass(frozen=True)
class Answer:
    """What became of a request.

    Attributes:
        at: When the answer was there.
        seconds: How long it took.
        version: The version that answered, if the server says so.
        failed: Why there was no answer.
    """

    at: float
    seconds: float
    version: str | None = None
    failed: str | None = None


IsOver = Callable[[int, Answer], bool]


def main() -> None:
    """Runs the rounds and the change, and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=4_000, help="of a server in a round")
    parser.add_argument("--memory", type=int, default=100_000, help="requests")
    parser.add_argument("--change", type=int, default=10_000, help="requests, at least")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        clone = clone_project(Path(folder, "clone"))
        call(clone, TRAIN)
        call(clone, (*TRAIN, *ANOTHER))
        compare(clone, options.rounds, options.requests)
        with serving(clone, SERVE) as server:
            before = memory(server)
            send(options.memory)
            report(
                Row(
                    "serve", f"memory after {options.memory:,} requests more", memory(server),
                    "after the warm-up", before, "MB", "≤ 1.05",
                )
            )  # fmt: skip
            change(clone, options.change)


def compare(clone: Path, rounds: int, requests: int) -> None:
    """Times the two servers in turns, and reports the medians."""
    figures: dict[str, dict[str, list[float]]] = {"ours": defaultdict(list)}
    figures["theirs"] = defaultdict(list)
    ways = [("ours", SERVE), ("theirs", MLFLOW)]
    for number in range(rounds):
        for whose, command in ways[:: -1 if number % 2 else 1]:
            with serving(clone, command):
                began = monotonic()
                answers = send(requests)
                assert not any(answer.failed for answer in answers), answers
                figures[whose]["requests/s"].append(len(answers) / (monotonic() - began))
                seconds = statistics.quantiles((each.seconds for each in answers), n=20)
                figures[whose]["p50"].append(1000 * seconds[9])
                figures[whose]["p95"].append(1000 * seconds[18])
                print(f"round {number + 1}, {whose}: {answers[-1]}", flush=True)
    for figure, values in figures["ours"].items():
        ours, theirs = (statistics.median(each) for each in (values, figures["theirs"][figure]))
        unit, target = ("ms", "≤ 1.0") if figure.startswith("p") else (figure, "≥ 1.0")
        what = f"{WORKERS} workers, {CLIENTS} clients, {figure}"
        report(Row("serve", what, ours, "mlflow models serve", theirs, unit, target))


def change(clone: Path, requests: int) -> None:
    """Has the champion change while requests come."""
    changed: list[float] = []

    def roll_back() -> None:
        call(clone, ROLLBACK)
        changed.append(monotonic())

    def is_over(number: int, answer: Answer) -> bool:
        is_new = bool(changed) and answer.at > changed[0] and answer.version == "1"
        latest.append(is_new)
        return number >= requests and all(latest[-200:])

    latest = [False]
    with ThreadPoolExecutor(1) as pool:
        rolled_back = pool.submit(roll_back)
        answers = send(is_over=is_over)
        rolled_back.result()
    failed = [answer for answer in answers if answer.failed]
    total = len(answers)
    report(Row("serve", "failed over a change", len(failed), "all", total, "requests", "0"))
    first = min(answer.at for answer in answers if answer.version == "1") - changed[0]
    last = max(answer.at for answer in answers if answer.version == "2") - changed[0]
    slowest = max(answer.seconds for answer in answers)
    print(f"first answer of the other version {first:.1f} s after the command", flush=True)
    print(f"last answer of the version before {last:.1f} s after; slowest {slowest:.2f} s", failed)


@contextmanager
def serving(clone: Path, command: tuple[str, ...]) -> Iterator[psutil.Process]:
    """A server that answers, and is warm."""
    variables = {"MLFLOW_TRACKING_URI": f"sqlite:///{clone}/mlflow.db", "PYTHONPATH": str(clone)}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # for `uvicorn`
    with (clone / "serve.log").open("ab") as log:
        server = psutil.Popen(
            [sys.executable, *command, "--port", str(PORT)],
            cwd=clone, env=os.environ | variables | {"PATH": path}, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        deadline = monotonic() + SECONDS_TO_START
        while send(1)[0].failed:
            assert server.poll() is None and monotonic() < deadline, clone / "serve.log"
            sleep(0.5)
        sleep(5)  # the other worker
        send(WARM_UP)
        yield server
    finally:
        processes = server.children(recursive=True)
        server.terminate()
        server.wait(60)
        psutil.wait_procs(processes, timeout=60)


def send(requests: float = inf, is_over: IsOver = lambda *_: False) -> list[Answer]:
    """Has clients send requests: so many, or until something is so of a number and an answer."""
    answers: list[Answer] = []
    numbers = count(1)

    def ask() -> None:
        connection = HTTPConnection("127.0.0.1", PORT, timeout=120)
        while not over and (number := next(numbers)) <= requests:
            began = monotonic()
            try:
                connection.request(
                    "POST", "/invocations", BODY, {"Content-Type": "application/json"}
                )
                response = connection.getresponse()
                text = response.read()
                assert response.status == 200, text
                answer = Answer(monotonic(), monotonic() - began, response.headers[HEADER])
            except (OSError, HTTPException, AssertionError) as error:
                connection.close()
                answer = Answer(monotonic(), monotonic() - began, failed=repr(error))
            answers.append(answer)
            if number % 50 == 0:
                connection.close()  # the next one may be with another worker
            if is_over(number, answer):
                over.append(True)
        connection.close()

    over: list[bool] = []
    with ThreadPoolExecutor(CLIENTS) as pool:
        for client in [pool.submit(ask) for _ in range(CLIENTS)]:
            client.result()
    return answers


def memory(server: psutil.Process) -> float:
    """Megabytes of a server and its workers that no other process uses."""
    processes = [server, *server.children(recursive=True)]
    return sum(each.memory_full_info().uss for each in processes) / 1e6


if __name__ == "__main__":
    main()
