"""What a server must be, and what it may lose: asked when a store is opened."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from ulak.errors import Misconfigured, StoreError
from ulak.store.redis.connection import Connection
from ulak.store.redis.values import read_map

OLDEST: Final = (7, 0)
SCHEMA: Final = 1

_FAILOVER: Final = "a failover loses what had not reached the replica"
# What a power cut may cost, by `appendfsync`; '' where the server does not tell.
DURABILITY: Final = {
    "always": f"nothing that was acknowledged is lost; {_FAILOVER}",
    "everysec": f"the last second of what was acknowledged; {_FAILOVER}",
    "no": f"what the system has not written, some 30 seconds of it; {_FAILOVER}",
    "": f"what appendfsync allows, which the server does not tell; {_FAILOVER}",
}
FORGETFUL: Final = "what was acknowledged since the last snapshot, since appendonly is off"
NO_ANSWER: Final = "nothing is known of the server before it is opened"


class Server(NamedTuple):
    """What a server says of itself."""

    version: str
    is_cluster: bool
    is_replica: bool
    has_log: bool
    """Whether it writes what was changed to a file that is only added to."""
    eviction: str
    appendfsync: str

    def find_fault(self, *, may_forget: bool) -> str | None:
        """Say why a store cannot be here, and what helps."""
        if tuple(int(part) for part in self.version.split(".")[:2]) < OLDEST:
            return f"is Redis {self.version}; {OLDEST[0]}.{OLDEST[1]} or newer is needed"
        if self.is_cluster:
            return (
                "is a node of a cluster, and a store is one database of one server; give it a "
                "server of its own, with a replica if it may not be away"
            )
        if self.is_replica:
            return "is a replica, which takes no writes; name the primary"
        if self.eviction != "noeviction" and not may_forget:
            return (
                f"removes keys when its memory is full (maxmemory-policy {self.eviction}): jobs "
                "would vanish; set maxmemory-policy noeviction"
            )
        if not self.has_log and not may_forget:
            return (
                "forgets jobs when it ends (appendonly no); set appendonly yes and appendfsync "
                "always, or say durability=none in the URL if jobs may be lost"
            )
        return None

    @property
    def durability(self) -> str:
        return DURABILITY.get(self.appendfsync, DURABILITY[""]) if self.has_log else FORGETFUL


def ask_server(connection: Connection) -> Server:
    """Ask a server what it is; a hosted one may not tell its settings."""
    told: str = connection.do("INFO").decode()
    info = dict(line.split(":", 1) for line in told.splitlines() if ":" in line)
    try:
        settings: Mapping[str, bytes] = read_map(connection.do("CONFIG", "GET", "appendfsync"))
    except StoreError:
        settings = {}
    return Server(
        info["redis_version"],
        info.get("cluster_enabled") == "1",
        info.get("role", "master") != "master",
        info.get("aof_enabled") == "1",
        info.get("maxmemory_policy", "noeviction"),
        settings.get("appendfsync", b"").decode(),
    )


def check_server(connection: Connection, *, may_forget: bool) -> Server:
    """Return what the server is, once it may hold a store. Raises `Misconfigured`: it may not."""
    server = ask_server(connection)
    fault = server.find_fault(may_forget=may_forget)
    if fault is None:
        connection.do("SETNX", "ulak:schema", SCHEMA)
        schema = int(connection.do("GET", "ulak:schema"))
        if schema > SCHEMA:
            fault = f"is at schema {schema}, this ulak knows {SCHEMA}; install the newer release"
    if fault is not None:
        raise Misconfigured(f"{connection.place} {fault}")
    return server
