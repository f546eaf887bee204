"""Machines made of namespaces: each has an address, a disk and processes of its own.

A machine is a process in new network, mount, PID, UTS and IPC namespaces. When that process ends,
the kernel ends all others of the machine and removes its interfaces and mounts; it ends with this
process, however this one ends. Nothing is made in the network of the real machine.
"""

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
NETWORK = "10.77.0"
SHARED = "/mnt/shared"  # the folder that all machines see
NAMESPACES = ("--net", "--mount", "--pid", "--uts", "--ipc")

# The first process of a machine. Of the real machine's folders, those of the system and the
# installed packages stay; the project, temporary files and the other machines' disks are hidden.
FIRST = """
set -e
hostname "$NAME"
mount -t tmpfs -o size=1m tmpfs /mnt
mkdir /mnt/packages /mnt/shared
mount --bind "$PACKAGES" /mnt/packages
mount --bind "$SHARED" /mnt/shared
mount --bind "$HOSTS" /etc/hosts
mount --bind "$DISK" /tmp
mount --bind /tmp /var/tmp
mount -t tmpfs -o size=1g tmpfs /dev/shm
mkdir -p "$ROOT"
mount -t tmpfs -o size=1m tmpfs "$ROOT"
mkdir -p "$PACKAGES"
mount --bind /mnt/packages "$PACKAGES"
ip link set lo up
echo ready
while true; do sleep 1000; done
"""


def why_not() -> str | None:
    """Why machines cannot be made here; None if they can."""
    try:
        made = subprocess.run(
            ["unshare", *NAMESPACES, "--fork", "ip", "link", "add", "x", "type", "veth"],
            capture_output=True,
            text=True,
        )
    except FileNotFoundError as error:
        return f"{error.filename} is not installed"
    return f"namespaces are not allowed here: {made.stderr.strip()}" if made.returncode else None


@dataclass(frozen=True)
class Host:
    """A machine.

    Attributes:
        name: Its host name.
        address: Its address in the network of the machines.
        disk: The folder that is its `/tmp`.
        pid: Its first process, seen from outside.
    """

    name: str
    address: str
    disk: Path
    pid: int

    def command(self, command: Sequence[str], folder: str = "/tmp") -> list[str]:
        """What runs a command in the machine, as seen from outside."""
        enter = ("nsenter", "--target", str(self.pid), *NAMESPACES)
        return [*enter, "--", "env", "-C", folder, *command]

    def environment(self, more: Mapping[str, str]) -> dict[str, str]:
        """The variables of a command: little of ours, and the given ones."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if name in ("LANG", "DO_NOT_TRACK") or name.endswith(("ANALYTICS", "TELEMETRY"))
        }
        programs = os.pathsep.join([str(Path(sys.prefix, "bin")), os.environ["PATH"]])
        return kept | {"PATH": programs, "HOME": "/tmp/home", "OMP_WAIT_POLICY": "passive"} | more

    def start(
        self, *command: str, log: str, folder: str = "/tmp", **more: str
    ) -> "subprocess.Popen[bytes]":
        """Starts a command in a session of its own; its output goes to a file on the disk."""
        with (self.disk / log).open("ab") as stream:
            return subprocess.Popen(
                self.command(command, folder),
                env=self.environment(more),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
            )

    def run(self, *command: str, folder: str = "/tmp", **more: str) -> str:
        """Runs a command; returns what it printed."""
        done = subprocess.run(
            self.command(command, folder),
            env=self.environment(more),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{shlex.join(command)}:\n{done.stdout}\n{done.stderr}"
        return done.stdout


class Network:
    """Machines that are joined by a switch, which is a machine, too."""

    def __init__(self, folder: Path, opened: ExitStack) -> None:
        """Makes the switch.

        Args:
            folder: An empty folder for the disks.
            opened: Switches everything off when it is closed.
        """
        self._folder, self._opened, self._hosts = folder, opened, 0
        self.shared.mkdir()
        self._names = folder / "hosts"
        self._names.write_text("127.0.0.1 localhost\n", encoding="utf-8")
        self._switch = self._turn_on("switch", "")
        self._switch.run("ip", "link", "add", "bridge", "type", "bridge")
        self._switch.run("ip", "link", "set", "bridge", "up")

    @property
    def shared(self) -> Path:
        """The folder that all machines see as `SHARED`."""
        return self._folder / "shared"

    def add(self, name: str) -> Host:
        """Adds a machine, with an address for its interface `eth0`."""
        self._hosts += 1
        host = self._turn_on(name, f"{NETWORK}.{self._hosts}")
        with self._names.open("a", encoding="utf-8") as file:  # in place, as it is mounted
            file.write(f"{host.address} {name}\n")
        self._plug_in(host)
        return host

    def again(self, host: Host) -> Host:
        """Turns a machine on again that was turned off: with its disk, and no process."""
        host = self._turn_on(host.name, host.address)
        self._plug_in(host)
        return host

    def turn_off(self, host: Host) -> None:
        """Ends a machine at once with all its processes, as when the power fails."""
        psutil.Process(host.pid).kill()
        self._switch.run("sh", "-c", f"while ip link show {host.name}; do sleep 0.1; done")

    def _plug_in(self, host: Host) -> None:
        net = ("nsenter", "--net", "--target")
        end = ("peer", "name", "eth0", "netns", str(host.pid))
        add = ("ip", "link", "add", host.name, "type", "veth", *end)
        # Not `Host.run`: the process id is the one that is seen from outside.
        subprocess.run([*net, str(self._switch.pid), *add], check=True)
        self._switch.run("ip", "link", "set", host.name, "master", "bridge", "up")
        host.run("ip", "address", "add", f"{host.address}/24", "dev", "eth0")
        host.run("ip", "link", "set", "eth0", "up")

    def _turn_on(self, name: str, address: str) -> Host:
        disk = self._folder / name
        (disk / "home").mkdir(parents=True, exist_ok=True)
        disk.chmod(0o1777)
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "unshare", *NAMESPACES, "--fork", "--kill-child",
             "--mount-proc", "bash", "-c", FIRST],
            env=os.environ | {
                "NAME": name, "ROOT": str(ROOT), "PACKAGES": sys.prefix, "DISK": str(disk),
                "SHARED": str(self.shared), "HOSTS": str(self._names),
            },
            stdout=subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
        self._opened.callback(process.wait)
        self._opened.callback(process.kill)
        assert process.stdout
        assert process.stdout.readline() == b"ready\n", f"{name} did not start"
        [first] = psutil.Process(process.pid).children()
        return Host(name, address, disk, first.pid)
