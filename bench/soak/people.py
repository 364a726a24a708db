"""The operators of the soak, two at once: they decide, release, retry, cancel and signal."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from random import Random

import ulak
from bench.soak.orders import Order, permit
from ulak.store.protocol import JobFilter

PAUSE_S = 0.05
A_PAGE = 500


class Operator(threading.Thread):
    """One person who looks at what waits for a person, again and again."""

    def __init__(self, name: str, engine: ulak.Engine, folder: Path, seed: int) -> None:
        super().__init__(name=name, daemon=True)
        self.acts: Counter[str] = Counter()
        self.error: BaseException | None = None
        self._engine = engine
        self._folder = folder
        self._dice = Random(f"{seed}/{name}")
        self._stop_asked = threading.Event()
        self._orders: dict[str, Order] = {}
        self._disturbed: set[str] = set()

    def stop(self) -> None:
        """Go home."""
        self._stop_asked.set()
        self.join()

    def run(self) -> None:
        try:
            while not self._stop_asked.wait(PAUSE_S):
                try:
                    self._look()
                except ulak.StoreError:
                    self.acts["no answer"] += 1  # the server is down: look again later
        except BaseException as error:  # noqa: BLE001 - a thread's error is told to its owner
            self.error = error

    def _look(self) -> None:
        for role in ("held", "failed"):
            for job in self._engine.jobs(JobFilter(flow="order", role=role), limit=A_PAGE):
                self._attend(job)
        # Whatever is newest is in the middle of something: a good moment to disturb it.
        for job in self._engine.jobs(JobFilter(flow="order"), limit=50):
            if not job.is_final and job.id not in self._disturbed and self._dice.random() < 0.2:
                self._disturb(job)
        for job in self._engine.jobs(JobFilter(flow="order", role="waiting"), limit=A_PAGE):
            self._try("signal", job, "stocked")

    def _disturb(self, job: ulak.Job) -> None:
        trouble = self._order(job).trouble
        self._disturbed.add(job.id)
        if trouble == "cancelled":
            self._try("cancel", job)
        elif trouble == "signalled":
            self._try("signal", job, "stocked")

    def _attend(self, job: ulak.Job) -> None:
        placed = self._order(job)
        if job.role == "failed":
            if placed.trouble == "weary" and job.round == 1:
                self._try("retry", job)
        elif job.state == "review":
            choice = "refuse" if placed.trouble == "refused" else "approve"
            self._try("decide", job, choice)
        else:
            permit(self._folder, placed.n).touch()
            self._try("release", job)

    def _try(self, verb: str, job: ulak.Job, *choice: str) -> None:
        try:
            getattr(self._engine, verb)(job.id, *choice, actor=self.name)
            self.acts[verb] += 1
        except (ulak.StaleJob, ulak.TransitionNotAllowed):
            self.acts["too late"] += 1  # the other one, or a worker, was faster

    def _order(self, job: ulak.Job) -> Order:
        if job.id not in self._orders:
            self._orders[job.id] = Order(**self._engine.inspect.payload(job.id))
        return self._orders[job.id]
