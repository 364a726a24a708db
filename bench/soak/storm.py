"""The storm: workers are killed, frozen beyond their lease, and drained, at random moments.

What a victim held is read from the store after its death: what it had begun, by the ledger, and
is still leased under the same token was not committed, and for the length of a lease nobody else
can take it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random

from bench.soak.children import LEDGER
from bench.soak.eyes import Eyes
from bench.soak.ledger import Ledger, Reader, read_all
from bench.soak.orders import UNDO_OF

ROOT = Path(__file__).parents[2]
UNDOS = frozenset(UNDO_OF.values())

# Blows are dealt from a shuffled deck, so that a short soak has some of each.
DECK = ("kill",) * 6 + ("kill at once",) * 2 + ("freeze",) * 2 + ("drain", "kill submitter")
PATIENCE_S = 5.0
DRAINED_WITHIN_S = 20.0


class Children:
    """The processes of one soak, started again whenever one has ended. Threads may share it."""

    def __init__(
        self,
        folder: Path,
        *,
        workers: int,
        seed: int,
        lease_s: float,
        url: str | None,
        broken: str | None,
    ) -> None:
        self._folder = folder
        self._options = ["--seed", str(seed), "--lease", str(lease_s)]
        self._options += ["--store", url] if url else []
        self._options += ["--broken", broken] if broken else []
        self.faults: list[str] = []
        self.log = (folder / "children.log").open("ab")
        self._turn = threading.RLock()
        self.submitter = self._start("submit")
        self.workers = [self._start("worker") for _ in range(workers)]
        self._allowed = 0

    def command(self, part: str) -> list[str]:
        """Return the command line of a `worker` or of the `submit`ter."""
        command = [sys.executable, "-m", "bench.soak.children", part, str(self._folder)]
        return [*command, *self._options]

    def _start(
        self,
        part: str,
        *,
        command: Sequence[str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command or self.command(part), cwd=ROOT, env={**os.environ, **(environment or {})},
            stdin=subprocess.PIPE if part == "submit" else subprocess.DEVNULL,
            stdout=self.log, stderr=self.log,
        )  # fmt: skip

    def add_worker(
        self,
        *,
        command: Sequence[str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start one more worker, by another command line or with more in its environment."""
        worker = self._start("worker", command=command, environment=environment)
        self.workers.append(worker)
        return worker

    def allow(self, orders: int) -> None:
        """Let the submitter go on up to this many orders."""
        with self._turn:
            self._allowed = max(orders, self._allowed)
            assert self.submitter.stdin is not None
            try:
                self.submitter.stdin.write(f"{self._allowed}\n".encode())
                self.submitter.stdin.flush()
            except BrokenPipeError:
                self.faults.append("the submitter died by itself")

    def restart(self, victim: subprocess.Popen[bytes]) -> None:
        """Put a new process in the place of one that has ended."""
        with self._turn:
            if victim is self.submitter:
                self._close_input()
                self.submitter = self._start("submit")
                self.allow(self._allowed)
            else:
                self.workers[self.workers.index(victim)] = self._start("worker")

    def look(self) -> None:
        """Note processes that nobody killed and that are gone all the same."""
        for child in (*self.workers, self.submitter):
            if child.poll() is not None:
                self.faults.append(f"process {child.pid} ended by itself ({child.returncode})")
                self.restart(child)

    def finish_submitting(self) -> None:
        """End the submitter's input and wait until everything is accepted."""
        self._close_input()
        if self.submitter.wait(timeout=60) != 0:
            self.faults.append(f"the submitter failed ({self.submitter.returncode})")

    def _close_input(self) -> None:
        assert self.submitter.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.submitter.stdin.close()

    def retire(self, worker: subprocess.Popen[bytes]) -> None:
        """Drain one worker, and put no other in its place."""
        self.workers.remove(worker)
        self._drain([worker])

    def stop(self) -> None:
        """Drain every worker."""
        self._drain(self.workers)

    def _drain(self, workers: Sequence[subprocess.Popen[bytes]]) -> None:
        for worker in workers:
            worker.terminate()
        ready = {line.pid for line in read_all(self._folder / LEDGER) if line.kind == "ready"}
        for worker in workers:
            try:
                # One that was told to stop before it could hear has run nothing.
                is_deaf = worker.wait(timeout=20) == -signal.SIGTERM and worker.pid not in ready
                if worker.returncode != 0 and not is_deaf:
                    self.faults.append(f"worker {worker.pid} failed ({worker.returncode})")
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()
                self.faults.append(f"worker {worker.pid} did not drain")

    def kill_all(self) -> None:
        """Leave nothing behind, whatever happened."""
        for child in (*self.workers, self.submitter):
            if child.poll() is None:
                child.kill()
                child.wait()
        self._close_input()
        self.log.close()


class Storm:
    """Deals the blows and counts them."""

    def __init__(
        self,
        folder: Path,
        children: Children,
        ledger: Ledger,
        eyes: Eyes,
        *,
        seed: int,
        lease_s: float,
    ) -> None:
        self._lease_s = lease_s
        self.counts: Counter[str] = Counter()
        self._eyes = eyes
        self._children = children
        self._ledger = ledger
        self._reader = Reader(folder / LEDGER)
        self._runs: dict[int, set[tuple[str, str, str]]] = {}
        self._dice = Random(seed)
        self._thaws: list[tuple[float, subprocess.Popen[bytes]]] = []
        self._deck: list[str] = []
        self._ready: set[int] = set()

    def rage(self, kills: int, *, before_each: Callable[[int], None], deadline: float) -> None:
        """Deal blows until so many workers were killed."""
        while self.counts["kills"] < kills and time.monotonic() < deadline:
            before_each(self.counts["kills"])
            time.sleep(self._dice.uniform(0.15, 0.45))
            self._thaw()
            self._children.look()
            blow = self._draw()
            if blow == "kill submitter":
                self._kill_submitter()
                continue
            awake = [w for w in self._children.workers if not self._is_frozen(w)]
            if blow == "drain":
                self._drain(self._dice.choice(awake))
            elif blow == "freeze":
                self._freeze(awake)
            else:
                self._kill(awake, at_once=blow == "kill at once")
        while self._thaws:
            self._thaw()
            time.sleep(0.05)

    def _draw(self) -> str:
        if not self._deck:
            self._deck = self._dice.sample(DECK, len(DECK))
        return self._deck.pop()

    def close(self) -> None:
        """Give back what was opened."""
        self._reader.close()

    # --- blows ------------------------------------------------------------------

    def _kill(self, awake: list[subprocess.Popen[bytes]], *, at_once: bool) -> None:
        """Kill a worker; unless at once, wait for one that stands still with an uncommitted run.

        Longer than a lease: what the last victims held runs again only then.
        """
        deadline = time.monotonic() + self._lease_s + PATIENCE_S
        while True:
            victim = self._dice.choice(awake)
            if not self._stop(victim):
                return
            if at_once or self._holds_a_run(victim.pid) or time.monotonic() > deadline:
                break
            victim.send_signal(signal.SIGCONT)
            time.sleep(self._dice.uniform(0.005, 0.02))
        # It stands still: from this line on it has left every limited stage.
        self._ledger.append("dead", pid=victim.pid)
        victim.kill()
        victim.wait()
        self.counts["kills"] += 1
        self.counts["kills with an uncommitted run"] += self._holds_a_run(victim.pid)
        self._children.restart(victim)

    def _freeze(self, awake: list[subprocess.Popen[bytes]]) -> None:
        """Stop a worker for longer than its lease: afterwards it is a zombie that may not write.

        One that runs something, or it would have nothing to write. Not while it holds a slot,
        since the outside cannot fence by then, and not while it holds the lock of the database,
        since then everybody would merely wait.
        """
        deadline = time.monotonic() + PATIENCE_S
        while len(awake) > 1 and time.monotonic() < deadline:
            victim = self._dice.choice(awake)
            if not self._stop(victim):
                return
            with self._eyes.standstill() as locked:
                good = locked and self._holds_a_run(victim.pid) and not self._slots(victim.pid)
            if good:
                over = time.monotonic() + self._lease_s + self._dice.uniform(0.3, 1.0)
                self._thaws.append((over, victim))
                self.counts["freezes beyond the lease"] += 1
                return
            victim.send_signal(signal.SIGCONT)
            time.sleep(self._dice.uniform(0.005, 0.03))

    def wait_until_all_are_ready(self) -> None:
        """Wait until every worker can be asked to drain; one that only starts would just die."""
        for worker in self._children.workers:
            self._wait_until_ready(worker)

    def _wait_until_ready(self, worker: subprocess.Popen[bytes]) -> None:
        while worker.pid not in self._ready and worker.poll() is None:
            time.sleep(0.02)
            self._read()

    def _drain(self, victim: subprocess.Popen[bytes]) -> None:
        """Ask a worker to stop, and wait until it has."""
        self._wait_until_ready(victim)
        victim.terminate()
        deadline = time.monotonic() + DRAINED_WITHIN_S
        while victim.poll() is None and time.monotonic() < deadline:
            # One that is frozen may hold rows that this one waits for.
            self._thaw()
            time.sleep(0.02)
        if victim.poll() is None:
            self._children.faults.append("a drained worker did not end")
            victim.kill()
        code = victim.wait()
        if code > 0:
            self._children.faults.append(f"a drained worker ended with {code}")
        self._ledger.append("dead", pid=victim.pid)
        self.counts["drains"] += 1
        self._children.restart(victim)

    def _kill_submitter(self) -> None:
        victim = self._children.submitter
        victim.kill()
        victim.wait()
        self.counts["submitter kills"] += 1
        self._children.restart(victim)

    # --- looking ----------------------------------------------------------------

    def _stop(self, victim: subprocess.Popen[bytes]) -> bool:
        """Stop a process and wait until it stands still; False when it had ended by itself."""
        if victim.poll() is not None:
            return False
        victim.send_signal(signal.SIGSTOP)
        _, status = os.waitpid(victim.pid, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            return True
        victim.returncode = os.waitstatus_to_exitcode(status)
        return False

    def _thaw(self) -> None:
        now = time.monotonic()
        for over, victim in [t for t in self._thaws if t[0] <= now]:
            victim.send_signal(signal.SIGCONT)
            self._thaws.remove((over, victim))

    def _is_frozen(self, worker: subprocess.Popen[bytes]) -> bool:
        return any(victim is worker for _, victim in self._thaws)

    def _holds_a_run(self, pid: int) -> bool:
        """Whether a stage that this process began is leased under the same token and not done."""
        self._read()
        began = self._runs.get(pid, set())
        return any(
            (job, str(token), name) in began
            for job, token, state, role in self._eyes.leased()
            for name in (UNDOS if role == "undoing" else {"pack" if state == "packing" else state})
        )

    def _read(self) -> None:
        for line in self._reader.read():
            if line.kind == "begin":
                job, *_, name = line.words[0].split("/")
                self._runs.setdefault(line.pid, set()).add((job, line.words[1], name))
            elif line.kind == "ready":
                self._ready.add(line.pid)

    def _slots(self, pid: int) -> bool:
        return any(f"-{pid}-" in worker for worker in self._eyes.slots())
