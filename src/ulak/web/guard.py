"""The request guard: kill switch, rate limiter, circuit breaker and decision layer, in this order,
before every handler.

`callers` asks it once the route and the caller are known and before the body is read, and
`MetricsMiddleware` tells it how the request has ended.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Final

from starlette.requests import Request

from ulak.auth.principal import ANYBODY, Principal
from ulak.control.breaker import FailureRateBreaker
from ulak.control.guard import (
    HEAVY_READ,
    HEAVY_WRITE,
    HIGH,
    OTHER_ROUTES,
    USUAL_TENANT,
    Denial,
    GuardSnapshot,
    Verdict,
    find_mode,
    judge,
    make_snapshot,
)
from ulak.control.guard_state import GuardState
from ulak.control.request_metrics import ANSWER, Answer
from ulak.control.signals import ENFORCE, OFF
from ulak.control.switches import DEGRADE, GLOBAL, TENANT
from ulak.errors import ServiceError
from ulak.web.access import KNOWN, PUBLIC, Access, Routes

log = logging.getLogger("ulak.guard")

TENANT_HEADER: Final = "X-Tenant-Id"
LONGEST_TENANT: Final = 200
SKIPPED: Final = frozenset(
    {"/metrics", "/health", "/health/live", "/health/ready", "/auth/login", "/auth/link"}
)
SKIPPED_BELOW: Final = "/admin/ops/"
WRITES: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})
# Bugs and outages; 501 is neither.
FAILURES: Final = frozenset({500, 502, 503, 504})
NOT_COUNTED: Final = frozenset({0, 429})
"""No response at all, and a refusal: neither counts for the dependency."""
PATIENCE_S: Final = 1.0
"""How long a request waits for the shared state where nothing recent is known. A guess."""
CURE: Final = {
    Verdict.BLOCK_STALE: (
        "the configuration of the guard is too old; look at it, and set OPS_GUARD_CONFIG_UPDATED_AT"
    ),
    Verdict.BLOCK_INSUFFICIENT: "the guard knows too little of this endpoint; see the reason codes",
}


_ERROR_CODES: Final = {
    Verdict.BLOCK_STALE: "OPS_GUARD_STALE",
    Verdict.BLOCK_INSUFFICIENT: "OPS_GUARD_INSUFFICIENT",
}


class KillSwitched(ServiceError):
    """A kill switch has turned the endpoint off."""

    code, status = "kill-switched", 503


class RateLimited(ServiceError):
    """The principal has made as many requests as it may in this minute."""

    code, status = "rate-limited", 429


class CircuitOpen(ServiceError):
    """What the endpoint depends on fails too often; it is left alone for a while."""

    code, status = "circuit-open", 503


class GuardFault(ServiceError):
    """The guard cannot tell whether a high-risk endpoint may be called."""

    code, status = "guard-fault", 503


class Blocked(ServiceError):
    """The decision layer has refused the request."""

    code, status = "ops-guard-blocked", 503

    def __init__(self, verdict: Verdict, reason_codes: list[str]) -> None:
        super().__init__(
            CURE[verdict], error="the request was blocked", errorCode=_ERROR_CODES[verdict],
            reasonCodes=reason_codes,
        )  # fmt: skip
        self.members["message"] = CURE[verdict]


_ERRORS: Final[Mapping[Denial, type[ServiceError]]] = {
    Denial.KILL_SWITCHED: KillSwitched,
    Denial.RATE_LIMITED: RateLimited,
    Denial.CIRCUIT_OPEN: CircuitOpen,
    Denial.INTERNAL_ERROR: GuardFault,
}


class NeverRead(Exception):
    """The kill switches were never read; the log has the reason."""


Pass = tuple[FailureRateBreaker, int]


class GuardChain:
    """The guard of one application: the state of its engine, and what its routes are."""

    def __init__(
        self, state: GuardState, access: Mapping[tuple[str, str], Access],
        brought: Mapping[str, Routes], *, asks: bool,
    ) -> None:  # fmt: skip
        self.state = state
        self._asks = asks
        self._service = {line.path: name for name, r in brought.items() for line in r.access}
        self._groups = {at: _group(line) for at, line in access.items()}
        # Probes and pages: a probe that reports a fault must not be closed for it.
        self._probes = {at for at, line in access.items() if line.is_public and at[0] == "GET"}
        for name, routes in brought.items():
            for limit in routes.rate_limits:
                state.add_limit(f"{name}/{limit.group}", limit.per_minute)
            for line in routes.access:
                found = next((each for each in routes.rate_limits if each.covers(line)), None)
                if found is not None:
                    self._groups[line.method, line.path] = f"{name}/{found.group}"
        self._risks: dict[str, str] = {}

    async def admit(self, request: Request, principal: Principal) -> None:
        """Let a request on. Raises `ServiceError`: the first part of the chain that refuses it."""
        template = request.scope["route"].path
        if template in SKIPPED or template.startswith(SKIPPED_BELOW):
            return
        state = self.state
        waiting = state.refresher.look(time.monotonic())
        if waiting is not None:
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await asyncio.shield(asyncio.wrap_future(waiting))
            except TimeoutError:
                state.refresher.give_up()
        now_ms = state.clock_ms()
        tenant = self._find_tenant(request, principal)
        self._ask_switches(request.method, template, tenant)
        self._ask_limiter(request, template, principal, now_ms)
        passes: list[Pass] = []
        try:
            self._ask_breakers(passes, request.method, template, now_ms)
            if state.config.decision_layer_enabled:
                self._judge(request.method, template, tenant, now_ms)
        except ServiceError:
            _release(passes)
            raise
        if passes:
            request.scope[ANSWER].when_ended = partial(self._record, passes)

    def _find_tenant(self, request: Request, principal: Principal) -> str:
        """Return the tenant of a request: its own, and where it is bound to none what it says."""
        if principal.tenant is not None:
            return principal.tenant or USUAL_TENANT
        if principal is ANYBODY and self._asks:
            return USUAL_TENANT  # of a stranger, whose header proves nothing
        sent = request.headers.get(TENANT_HEADER, "").strip()
        return sent[:LONGEST_TENANT] or USUAL_TENANT

    def _ask_switches(self, method: str, template: str, tenant: str) -> None:
        try:
            switch = self._find_switch(method, template, tenant)
        except Exception as error:  # noqa: BLE001 - a fault of ours must not close every endpoint
            self._meet_fault("kill-switch", template, error)
            return
        if switch is not None:
            raise self._denied(Denial.KILL_SWITCHED, f"the kill switch {switch} is on")

    def _find_switch(self, method: str, template: str, tenant: str) -> str | None:
        """Return the switch that closes an endpoint to a request; None: none does."""
        state = self.state
        active = state.switches.active
        if not active:
            if not state.is_known:
                raise NeverRead
            return None
        if GLOBAL in active:
            return GLOBAL
        if DEGRADE in active and method in WRITES:
            return DEGRADE
        own = self._service.get(template), TENANT + tenant
        return next((name for name in own if name in active), None)

    def _ask_limiter(
        self, request: Request, template: str, principal: Principal, now_ms: int
    ) -> None:
        limits = self.state.limits
        if not limits:
            return
        try:
            group = self._groups[_plain(request.method), template]
            limit = limits.get(group, 0)
            if not limit:
                return
            who = principal.name or (request.client.host if request.client else "")
            wait_s = self.state.limiter.take(group, who, limit, now_ms)
        except Exception as error:  # noqa: BLE001 - without its limiter nothing is let through
            self._count_fault("limiter", error)
            wait_s, group, limit = 1, "unknown", 0
        if wait_s:
            raise self._denied(
                Denial.RATE_LIMITED,
                f"the limit of {group} is {limit} requests a minute; try again in {wait_s} s",
                retry_after=timedelta(seconds=wait_s),
            )

    def _ask_breakers(self, passes: list[Pass], method: str, template: str, now_ms: int) -> None:
        """Add the passes of everything that an endpoint depends on."""
        state = self.state
        if (_plain(method), template) in self._probes:
            return
        try:
            for dependency in state.config.find_dependencies(template):
                breaker = state.breaker(dependency)
                given = breaker.admit(now_ms)
                if given is None:
                    wait_s = max(1, -(-breaker.retry_after_ms(now_ms) // 1000))
                    raise self._denied(
                        Denial.CIRCUIT_OPEN, f"{dependency} fails too often; try again later",
                        retry_after=timedelta(seconds=wait_s),
                    )  # fmt: skip
                passes.append((breaker, given))
        except ServiceError:
            raise
        except Exception as error:  # noqa: BLE001 - as above
            self._meet_fault("breaker", template, error)

    def _record(self, passes: list[Pass], answer: Answer) -> None:
        """Tell the breakers how a request was answered."""
        status = 500 if answer.has_raised else answer.status
        # A 503 with Retry-After is a refusal and no failure.
        if status in NOT_COUNTED or answer.is_refusal:
            _release(passes)
            return
        now_ms = self.state.clock_ms()
        for breaker, given in passes:
            breaker.record(given, now_ms, failed=status in FAILURES)

    def _judge(self, method: str, template: str, tenant: str, now_ms: int) -> None:
        state = self.state
        config, modes, active = state.config, state.modes, state.switches.active
        risk = self._find_risk(template)
        mode = find_mode(config, tenant, risk, modes)
        if mode.effective == OFF:
            return
        snapshot: GuardSnapshot | None = None
        try:
            snapshot = make_snapshot(
                config, now_ms=now_ms, tenant_id=tenant, endpoint=template, method=method,
                started_ms=state.started_ms, config_hash=state.config_hash, risk=risk, mode=mode,
                is_degraded=DEGRADE in active,
            )  # fmt: skip
        except Exception as error:  # noqa: BLE001 - counted, and the request passes
            state.tallies.failures.add(())
            log.warning("no snapshot of a request can be made", extra={"error": str(error)})
        verdict = judge(snapshot)
        if snapshot is None:
            return
        state.tallies.count_verdict(config, snapshot, verdict)
        if not verdict.blocks:
            return
        facts = {
            "endpoint": template, "verdict": str(verdict), "mode": snapshot.effective_mode,
            "reasons": snapshot.reason_codes, "context": snapshot.risk_context_hash,
        }  # fmt: skip
        log.warning("the guard would block a request", extra=facts)
        if snapshot.effective_mode == ENFORCE:
            raise Blocked(verdict, snapshot.reason_codes)

    def _find_risk(self, template: str) -> str:
        risk = self._risks.get(template)
        if risk is None:
            risk = self._risks[template] = self.state.config.find_risk(template)
        return risk

    def _meet_fault(self, part: str, template: str, error: Exception) -> None:
        """Refuse an endpoint of high risk; let others pass."""
        self._count_fault(part, error)
        if self._find_risk(template) == HIGH:
            raise self._denied(
                Denial.INTERNAL_ERROR, "the guard cannot tell whether this may be called now"
            )

    def _count_fault(self, part: str, error: Exception) -> None:
        self.state.tallies.faults.add((part,))
        if not isinstance(error, NeverRead):
            log.warning("a part of the guard failed", extra={"part": part, "error": str(error)})

    def _denied(self, denial: Denial, why: str, **options: Any) -> ServiceError:
        self.state.tallies.denials.add((denial.value,))
        return _ERRORS[denial](why, reason=denial.value, **options)


def _release(passes: list[Pass]) -> None:
    for breaker, given in passes:
        breaker.release(given)


def _group(line: Access) -> str:
    """Return the route group of a route that no service has put into one of its own."""
    if line.scope in (PUBLIC, KNOWN):
        return OTHER_ROUTES
    return HEAVY_WRITE if line.method in WRITES else HEAVY_READ


def _plain(method: str) -> str:
    return "GET" if method == "HEAD" else method


def show_modes(state: GuardState, tenants: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return the modes of the guard by tenant and risk class, and why they differ."""
    config = state.config
    names = dict.fromkeys(["*", *config.tenant_modes, *tenants])
    return [
        {
            "subsystem": "guard", "tenant": tenant, "risk_class": risk,
            "configured": mode.configured, "controlled": mode.controlled,
            "effective": mode.effective, "why": mode.why,
        }
        for tenant in names
        for risk in ("high", "medium", "low")
        for mode in [find_mode(config, tenant, risk, state.modes)]
    ]  # fmt: skip
