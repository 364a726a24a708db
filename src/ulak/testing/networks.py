"""A PostgreSQL on a machine of its own, as far as the network can tell: the cable can be cut.

    with Network() as network, RemotePostgres(network) as server:
        psycopg.connect(server.url())
        network.vanish()                         # nothing comes back, neither FIN nor RST
        network.come_back()

The other machine is a network namespace of Linux with a link to this one. That needs root and the
program `ip`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from ulak.testing.servers import ROLE, Postgres


class NoNetwork(RuntimeError):
    """This machine makes no networks; the message says why."""


class Network:
    """Two machines, this one and another, and the link between them.

    Raises:
        NoNetwork: on entry, where none can be made.
    """

    def __init__(self) -> None:
        number = os.getpid()
        self.name = f"ulak-{number}"
        self.here, *self.there = (f"10.251.{number % 250}.{host}" for host in (1, 2, 3))
        """The address of this machine, and those of the other one."""
        self._ours, self._theirs = f"ulak{number}a", f"ulak{number}b"

    def __enter__(self) -> Self:
        if os.geteuid() or shutil.which("ip") is None:
            raise NoNetwork("a network of its own needs root and the program ip")
        try:
            _ip("netns", "add", self.name)
            _ip("link", "add", self._ours, "type", "veth",
                "peer", "name", self._theirs, "netns", self.name)  # fmt: skip
            _ip("addr", "add", f"{self.here}/29", "dev", self._ours)
            _ip("link", "set", self._ours, "up")
            for address in self.there:
                self._do("addr", "add", f"{address}/29", "dev", self._theirs)
            self.come_back()
        except subprocess.CalledProcessError as error:
            self._remove()
            raise NoNetwork(f"this machine makes no networks: {error.stderr.strip()}") from None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._remove()

    @property
    def prefix(self) -> tuple[str, ...]:
        """What a command line begins with to be run on the other machine."""
        return ("ip", "netns", "exec", self.name)

    def vanish(self) -> None:
        """Take the other machine from the network, without a word to anybody."""
        self._do("link", "set", self._theirs, "down")

    def come_back(self) -> None:
        """Put the other machine on the network, with what its connections have left to say."""
        self._do("link", "set", self._theirs, "up")

    def drop(self, address: str) -> None:
        """Take one address from the other machine; its other connections go on."""
        self._do("addr", "del", f"{address}/29", "dev", self._theirs)

    def _do(self, *words: str) -> None:
        _ip("-n", self.name, *words)

    def _remove(self) -> None:
        subprocess.run(["ip", "netns", "del", self.name], check=False, capture_output=True)  # noqa: S603, S607


class RemotePostgres(Postgres):
    """A PostgreSQL on the other machine of a network."""

    def __init__(
        self,
        network: Network,
        *,
        durable: bool = False,
        settings: Mapping[str, str | int] | None = None,
    ) -> None:
        super().__init__(durable=durable, settings={"listen_addresses": "*", **(settings or {})})
        self.network = network
        self.prefix = network.prefix

    def url(self, database: str = "postgres", *, hosts: tuple[str, ...] = ()) -> str:
        """The address of a database there, by the first address of the machine or by these."""
        chosen = hosts or self.network.there[:1]
        return (
            f"postgresql://{ROLE}@{','.join(f'{host}:{self.port}' for host in chosen)}/{database}"
        )

    def _prepare(self) -> None:
        super()._prepare()
        with (self._data / "pg_hba.conf").open("a") as rules:
            rules.write("host all all samenet trust\n")


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)  # noqa: S603, S607
