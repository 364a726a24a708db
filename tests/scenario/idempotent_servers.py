"""Contract services, each a process of its own on one store, and those who ask them by sockets."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from tests.services.contracts.house import TENANT, backdoor

PATIENCE_S = 120.0
TRANSITION = "/v1/contract/transition"
ADMIN_KEY = "an-admin-key-of-two-servers-on-one-store"
SETTINGS = ("ULAK_", "HOS_", "IDEMPOTENCY_")
HELD = "held"
"""The subject whose first change is held up: in the middle of it, until `release`."""

PROGRAM = """
import os
import time
from pathlib import Path

import ulak
from ulak.services.contracts.ledger import Ledger

engine = ulak.connect(os.environ["CONTRACTS_STORE"])


@engine.job
def greet(name: str) -> str:
    return f"hello {name}"


def append(ledger, draft, append=Ledger.append):
    proof = append(ledger, draft)
    if draft.subject_id == "held":
        Path("holding").touch()
        while not Path("released").exists():
            time.sleep(0.005)
    return proof


Ledger.append = append
"""


class Told(NamedTuple):
    """An answer."""

    status: int
    body: bytes
    is_replay: bool
    headers: httpx.Headers

    @property
    def document(self) -> Any:
        return json.loads(self.body)

    @property
    def is_in_progress(self) -> bool:
        """Whether it is the 409 that asks to come again, as it must be said."""
        if self.status != 409 or self.document.get("code") != "idempotency_in_progress":
            return False
        return int(self.headers["Retry-After"]) >= 1 and not self.is_replay


@dataclass(frozen=True)
class Server:
    """One process that serves."""

    process: subprocess.Popen[str]
    address: str
    client: httpx.Client

    def ask(self, body: dict[str, Any], path: str = TRANSITION, **headers: str) -> Told:
        """Send one request.

        Raises:
            httpx.HTTPError: there is no answer.
        """
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        answer = self.client.post(f"{self.address}{path}", json=body, headers=named)
        is_replay = answer.headers.get("Idempotent-Replayed") == "true"
        return Told(answer.status_code, answer.content, is_replay, answer.headers)

    def stop(self) -> None:
        """Have it end in peace."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(PATIENCE_S) == 0

    def kill(self) -> None:
        """End it at once, with whatever it is doing."""
        self.process.kill()
        self.process.wait(PATIENCE_S)


class Site:
    """A store, a folder, and the servers that were started there."""

    def __init__(self, url: str, folder: Path, **settings: str) -> None:
        self.url, self.folder = url, folder
        self._env = {
            "CONTRACTS_STORE": url, "ULAK_ENV": "production", "ULAK_DATA": "data",
            "ULAK_SECRET": "signs-every-token-of-these-two-servers", "ULAK_ADMIN_KEY": ADMIN_KEY,
            "ULAK_SERVICE": "contracts", "ULAK_APP": "program:engine", **settings,
        }  # fmt: skip
        self._errors = folder / "errors.txt"
        self._processes: list[subprocess.Popen[str]] = []
        # Whoever waits for an answer waits to the end, however slow the machine is today.
        self._client = httpx.Client(
            headers={"Authorization": f"Token {ADMIN_KEY}"}, timeout=PATIENCE_S,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
        )  # fmt: skip
        (folder / "program.py").write_text(PROGRAM, encoding="utf-8")

    def start(self, number: int = 2, *, lock_wait_ms: int = 60_000) -> list[Server]:
        """Start so many servers at once; answer them when all are ready.

        A duplicate, and on SQLite any writer, waits for its turn as long as `lock_wait_ms`.
        """
        waits = {"IDEMPOTENCY_LOCK_WAIT_MS": str(lock_wait_ms)}
        begun = [self._ulak("up", "--port", "0", **waits) for _ in range(number)]
        return [Server(process, self._address_of(process), self._client) for process in begun]

    def release(self) -> None:
        """Let the change that is held up go on, and no other be."""
        (self.folder / "released").touch()

    def await_holding(self) -> None:
        """Wait until a change is held up."""
        until((self.folder / "holding").exists)

    def verify_proofs(self) -> dict[str, Any]:
        """Return what `ulak proof verify` says of the store; it must be content."""
        process = self._ulak("proof", "verify", "--json")
        out, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, out
        return json.loads(out)

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        """Look into the store behind the back of everybody."""
        with backdoor(self.url) as (db, schema, _):
            return db.execute(statement.format(schema=schema)).fetchall()

    def close(self) -> None:
        """End whatever still runs."""
        self._client.close()
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.communicate()

    def _address_of(self, process: subprocess.Popen[str]) -> str:
        """Where a server that is starting is found, once it is ready."""
        said = ""
        assert process.stdout is not None
        while "Ctrl-C" not in said:
            line = process.stdout.readline()
            assert line, self._errors.read_text()
            said += line
        found = re.search(r"http://\S+", said)
        assert found is not None
        return found[0]

    def _ulak(self, *arguments: str, **settings: str) -> subprocess.Popen[str]:
        others = {k: v for k, v in os.environ.items() if not k.startswith(SETTINGS)}
        # A pipe that nobody reads would hold up whoever writes to it.
        with self._errors.open("a") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "ulak", *arguments],
                cwd=self.folder, env={**others, **self._env, **settings},
                stdout=subprocess.PIPE, stderr=errors, text=True,
            )  # fmt: skip
        self._processes.append(process)
        return process


@contextmanager
def site_of(url: str, folder: Path, **settings: str) -> Iterator[Site]:
    """A site whose servers end with the block, however it ends."""
    site = Site(url, folder, **settings)
    try:
        yield site
    finally:
        site.close()


def change(key: str, *, id: str = "1", to: str = "paid", **members: Any) -> dict[str, Any]:
    """The body of a request that takes an order, new or not, from `pending` to a status."""
    return {
        "idempotency_key": key, "tenant_id": TENANT, "from": "pending", "to": to,
        "subject_ref": {"type": "order", "id": id}, **members,
    }  # fmt: skip


def at_once(calls: Sequence[Callable[[], Told]], *, clients: int) -> list[Told]:
    """Make calls by so many clients at a time; answer what each was told, in their order."""
    with ThreadPoolExecutor(clients) as threads:
        return list(threads.map(lambda call: call(), calls, timeout=PATIENCE_S))


def bodies_of(answers: Iterable[Told]) -> set[bytes]:
    """The different bodies of answers."""
    return {answer.body for answer in answers}


def until(condition: Callable[[], object]) -> None:
    """Wait for another process to have done something."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)
