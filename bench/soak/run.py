"""One soak from beginning to end: children, storm, people, and the verdict."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import ulak
from bench import postgres, redis_speed
from bench.soak.checks import Evidence, occupancy, once_is_once, violations
from bench.soak.children import DATABASE, LEDGER, engine_of
from bench.soak.eyes import Eyes, PostgresEyes, RedisEyes, SqliteEyes, Watchman
from bench.soak.ledger import read_all
from bench.soak.orders import PACKERS
from bench.soak.people import Operator
from bench.soak.storm import Children, Storm
from ulak.core.lifecycle import FINAL

# So many orders may be ahead of the kills: enough that every worker is busy when it is hit.
AHEAD = 60


@dataclass(frozen=True, slots=True)
class Plan:
    """How long and how hard."""

    jobs: int = 2000
    kills: int = 100
    workers: int = 3
    seed: int = 1
    seconds: float = 900.0
    broken: str | None = None
    lease_s: float = 2.0
    store: str = "sqlite"
    restarts: int = 0
    """How often the server itself is killed and started again, spread over the kills."""

    @property
    def kills_in_a_run(self) -> int:
        """How many kills must hit a worker that holds an uncommitted run."""
        return -(-self.kills * 6 // 10)


@dataclass(slots=True)
class Verdict:
    """What was counted, and what was wrong."""

    counts: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether nothing was wrong."""
        return not self.wrong


def soak(plan: Plan, folder: Path) -> Verdict:
    """Run one soak in an empty folder."""
    if plan.store == "sqlite":
        return _soak(plan, folder, None)
    durable = {"postgres": postgres.durable, "redis": redis_speed.durable}[plan.store]
    with durable() as server:
        return _soak(plan, folder, server)


def _soak(plan: Plan, folder: Path, server: postgres.Bench | redis_speed.Bench | None) -> Verdict:
    started = time.monotonic()
    deadline = started + plan.seconds
    url = None if server is None else server.fresh()
    engine, ledger = engine_of(folder, url)
    engine.open()
    children = Children(
        folder,
        workers=plan.workers,
        seed=plan.seed,
        lease_s=plan.lease_s,
        url=url,
        broken=plan.broken,
    )

    def look() -> Eyes:
        if url is None:
            return SqliteEyes(folder / DATABASE)
        return RedisEyes(url) if plan.store == "redis" else PostgresEyes(url)

    eyes, watchman = look(), Watchman(look)
    storm = Storm(folder, children, ledger, eyes, seed=plan.seed, lease_s=plan.lease_s)
    people = [Operator(name, engine, folder, plan.seed) for name in ("ada", "bora")]
    verdict = Verdict()
    try:
        for person in people:
            person.start()
        share = plan.jobs / max(1, plan.kills)

        def before_each(kills: int) -> None:
            children.allow(min(plan.jobs, AHEAD + int(kills * share)))
            if server is not None and kills * (plan.restarts + 1) >= plan.kills * (
                storm.counts["server kills"] + 1
            ):
                server.server.kill()
                server.server.start()
                storm.counts["server kills"] += 1

        storm.rage(plan.kills, before_each=before_each, deadline=deadline - plan.seconds / 4)
        children.allow(plan.jobs)
        children.finish_submitting()
        wait_for_the_end(plan.jobs, engine, children, eyes, deadline)
        for person in people:
            person.stop()
        storm.wait_until_all_are_ready()
        children.stop()
        watchman.stop()
        _judge(plan, folder, engine, storm, verdict)
        _judge_packing(watchman, verdict)
    finally:
        watchman.stop()
        children.kill_all()
        storm.close()
        eyes.close()
        engine.close()
        ledger.close()
    verdict.wrong += children.faults
    verdict.wrong += troubles(people)
    for act, times in sum((p.acts for p in people), Counter()).items():
        verdict.counts[f"operators: {act}"] = times
    verdict.counts["seconds"] = round(time.monotonic() - started)
    return verdict


def wait_for_the_end(
    jobs: int, engine: ulak.Engine, children: Children, eyes: Eyes, deadline: float
) -> None:
    """Wait until so many orders, and what came of them, have ended and every message is sent."""
    while time.monotonic() < deadline:
        try:
            counts = engine.inspect.counts()
        except ulak.StoreError:
            time.sleep(0.2)  # a server that is only just back
            continue
        ended = sum(c.jobs for c in counts if c.flow == "order" and c.role in FINAL)
        if ended >= jobs and all(c.role in FINAL or c.jobs == 0 for c in counts):
            # A failed order may yet be retried by an operator.
            time.sleep(0.5)
            if counts == engine.inspect.counts() and eyes.unsent() == 0:
                return
        for worker in children.workers:
            if worker.poll() is not None:
                children.faults.append(f"worker {worker.pid} ended by itself")
                children.restart(worker)
        time.sleep(0.2)


def _judge(plan: Plan, folder: Path, engine: ulak.Engine, storm: Storm, verdict: Verdict) -> None:
    lines = read_all(folder / LEDGER)
    seen = Evidence(engine.store, lines, jobs=plan.jobs, seed=plan.seed)
    events = Counter(event.kind for trail in seen.trails.values() for event in trail)
    counts = verdict.counts
    counts["jobs"] = len(seen.rows)
    counts["ended"] = sum(row.role in FINAL for row in seen.rows.values())
    for state, jobs in sorted(Counter(row.state for row in seen.rows.values()).items()):
        counts[f"ended as {state}"] = jobs
    counts["SIGKILLs"] = storm.counts["kills"]
    counts["SIGKILLs while a run was uncommitted"] = storm.counts["kills with an uncommitted run"]
    for name in ("freezes beyond the lease", "drains", "submitter kills", "server kills"):
        counts[name] = storm.counts[name]
    counts["runs begun"] = sum(line.kind == "begin" for line in lines)
    counts["effects that happened"] = sum(line.kind == "effect" for line in lines)
    counts["effects by key"] = len({line.words[0] for line in lines if line.kind == "effect"})
    counts["effects recorded"] = events["noted"]
    counts["effects run again, or recorded twice"] = len(list(once_is_once(seen)))
    counts["events"] = sum(events.values())
    for kind in ("lapsed", "given-back", "retry", "held", "undone", "retried"):
        counts[f"events: {kind}"] = events[kind]
    for limit, (most, places) in occupancy(lines).items():
        counts[f"at once in {limit}, of {places}"] = most
    findings = list(findings_of_verify(engine))
    counts["findings of verify"] = len(findings)
    wrong = [*violations(seen), *findings]
    if storm.counts["kills"] < plan.kills:
        wrong.append(f"{storm.counts['kills']} kills in the time given, {plan.kills} were asked")
    elif storm.counts["kills with an uncommitted run"] < plan.kills_in_a_run:
        wrong.append(f"fewer than {plan.kills_in_a_run} kills hit an uncommitted run")
    if storm.counts["server kills"] < plan.restarts:
        wrong.append(f"the server was killed {storm.counts['server kills']} times only")
    counts["violations"] = len(wrong)
    verdict.wrong += wrong


def _judge_packing(watchman: Watchman, verdict: Verdict) -> None:
    verdict.counts["looks at packing"] = watchman.looks
    verdict.counts[f"in packing at once, of {PACKERS} of a line"] = watchman.most
    if watchman.most > PACKERS:
        verdict.wrong.append(
            f"{watchman.most} orders of a line stood in packing at once, {PACKERS} may"
        )


def findings_of_verify(engine: ulak.Engine) -> Iterator[str]:
    """Say what `verify` finds, a sentence each."""
    return (f"{f.kind}: job {f.job_id}: {f.sentence}" for f in engine.inspect.verify())


def troubles(people: Sequence[Operator]) -> list[str]:
    """Say which operators could not go on."""
    return [f"operator {p.name}: {p.error!r}" for p in people if p.error is not None]
