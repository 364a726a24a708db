"""Orders while runners are killed, plans come half, and the saw lies; and what came of them.

Random orders go through modes A and E. Runners are killed again and again, the program of mode A
writes slowly, in halves, after its end or not at all, and the saw answers late, wrongly, twice or
with a copy. An operator does what the page for operators says: retries what may be retried, adds
customers and approves. Then every order, every plan and the ledger of the saw are looked at.
"""

from __future__ import annotations

import signal
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Any, Final

import ulak
from bench.cutting.program import WAYS
from bench.cutting.workshop import ACTIVE, Cut, Workshop, make_part
from ulak.errors import ServiceError
from ulak.services.cutting.codes import (
    HOLD_ERROR_CODES,
    PERMANENT_ERROR_CODES,
    TRANSIENT_ERROR_CODES,
)
from ulak.services.cutting.saw import Manner

RUNNERS: Final = 2
KILL_EVERY_S: Final = (0.3, 1.2)
KILLS: Final = 1.5
"""How often a runner is killed, for each order: so a storm ends, however slow the machine is."""
PATIENCE_S: Final = 900.0
MOST_SHOWN: Final = 20
RULES: Final = {"optimiserSlots": {"E": 2}}
PROGRAM: Final = {"ways": WAYS, "slow_s": 0.3}
MANNER: Final = Manner(late_s=1.0, wrong=0.1, twice=0.1, copies=0.05)
BATCHES: Final = (
    {"color": "Beyaz"}, {"color": "Çam", "thickness_mm": 25, "material_code": "ÇAM25"},
    {"color": "Ceviz"}, {"part_type": "ARKALIK", "thickness_mm": 3, "material_code": "HDF"},
    {"part_type": "ARKALIK", "thickness_mm": 8, "material_code": "HDF8"},
)  # fmt: skip
WORKER_DIED: Final = "worker-died"
UNDOCUMENTED: Final = frozenset({"E_UNKNOWN", "E_XML_INVALID", "E_PLAN_INVALID"})
"""Documented codes that nothing in this storm may bring about."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a storm."""

    counts: Mapping[str, float]
    wrong: Sequence[str]


def rage(shop: Workshop, orders: int, *, seed: int) -> Verdict:
    """Send so many orders to a workshop, while it is harmed; return what came of them."""
    dice = Random(seed)
    began, kills = time.perf_counter(), 0
    ids = [shop.order(f"storm-{n}", **make_order(dice)) for n in range(orders)]
    with shop.sawing():
        shop.start(RUNNERS)
        due, ends_at = 0.0, time.monotonic() + PATIENCE_S
        while _attend(shop, ids) and time.monotonic() < ends_at:
            victim = dice.choice(shop.runners)
            if kills < KILLS * orders and time.monotonic() >= due and victim.is_ready:
                shop.stop(victim, signal.SIGKILL)
                shop.begin()
                kills += 1
                due = time.monotonic() + dice.uniform(*KILL_EVERY_S)
            time.sleep(0.05)
        for runner in list(shop.runners):
            shop.wait_until_ready(runner)
            shop.stop(runner)
    jobs = [shop.job(id) for id in ids]
    trails = [shop.engine.inspect.trail(id) for id in ids]
    cuts = shop.cuts()
    wrong = [*_judge_cuts(shop, jobs, cuts), *_judge_jobs(shop, jobs)]
    wrong += [f"verify: {found}" for found in shop.engine.inspect.verify()]
    wrong += [f"two programs at once: {line['files']}" for line in shop.runs("overlap")]
    return Verdict(
        {
            **dict(sorted(shop.say(*ids).items())), "kills": kills,
            "plans cut": len(cuts), "pieces cut": sum(cut.parts.total() for cut in cuts),
            "programs started": len(shop.runs()), "programs ended": len(shop.runs("end")),
            "deliveries": sum(len(shop.deliveries(id)) for id in ids),
            "lapses": sum(line.kind == "lapsed" for trail in trails for line in trail),
            "retries": sum(line.kind == "retried" for trail in trails for line in trail),
            "seconds": round(time.perf_counter() - began, 1),
        },
        wrong,
    )  # fmt: skip


def make_order(dice: Random) -> dict[str, Any]:
    """Draw an order; one in eight has something that stops it."""
    parts = []
    for batch in dice.sample(BATCHES, dice.randint(1, 3)):
        parts += [
            make_part(
                f"P{len(parts) + n}", length_cm=dice.randint(10, 200), quantity=dice.randint(1, 4),
                width_cm=dice.randint(5, 90), grain=dice.randint(0, 3), **batch,
            )
            for n in range(dice.randint(1, 4))
        ]  # fmt: skip
    order: dict[str, Any] = {"mode": dice.choice("AE"), "parts": parts}
    drawn = dice.random()
    if drawn < 0.06:
        order["customer_phone"] = f"0555 {dice.randint(10**6, 10**7 - 1)}"
    elif drawn < 0.09:
        parts.append(make_part("thick", part_type="ARKALIK", thickness_mm=12))
    elif drawn < 0.12:
        parts.append(make_part("large", length_cm=300, width_cm=250))
    return order


def _attend(shop: Workshop, ids: Sequence[str]) -> bool:
    """Do what an operator does; tell whether anything is under way, or was until now."""
    is_busy = False
    if shop.cutting.breaker.describe()["breaker"]["state"] != "closed":
        shop.cutting.breaker.reset("operator")  # its programs were made to fail
    for id in ids:
        job = shop.job(id)
        code = job.code or ""
        if job.state == "FAILED" and code in TRANSIENT_ERROR_CODES and job.round <= 3:
            with suppress(ServiceError):  # it was cancelled, or an operator was faster
                shop.cutting.jobs.retry(id, actor="operator")
        elif job.state == "HOLD" and code == "E_CRM_NO_MATCH":
            phone = shop.engine.inspect.payload(id)["customer_phone"]
            shop.cutting.customers.add("Somebody", phone)
            shop.cutting.jobs.approve(id, actor="operator")
        elif job.state == "HOLD" and code == WORKER_DIED:  # on a slow machine, by our own kills
            shop.cutting.jobs.approve(id, actor="operator")
        elif job.role not in ACTIVE:
            continue
        is_busy = True
    return is_busy


def _judge_jobs(shop: Workshop, jobs: Sequence[ulak.Job]) -> Iterator[str]:
    for job in jobs:
        code, may_hold = job.code or "", HOLD_ERROR_CODES
        may_fail = TRANSIENT_ERROR_CODES | PERMANENT_ERROR_CODES
        is_documented = (
            job.state == "DONE"
            or (job.state == "HOLD" and code in may_hold - UNDOCUMENTED)
            or (job.state == "FAILED" and code in may_fail - UNDOCUMENTED)
        )
        if not is_documented:
            why = shop.engine.inspect.trail(job.id)[-1].message
            runs = [line for line in shop.runs("") if job.id in line["files"][0]]
            ways = [f"{line['what']} {line['way']}" for line in runs]
            yield f"{job.id} is {job.state} {code}: {why}; its programs: {', '.join(ways)}"


def _judge_cuts(shop: Workshop, jobs: Sequence[ulak.Job], cuts: Sequence[Cut]) -> Iterator[str]:
    by_name: dict[str, list[Cut]] = defaultdict(list)
    for cut in cuts:
        by_name[cut.name].append(cut)
    for job in jobs:
        done: Counter[int] = Counter()
        expected = shop.expected_parts(job.id)
        for row in shop.deliveries(job.id):
            for cut in by_name.pop(row.file_name, []):
                done[row.batch] += 1
                if cut.sha256 != row.sha256:
                    yield f"{cut.name} is not what was to be delivered"
                if cut.parts != expected[row.batch]:
                    yield f"{cut.name} has other pieces than were ordered"
                if row.state == "withdrawn":
                    yield f"{cut.name} was withdrawn, and cut"
            if row.state == "acked" and not done[row.batch]:
                yield f"{row.file_name} is acknowledged, and was not cut"
        yield from (f"batch {n} of {job.id} was cut {k} times" for n, k in done.items() if k > 1)
        if job.state == "DONE" and set(done) != set(expected):
            yield f"{job.id} is DONE, and of {len(expected)} batches {len(done)} were cut"
    yield from (f"{name} was cut, and nothing knows of it" for name in by_name)
