"""The host of PostgreSQL vanishes: nothing comes back, neither FIN nor RST, and nobody hears us."""

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from tests.scenario.doubles import eventually
from ulak.errors import StoreError
from ulak.store.postgres import PostgresStore, timeouts
from ulak.testing.servers import ROLE, Postgres

LONG_S = 120.0
ASLEEP = "SELECT FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
SOON = {
    "keepalives_idle": 1, "keepalives_interval": 1, "keepalives_count": 2,
    "tcp_user_timeout": 3000, "connect_timeout": 2,
}  # fmt: skip

# Runs in the namespace: what comes over the network goes on to the server's unix socket.
RELAY = """
import asyncio, sys
host, port, path = sys.argv[1:]

async def pump(reader, writer):
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    writer.close()

async def serve(reader, writer):
    there = await asyncio.open_unix_connection(path)
    await asyncio.gather(pump(reader, there[1]), pump(there[0], writer))

async def main():
    server = await asyncio.start_server(serve, host, int(port))
    print("listening", flush=True)
    await server.serve_forever()

asyncio.run(main())
"""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)  # noqa: S607


@dataclass
class Host:
    """A network of two machines, ours and the server's; the cable between them can be cut."""

    url: str
    namespace: str
    device: str

    def vanish(self) -> None:
        ip("-n", self.namespace, "link", "set", self.device, "down")

    def come_back(self) -> None:
        ip("-n", self.namespace, "link", "set", self.device, "up")


@pytest.fixture
def host() -> Iterator[Host]:
    number = os.getpid() % 250
    name, ours, theirs = f"ulak-{os.getpid()}", f"ulak{os.getpid()}a", f"ulak{os.getpid()}b"
    here, there = f"10.251.{number}.1", f"10.251.{number}.2"
    if os.geteuid() or shutil.which("ip") is None:
        pytest.skip("a network of its own needs root and the program ip")
    try:
        ip("netns", "add", name)
        ip("link", "add", ours, "type", "veth", "peer", "name", theirs, "netns", name)
    except subprocess.CalledProcessError as error:
        subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)  # noqa: S607
        pytest.skip(f"this machine makes no networks: {error.stderr.decode().strip()}")
    try:
        ip("addr", "add", f"{here}/30", "dev", ours)
        ip("link", "set", ours, "up")
        ip("-n", name, "addr", "add", f"{there}/30", "dev", theirs)
        ip("-n", name, "link", "set", theirs, "up")
        with Postgres() as server:
            path = f"{server.directory}/.s.PGSQL.{server.port}"
            relay = subprocess.Popen(
                ["ip", "netns", "exec", name, sys.executable, "-c", RELAY, there, "5432", path],  # noqa: S607
                stdout=subprocess.PIPE,
                text=True,
            )
            try:
                assert relay.stdout is not None
                assert relay.stdout.readline() == "listening\n"
                yield Host(f"postgresql://{ROLE}@{there}:5432/postgres", name, theirs)
            finally:
                relay.kill()
                relay.communicate()
    finally:
        ip("netns", "del", name)


@pytest.mark.shows("E-83")
def test_a_host_that_vanishes_is_given_up_and_found_again(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the kernel alone, while an answer is awaited, and while something is sent."""
    monkeypatch.setattr(timeouts, "PROBE_AFTER_S", 600.0)
    # As short as can be, since the test waits for it.
    for name, value in SOON.items():
        monkeypatch.setitem(timeouts.CLIENT, name, value)
    store = PostgresStore(host.url)
    store.open()
    raised = dict[str, StoreError]()

    def fails(name: str, question: Callable[[], object]) -> bool:
        try:
            question()
        except StoreError as error:
            raised[name] = error
            return True
        return False

    def sleep() -> None:
        store._db.use(lambda db: db.rows("SELECT pg_sleep(3600)"))

    waiting = threading.Thread(target=fails, args=("waits", sleep), daemon=True)
    waiting.start()
    # The server has begun, so that only an answer is missing.
    eventually(lambda: store._db.use(lambda db: db.rows(ASLEEP)))
    host.vanish()
    sending = threading.Thread(target=fails, args=("sends", store.workers), daemon=True)
    sending.start()
    waiting.join(LONG_S)
    sending.join(LONG_S)
    assert raised.keys() == {"waits", "sends"}
    host.come_back()
    eventually(lambda: not fails("comes back", store.workers))
    store.close()
