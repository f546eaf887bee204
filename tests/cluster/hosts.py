"""Machines made of namespaces: each has an address, a disk and processes of its own.

A machine is a process in new network, mount, PID, UTS and IPC namespaces. When that process ends,
the kernel ends all others of the machine and removes its interfaces and mounts; it ends with this
process, however this one ends. Nothing is made in the network of the real machine.
"""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
ADDRESSES = {"head": "10.77.0.1", "other": "10.77.0.2"}
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

    def run(self, *command: str) -> None:
        """Runs a command, which must succeed."""
        subprocess.run(self.command(command), env=self.environment({}), check=True)


class Network:
    """Machines that are joined by a switch, which is a machine, too."""

    def __init__(self, folder: Path, opened: ExitStack) -> None:
        """Makes the switch.

        Args:
            folder: An empty folder for the disks.
            opened: Switches everything off when it is closed.
        """
        self._folder, self._opened = folder, opened
        self.shared = folder / "shared"  # the folder that all machines see as `SHARED`
        self.shared.mkdir()
        names = "".join(f"{address} {name}\n" for name, address in ADDRESSES.items())
        (folder / "hosts").write_text(f"127.0.0.1 localhost\n{names}", encoding="utf-8")
        self._switch = self._start("switch", "")
        self._switch.run("ip", "link", "add", "bridge", "type", "bridge")
        self._switch.run("ip", "link", "set", "bridge", "up")

    def turn_on(self, name: str) -> Host:
        """Turns a machine on, for the first time or again: with its disk, and no process."""
        host = self._start(name, ADDRESSES[name])
        # Not `Host.run`: the process id is the one that is seen from outside.
        subprocess.run(
            ["nsenter", "--net", "--target", str(self._switch.pid), "ip", "link", "add", name,
             "type", "veth", "peer", "name", "eth0", "netns", str(host.pid)],
            check=True,
        )  # fmt: skip
        self._switch.run("ip", "link", "set", name, "master", "bridge", "up")
        host.run("ip", "address", "add", f"{host.address}/24", "dev", "eth0")
        host.run("ip", "link", "set", "eth0", "up")
        return host

    def turn_off(self, host: Host) -> None:
        """Ends a machine at once with all its processes, as when the power fails."""
        psutil.Process(host.pid).kill()
        self._switch.run("sh", "-c", f"while ip link show {host.name}; do sleep 0.1; done")

    def _start(self, name: str, address: str) -> Host:
        disk = self._folder / name
        (disk / "home").mkdir(parents=True, exist_ok=True)
        disk.chmod(0o1777)
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "unshare", *NAMESPACES, "--fork", "--kill-child",
             "--mount-proc", "bash", "-c", FIRST],
            env=os.environ | {
                "NAME": name, "ROOT": str(ROOT), "PACKAGES": sys.prefix, "DISK": str(disk),
                "SHARED": str(self.shared), "HOSTS": str(self._folder / "hosts"),
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
