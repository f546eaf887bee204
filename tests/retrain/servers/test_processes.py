"""Real processes, small ones, started and stopped."""

import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from time import monotonic, sleep

import psutil
import pytest

from retrain.project import Project
from retrain.servers import processes
from retrain.servers.processes import Program

STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
# Starts a child in a session of its own, as Prefect's worker does with a run, and says its pid.
PARENT = (
    "import subprocess, sys, pathlib, time;"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'],"
    " start_new_session=True);"
    "pathlib.Path('child').write_text(str(child.pid));"
    "pathlib.Path('ready').touch(); time.sleep(60)"
)


@pytest.fixture
def project(tmp_path):
    return Project(tmp_path)


@pytest.fixture
def start(project):
    """Starts code of a few lines, waits until it has made the file `ready`, cleans up after it."""
    services = []

    def run(code):
        ready = project.root / "ready"
        program = Program("small", "small thing", ("-c", code), ready=lambda _: ready.exists())
        service, process = processes.start(program, project, os.environ)
        services.append(service)
        processes.wait(program, service, process)
        return service

    yield run
    processes.stop(services)


def sleeping(before=""):
    return f"{before}\nimport pathlib, time; pathlib.Path('ready').touch(); time.sleep(60)"


def test_a_service_has_a_session_of_its_own(start):
    service = start(sleeping())
    assert processes.is_alive(service)
    assert os.getsid(service.pid) == service.pid


def test_a_process_that_ends_at_its_start_is_reported_with_its_last_lines(start):
    with pytest.raises(ValueError, match=r"(?s)small thing ended .* exit code 3.*no such colour"):
        start("import sys; print('no such colour'); sys.exit(3)")


def test_a_process_that_ignores_the_signal_to_end_is_killed(start, monkeypatch):
    monkeypatch.setattr(processes, "STOP_SECONDS", 0.5)
    service = start(sleeping(STUBBORN))
    processes.stop([service])
    assert not processes.is_alive(service)


def test_what_a_killed_service_had_started_is_stopped_too(start, project):
    service = start(PARENT)
    child = int((project.root / "child").read_text())
    os.kill(service.pid, signal.SIGKILL)
    until(lambda: not processes.is_alive(service))
    assert psutil.pid_exists(child)
    processes.stop([service])
    assert not psutil.pid_exists(child)


def test_a_stranger_with_the_pid_of_a_dead_service_is_left_alone(start):
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        dead = replace(start(sleeping()), pid=stranger.pid, created=1.0, log="elsewhere.log")
        assert not processes.is_alive(dead)
        processes.stop([dead])
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_taken_port_is_refused_with_who_has_it_and_what_to_do():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        program = Program(
            "small", "small thing", (), lambda _: True, f"http://127.0.0.1:{port}", "take another"
        )
        with pytest.raises(ValueError, match=rf"Port {port}, .* \(pid {os.getpid()}\).* another"):
            processes.refuse_taken_port(program)
    processes.refuse_taken_port(program)


def test_the_record_is_what_was_written_and_goes_with_the_last_service(project, start):
    assert processes.read_services(project) == []
    service = start(sleeping())
    processes.write_services(project, [service])
    assert processes.read_services(project) == [service]
    processes.write_services(project, [])
    assert not Path(project.state / "services.json").exists()


def until(true, seconds=10.0):
    deadline = monotonic() + seconds
    while not true():
        assert monotonic() < deadline
        sleep(0.05)
