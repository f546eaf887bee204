"""Passes connections on to a server on this machine, and misbehaves while it is told to.

    python unreliable.py PORT UPSTREAM MODE

MODE is a file with one word: `503` answers each request with that status, `slow` passes on a
megabyte a second on each connection. Without the file, all is well. When the word changes,
open connections break off. It runs on a machine that has only the installed packages.
"""

import asyncio
import sys
from pathlib import Path

BUSY = b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
CHUNK_BYTES, CHUNK_SECONDS = 100_000, 0.1


class Proxy:
    """A server of TCP in front of another one."""

    def __init__(self, upstream: int, file: Path) -> None:
        self.upstream, self.file = upstream, file
        self.mode = self.asked()
        self.open: set[asyncio.StreamWriter] = set()

    def asked(self) -> str:
        return self.file.read_text(encoding="utf-8").strip() if self.file.exists() else ""

    async def watch(self) -> None:
        """Takes the word of the file over when it changes."""
        while True:
            await asyncio.sleep(0.1)
            if (mode := self.asked()) != self.mode:
                self.mode = mode
                for writer in self.open:
                    writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves a connection."""
        self.open.add(writer)
        try:
            if self.mode == "503":
                await reader.readuntil(b"\r\n\r\n")
                writer.write(BUSY)
                await writer.drain()
            else:
                back, out = await asyncio.open_connection("127.0.0.1", self.upstream)
                await asyncio.gather(self.copy(reader, out), self.copy(back, writer))
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self.open.discard(writer)
            writer.close()

    async def copy(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        """Copies one direction of a connection until its end."""
        try:
            while chunk := await source.read(CHUNK_BYTES if self.mode == "slow" else 1_000_000):
                if self.mode == "slow":
                    await asyncio.sleep(CHUNK_SECONDS)
                target.write(chunk)
                await target.drain()
        finally:
            target.close()


async def main(port: int, upstream: int, mode: Path) -> None:
    """Serves until it is killed."""
    proxy = Proxy(upstream, mode)
    server = await asyncio.start_server(proxy.serve, "0.0.0.0", port)
    async with server:
        await asyncio.gather(server.serve_forever(), proxy.watch())


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])))
