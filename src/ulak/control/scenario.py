"""A service under a simulated load, controlled by the shipped engine: what is refused, how long
jobs wait, how soon it is protected and how soon it recovers."""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Annotated, Any, Final, Literal, get_args

import msgspec

from ulak.control.collector import MetricsCollector
from ulak.control.config import AdaptiveControlConfig
from ulak.control.controller import COMPLETIONS
from ulak.control.gathering import feed
from ulak.control.signals import ACCEPTING, DEPTH, ENFORCE, GUARD, PDF, plain
from ulak.control.simulation import START_MS, Effects, decide, make_simulated
from ulak.control.state import SourceRow
from ulak.control.tallies import LATENCY_SECONDS
from ulak.errors import BadInput

API_SECONDS: Final = 0.02
LONGEST_S: Final = 30.0
"""A request that would wait longer has failed."""
MINUTE_S: Final = 60

Second = Annotated[int, msgspec.Meta(ge=0, le=86_400)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Load = Annotated[float, msgspec.Meta(ge=0, le=20)]
Positive = Annotated[float, msgspec.Meta(gt=0, le=1000)]


LoadShape = Literal["step", "ramp", "noise", "flapping", "outage"]


class Scenario(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A load, the service that it meets, and how that service is controlled."""

    load: LoadShape
    """Between `begins` and `ends` the load is `peak`, or rises to it (ramp), or changes between
    both (flapping); before and after it is `base`. An outage is a step with silent telemetry."""
    seconds: Annotated[int, msgspec.Meta(ge=60, le=86_400)] = 1800
    begins: Second = 600
    ends: Second = 900
    base: Load = 0.5
    """As a share of what the service can finish."""
    peak: Load = 3.0
    noise: Share = 0.0
    """The load of each second is up to this share higher or lower."""
    period: Annotated[int, msgspec.Meta(ge=2)] = 120
    """Of flapping: half of it each."""
    silent_from: Second = 700
    silent_until: Second = 800
    jobs_per_second: Positive = 5.0
    """What the service can finish."""
    requests_per_second: Positive = 200.0
    """What its API can answer."""
    polls_per_job: Annotated[int, msgspec.Meta(ge=0, le=100)] = 10
    failed_share: Share = 0.0
    slo_seconds: Positive = 30.0
    """From accept to finish."""
    tries: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 2
    """How often a client comes before it gives up."""
    jitter: Load = 1.0
    """Refused clients wait up to this share longer than `Retry-After`. Without it all of them come
    back at the moment at which the queue is expected to be short again."""
    is_obedient: bool = True
    """Whether refused clients wait for `Retry-After`; others come again every second."""
    seed: int = 1
    control: dict[str, Any] = {}
    """Fields of the configuration. Without `targets` every subsystem may be touched."""

    def configure(self) -> AdaptiveControlConfig:
        """Return the configuration. Raises `BadInput`: a field cannot be used."""
        anything = {"tenant_id": "*", "endpoint_class": "*", "subsystem_id": "*"}
        return AdaptiveControlConfig().changed({"targets": [anything], **self.control})

    def find_load(self, second: int) -> float:
        """Return the load of a second, as a share of what the service can finish."""
        if not self.begins <= second < self.ends:
            return self.base
        if self.load == "ramp":
            share = (second - self.begins) / (self.ends - self.begins)
            return self.base + (self.peak - self.base) * share
        is_low = self.load == "flapping" and (second - self.begins) % self.period * 2 >= self.period
        return self.base if is_low else self.peak

    def is_silent(self, second: int) -> bool:
        return self.load == "outage" and self.silent_from <= second < self.silent_until


def read_scenario(data: Any) -> Scenario:
    """Return the scenario of a document. Raises `BadInput`: it is none, and why."""
    try:
        found = msgspec.convert(data, Scenario)
    except msgspec.ValidationError as error:
        cure = (
            f"; load is one of {', '.join(get_args(LoadShape))}" if "$.load" in str(error) else ""
        )
        raise BadInput(f"this is no scenario: {error}{cure}") from None
    found.configure()
    return found


class Service:
    """Workers behind a queue and an API before them, a second at a time."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.queue: deque[int] = deque()
        """When each waiting job was accepted."""
        self.tries: Counter[int] = Counter()
        """How many clients got in by their first try, their second one and so on."""
        self.offered = self.rejected = self.gave_up = self.finished = self.failed = self.late = 0
        self.requests = self.errors = 0
        self.api_wait_s = 0.0
        self._random = random.Random(scenario.seed)  # noqa: S311 - drawn from a seed
        self._again: dict[int, list[int]] = {}
        self._ended: deque[int] = deque(maxlen=MINUTE_S)
        self._room = 0.0
        self._observed = {name: [0.0] * (len(LATENCY_SECONDS) + 1) for name in (GUARD, PDF)}

    def step(self, second: int, retry_after_s: int | None) -> None:
        """Let a second pass. Intake is closed while there is a `retry_after_s`."""
        scenario, draw = self.scenario, self._random
        load = scenario.find_load(second) * (1 + scenario.noise * draw.uniform(-1, 1))
        new = self._count_arrivals(load * scenario.jobs_per_second)
        self.offered += new
        tries = [*[0] * new, *self._again.pop(second, ())]
        for before in tries:
            if retry_after_s is None:
                self.queue.append(second)
                self.tries[before + 1] += 1
            else:
                self.rejected += 1
                wait_s = retry_after_s if scenario.is_obedient else 1
                wait_s += round(wait_s * draw.uniform(0, scenario.jitter))
                if before + 1 < scenario.tries:
                    self._again.setdefault(second + wait_s, []).append(before + 1)
                else:
                    self.gave_up += 1
        accepted = len(tries) if retry_after_s is None else 0
        self._work(second)
        self._answer(len(tries) + accepted * scenario.polls_per_job)

    def _count_arrivals(self, rate: float) -> int:
        """Return how many clients come in a second, at random times."""
        count, at = 0, self._random.expovariate(rate) if rate else math.inf
        while at < 1:
            count, at = count + 1, at + self._random.expovariate(rate)
        return count

    def _work(self, second: int) -> None:
        self._room += self.scenario.jobs_per_second
        done = min(int(self._room), len(self.queue))
        # What nobody has used does not make the next second a longer one.
        self._room = min(self._room - done, 1.0 + self.scenario.jobs_per_second % 1)
        self._ended.append(done)
        for _ in range(done):
            self.late += second - self.queue.popleft() > self.scenario.slo_seconds
            self.finished += 1
            self.failed += self._random.random() < self.scenario.failed_share
            self._observe(PDF, self._random.expovariate(self.scenario.jobs_per_second / 2))

    def _answer(self, requests: int) -> None:
        able = self.scenario.requests_per_second
        for _ in range(requests):
            self._observe(GUARD, self.api_wait_s + self._random.expovariate(1 / API_SECONDS))
        wait_s = max(0.0, self.api_wait_s + requests / able - 1)
        self.requests += requests
        self.errors += int(max(0.0, wait_s - LONGEST_S) * able)
        self.api_wait_s = min(LONGEST_S, wait_s)

    def _observe(self, name: str, seconds: float) -> None:
        self._observed[name][bisect_left(LATENCY_SECONDS, seconds)] += 1

    def read(self, at_ms: int, before: Mapping[str, tuple[int, int]]) -> list[SourceRow]:
        """Return what a tick reads of it, as the loop stores that."""
        rows = []
        for name, (bad, total) in self.counts.items():
            bad, total = bad - before[name][0], total - before[name][1]
            metric = "5xx_rate" if name == GUARD else "failed_jobs_rate"
            cumulative = list(accumulate(self._observed[name]))
            data: dict[str, Any] = {
                "sample": [at_ms, total, total - bad, 0.0], "counts": {metric: (bad, total)},
                "histograms": {"simulated": [at_ms, LATENCY_SECONDS, cumulative]},
            }  # fmt: skip
            if name == PDF:
                pace = sum(self._ended) / max(1, len(self._ended))
                data["gauges"] = {DEPTH: len(self.queue), COMPLETIONS: pace}
            rows.append(SourceRow(at_ms, name, data))
        return rows

    @property
    def counts(self) -> dict[str, tuple[int, int]]:
        """Return bad and all events so far."""
        return {GUARD: (self.errors, self.requests), PDF: (self.failed, self.finished)}


@dataclass
class Episodes:
    """How long it took, at worst, to protect a subsystem and to take that back. The guard is back
    when a restore is proposed: the rest is a person's."""

    protect_s: float | None = None
    recover_s: float | None = None
    _since: int | None = None
    _is_open: bool = True

    def look(self, second: int, is_open: bool, is_over: bool, is_under: bool) -> None:
        """See whether a subsystem is unprotected, and its value over the enter threshold or under
        the exit threshold."""
        if is_open != self._is_open:
            took = float(second - (second if self._since is None else self._since))
            if is_open:
                self.recover_s = max(took, self.recover_s or 0.0)
            else:
                self.protect_s = max(took, self.protect_s or 0.0)
            self._is_open, self._since = is_open, None
        is_due = is_over if self._is_open else is_under
        if not is_due:
            self._since = None
        elif self._since is None:
            self._since = second


@dataclass
class Simulated:
    """What became of a scenario."""

    scenario: Scenario
    service: Service
    episodes: dict[str, Episodes]
    ticks: list[dict[str, Any]] = field(default_factory=list)
    recorded: list[tuple[int, list[SourceRow]]] = field(default_factory=list)
    """For `replay`."""
    deepest: int = 0

    def summary(self) -> dict[str, Any]:
        """Return the figures, as JSON has them."""
        service, ended = self.service, self.scenario.seconds
        overdue = sum(ended - at > self.scenario.slo_seconds for at in service.queue)
        judged = service.finished + overdue
        in_time = service.finished - service.late
        accepted = sum(service.tries.values())
        return {
            "load": self.scenario.load,
            "subsystems": {
                name: {
                    "time_to_protect_seconds": each.protect_s,
                    "time_to_recover_seconds": each.recover_s,
                    "transitions": sum(
                        one["modes"][name] != other["modes"][name]
                        for one, other in pairwise(self.ticks)
                    ),
                }
                for name, each in self.episodes.items()
            },
            "jobs": {
                "offered": service.offered, "accepted": accepted, "rejected": service.rejected,
                "gave_up": service.gave_up,
                "finished": service.finished, "within_slo": in_time / judged if judged else 1.0,
                "in_by_second_try": (service.tries[1] + service.tries[2]) / max(1, accepted),
                "deepest_queue": self.deepest,
            },
            "states": dict(Counter(tick["state"] for tick in self.ticks)),
        }  # fmt: skip


def simulate(scenario: Scenario) -> Simulated:
    """Run a scenario to its end."""
    config, effects, service = scenario.configure(), Effects(), Service(scenario)
    found = Simulated(scenario, service, {GUARD: Episodes(), PDF: Episodes()})
    heard = service.counts
    now_rows: list[SourceRow] = []

    def collect(collector: MetricsCollector, now_ms: int) -> None:
        for row in now_rows:
            feed(collector, row)

    controller = make_simulated(config, effects, collect)
    for second in range(scenario.seconds):
        service.step(second, effects.retry_after_s)
        depth = len(service.queue)
        found.deepest = max(found.deepest, depth)
        if second % config.control_loop_interval_seconds == 0:
            now_ms = START_MS + second * 1000
            is_silent = scenario.is_silent(second)
            now_rows[:] = [] if is_silent else service.read(now_ms, heard)
            heard = heard if is_silent else service.counts
            found.recorded.append((now_ms, list(now_rows)))
            tick = decide(controller, now_ms)
            load = scenario.find_load(second) * scenario.jobs_per_second
            seen = {"second": second, "load": load, "true_depth": depth}
            found.ticks.append({**seen, "api_wait_seconds": plain(service.api_wait_s), **tick})
        for name, value, is_open, enter, exit in (
            (PDF, depth, controller.mode(PDF).mode == ACCEPTING,
             config.queue_depth_enter_threshold, config.queue_depth_exit_threshold),
            (GUARD, service.api_wait_s, controller.mode(GUARD).mode == ENFORCE,
             config.p95_latency_enter_threshold, config.p95_latency_exit_threshold),
        ):  # fmt: skip
            is_calm = is_open or name in controller.proposals
            found.episodes[name].look(second, is_calm, value > enter, value < exit)
    return found
