"""What a server must be to keep jobs, and what it may lose: asked when a store is opened."""

from __future__ import annotations

from typing import Final, NamedTuple

from ulak.errors import Misconfigured
from ulak.store.redis.server import Persistence, RedisServer

OLDEST: Final = (7, 0)
SCHEMA: Final = 1
NO_ANSWER: Final = "nothing is known of the server before it is opened"


class Facts(NamedTuple):
    """What a server says of itself."""

    version: str
    is_cluster: bool
    is_replica: bool
    persistence: Persistence

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
        if may_forget or not self.persistence.complaints:
            return None
        why = "; ".join(self.persistence.complaints)
        return f"may lose jobs: {why}; or say durability=none in the URL if they may be lost"

    @property
    def durability(self) -> str:
        """In a sentence, what may be lost."""
        return (
            f"a power cut costs {self.persistence.durability}; a failover loses what had not "
            "reached the replica"
        )


def ask(server: RedisServer) -> Facts:
    """Ask a server what it is. Raises `StoreError`: it does not say."""
    told: str = server.do("INFO").decode()
    info = dict(line.split(":", 1) for line in told.splitlines() if ":" in line)
    return Facts(
        info["redis_version"], info.get("cluster_enabled") == "1",
        info.get("role", "master") != "master", server.read_persistence(),
    )  # fmt: skip


def check(server: RedisServer, *, may_forget: bool) -> Facts:
    """Return what the server is, once it may hold a store. Raises `Misconfigured`: it may not."""
    facts = ask(server)
    fault = facts.find_fault(may_forget=may_forget)
    if fault is None:
        server.do("SETNX", "ulak:schema", SCHEMA)
        schema = int(server.do("GET", "ulak:schema"))
        if schema > SCHEMA:
            fault = f"is at schema {schema}, this ulak knows {SCHEMA}; install the newer release"
    if fault is not None:
        raise Misconfigured(f"{server.address} {fault}")
    return facts
