"""Clients of a PDF service, in a process of their own: an open loop, and each obeys a refusal.

`python -m bench.control.clients PLAN`, a `Plan` as JSON; prints a list of `Client` as JSON.
"""

from __future__ import annotations

import asyncio
import heapq
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import httpx

PATIENCE_S = 60.0
REFUSED = 429
ACCEPTED = 202


@dataclass(frozen=True)
class Plan:
    """How many come when, and how those wait that are refused."""

    url: str
    key: str
    phases: Sequence[tuple[float, float]]
    """Requests a second, and for how many seconds."""
    document: dict[str, Any]
    jitter_s: tuple[float, float]
    """A refused client waits as long as it is told, and so many seconds more."""
    do_crowds_return: bool = True
    """Whether clients of one phase still come for their second try in the next one."""
    seed: int = 1


@dataclass
class Try:
    """One request; times are seconds since 1970."""

    at: float
    status: int = 0
    """0 where nobody answered."""
    retry_after_s: int | None = None
    took_s: float = 0.0


@dataclass
class Client:
    """Somebody who wants one document, and asks twice at most."""

    number: int
    phase: int
    tries: list[Try] = field(default_factory=list)
    job: str = ""
    due_at: float = 0.0
    """When the second try may be."""


class Crowd:
    """All clients of a run.

    The rate of a phase is that of its requests: a second try that is due takes the place of a new
    client. Those of an earlier phase are no part of it, and come when their time has come.
    """

    def __init__(self, plan: Plan, http: httpx.AsyncClient) -> None:
        self.clients: list[Client] = []
        self._plan = plan
        self._http = http
        self._random = random.Random(plan.seed)
        self._waiting: list[tuple[float, int, Client]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Come, phase after phase; then those that still wait for their second try."""
        at = time.time()
        for phase, (rate, seconds) in enumerate(self._plan.phases):
            if phase:
                self._leave(at)
            end = at + seconds
            while (at := at + self._random.expovariate(rate)) < end:
                await asyncio.sleep(max(0.0, at - time.time()))
                self._return_of_before(phase)
                if self._waiting and self._waiting[0][0] <= at:
                    client = heapq.heappop(self._waiting)[2]
                else:
                    client = Client(len(self.clients), phase)
                    self.clients.append(client)
                self._start(client)
            at = end
        while self._tasks or self._waiting:
            self._return_of_before(len(self._plan.phases))
            await asyncio.sleep(0.05)

    def _leave(self, at: float) -> None:
        """A phase ends: whoever had no turn in it has given up, or all that wait have."""
        returning = self._plan.do_crowds_return
        self._waiting = [one for one in self._waiting if returning and one[0] > at]
        heapq.heapify(self._waiting)

    def _return_of_before(self, phase: int) -> None:
        now = time.time()
        due = [one for one in self._waiting if one[0] <= now and one[2].phase < phase]
        for one in due:
            self._waiting.remove(one)
            self._start(one[2])
        heapq.heapify(self._waiting)

    def _start(self, client: Client) -> None:
        task = asyncio.create_task(self._try(client))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _try(self, client: Client) -> None:
        made = Try(time.time())
        client.tries.append(made)
        variables = {**self._plan.document["variables"], "number": client.number}
        try:
            answer = await self._http.post(
                "/pdf/jobs", json={**self._plan.document, "variables": variables}
            )
        except httpx.HTTPError:
            return
        finally:
            made.took_s = time.time() - made.at
        made.status = answer.status_code
        if told := answer.headers.get("Retry-After", "").strip():
            made.retry_after_s = int(told)
        if answer.status_code == ACCEPTED:
            client.job = answer.json()["job_id"]
        elif answer.status_code == REFUSED and len(client.tries) == 1:
            wait_s = (made.retry_after_s or 0) + self._random.uniform(*self._plan.jitter_s)
            client.due_at = time.time() + wait_s
            heapq.heappush(self._waiting, (client.due_at, client.number, client))


async def come(plan: Plan) -> list[Client]:
    """Return what became of every client of a plan."""
    headers = {"Authorization": f"Bearer {plan.key}"}
    async with httpx.AsyncClient(
        base_url=plan.url, headers=headers, timeout=PATIENCE_S, limits=httpx.Limits()
    ) as http:
        crowd = Crowd(plan, http)
        await crowd.run()
    return crowd.clients


def read_clients(text: str) -> list[Client]:
    """Read what this program has printed."""
    return [
        Client(**{**each, "tries": [Try(**one) for one in each["tries"]]})
        for each in json.loads(text)
    ]


if __name__ == "__main__":
    found = asyncio.run(come(Plan(**json.loads(sys.argv[1]))))
    print(json.dumps([asdict(client) for client in found]))
