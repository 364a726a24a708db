"""The decision layer of the request guard: what one request is judged by, and the verdict."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final, NamedTuple

from ulak.control.breaker import BreakerTerms
from ulak.control.signals import ENFORCE, EVERY, OFF, SHADOW
from ulak.control.switches import DEGRADE, GLOBAL, TENANT, check_name
from ulak.errors import BadInput, NotFound
from ulak.strict_json import canonical_json

log = logging.getLogger("ulak.guard")

PREFIX: Final = "OPS_GUARD_"
HIGH, MEDIUM, LOW = "high", "medium", "low"
RISKS: Final = (HIGH, MEDIUM, LOW)
GUARD_MODES: Final = (ENFORCE, SHADOW, OFF)
USUAL_TENANT: Final = "default"
OTHER_TENANT: Final = "_other"
"""The label of a tenant that is not allowed as one."""
HEAVY_WRITE, HEAVY_READ, OTHER_ROUTES = "heavy-write", "heavy-read", "other"

MOST_CONFIG_AGE_MS: Final = 24 * 3600 * 1000
CLOCK_SKEW_MS: Final = 5_000


class Denial(StrEnum):
    """Why a request was refused before it was judged."""

    KILL_SWITCHED = "KILL_SWITCHED"
    RATE_LIMITED = "RATE_LIMITED"
    CIRCUIT_OPEN = "CIRCUIT_OPEN"
    INTERNAL_ERROR = "INTERNAL_ERROR"


class SignalStatus(StrEnum):
    OK = "OK"
    STALE = "STALE"
    INSUFFICIENT = "INSUFFICIENT"


class ReasonCode(StrEnum):
    """What is wrong with a signal. Codes are always listed in this order."""

    CONFIG_UPDATED_AT_UNKNOWN = "CONFIG_UPDATED_AT_UNKNOWN"
    CONFIG_TOO_OLD = "CONFIG_TOO_OLD"
    DEPENDENCY_UNMAPPED = "DEPENDENCY_UNMAPPED"


class Verdict(StrEnum):
    ALLOW = "ALLOW"
    PASSTHROUGH = "PASSTHROUGH"
    """Refused already: nothing is added."""
    BLOCK_INSUFFICIENT = "BLOCK_INSUFFICIENT"
    BLOCK_STALE = "BLOCK_STALE"

    @property
    def blocks(self) -> bool:
        return self in (Verdict.BLOCK_INSUFFICIENT, Verdict.BLOCK_STALE)


@dataclass(frozen=True, slots=True)
class GuardConfig:
    """The settings of the request guard, each a variable `OPS_GUARD_...`."""

    decision_layer_enabled: bool = False
    decision_layer_default_mode: str = ENFORCE
    config_updated_at: str = ""
    """When the configuration was last looked at, as RFC 3339; '' is the start of the process."""
    dependency_map: Mapping[str, Sequence[str]] | None = None
    """What each endpoint template depends on; None: every mounted route has a dependency of its
    own."""
    tenant_modes: Mapping[str, str] = field(default_factory=dict)
    tenant_allowlist: Sequence[str] = ()
    """Tenants that may be labels of metrics."""
    endpoint_risk_map: Mapping[str, str] = field(default_factory=dict)
    """Risk classes by endpoint template, or by a prefix of it."""
    kill_switches: Mapping[str, bool] = field(default_factory=dict)
    """Switches that are on until they are set in the store."""
    rate_limits: Mapping[str, int] = field(default_factory=dict)
    """Requests per minute and principal, by route group; a group that is not here has none."""
    breaker: BreakerTerms = field(default_factory=BreakerTerms)

    @property
    def hash(self) -> str:
        """Return 16 hex digits that differ when a setting does."""
        return _digest(asdict(self))

    def find_risk(self, endpoint: str) -> str:
        """Return the risk class of an endpoint template: by an exact match, else by the longest
        prefix, else `low`."""
        risks = self.endpoint_risk_map
        exact = risks.get(endpoint)
        if exact is not None:
            return exact
        prefixes = [prefix for prefix in risks if endpoint.startswith(prefix)]
        return risks[max(prefixes, key=len)] if prefixes else LOW

    def find_dependencies(self, endpoint: str) -> Sequence[str]:
        """Return what an endpoint depends on; nothing where the map does not name it."""
        if self.dependency_map is None:
            return (endpoint,)
        return self.dependency_map.get(endpoint, ())

    def find_label(self, tenant_id: str) -> str:
        """Return the tenant as metrics may have it."""
        return tenant_id if tenant_id in self.tenant_allowlist else OTHER_TENANT


@dataclass(frozen=True, slots=True)
class GuardModes:
    """What people and the loop have set of the guard, beside its configuration."""

    pinned: str = ""
    """The mode of a manual override."""
    shadowed: tuple[tuple[str, str], ...] = ()
    """Tenants and risk classes that the loop has put into shadow; `*` is any."""
    switched_off_by: str = ""
    """The kill switch that turns the decision layer off."""

    def is_shadowed(self, tenant_id: str, risk: str) -> bool:
        return any(
            tenant in (EVERY, tenant_id) and each in (EVERY, risk) for tenant, each in self.shadowed
        )


NOTHING_SET: Final = GuardModes()


class EffectiveMode(NamedTuple):
    """The mode of a tenant and a risk class, and why it is not the configured one."""

    configured: str
    controlled: str
    """After overrides and the loop."""
    effective: str
    why: str = ""


def find_mode(
    config: GuardConfig, tenant_id: str, risk: str, modes: GuardModes = NOTHING_SET
) -> EffectiveMode:
    """Return the mode in which requests of a tenant to endpoints of a risk class are judged. A
    tenant that is configured `off` stays so, whatever is pinned."""
    configured = config.tenant_modes.get(tenant_id, config.decision_layer_default_mode)
    controlled, why = configured, ""
    if configured != OFF:
        if modes.pinned:
            controlled = modes.pinned
        elif configured == ENFORCE and modes.is_shadowed(tenant_id, risk):
            controlled = SHADOW
        if controlled != configured:
            why = "manual override" if modes.pinned else "adaptive control"
    if not config.decision_layer_enabled:
        return EffectiveMode(configured, controlled, OFF, "layer disabled")
    if modes.switched_off_by:
        return EffectiveMode(configured, controlled, OFF, f"kill switch {modes.switched_off_by}")
    if controlled == ENFORCE and risk == LOW:
        return EffectiveMode(configured, controlled, SHADOW, "risk low")
    return EffectiveMode(configured, controlled, controlled, why)


class GuardSignal(NamedTuple):
    """One thing that was looked at."""

    name: str
    status: SignalStatus
    reason: ReasonCode | None = None


class GuardSnapshot(NamedTuple):
    """Everything that one request is judged by, as it stood when the request came."""

    now_ms: int
    tenant_id: str
    endpoint: str
    """The template of the route."""
    method: str
    config_updated_ms: int | None
    most_config_age_ms: int
    clock_skew_ms: int
    config_hash: str
    denial: Denial | None
    signals: tuple[GuardSignal, ...]
    is_degraded: bool
    """Whether `degrade_mode` is on."""
    tenant_mode: str
    risk_class: str
    effective_mode: str

    @property
    def is_stale(self) -> bool:
        return SignalStatus.STALE in [signal.status for signal in self.signals]

    @property
    def is_insufficient(self) -> bool:
        return SignalStatus.INSUFFICIENT in [signal.status for signal in self.signals]

    @property
    def reason_codes(self) -> list[str]:
        """Return what is wrong, in the order of `ReasonCode`."""
        found = {signal.reason for signal in self.signals}
        return [code.value for code in ReasonCode if code in found]

    @property
    def risk_context_hash(self) -> str:
        """Return the digest of everything but the time: requests of one context share it."""
        return _digest(dict(zip(self._fields[1:], self[1:], strict=True)))


def make_snapshot(
    config: GuardConfig,
    *,
    now_ms: int,
    tenant_id: str,
    endpoint: str,
    method: str,
    started_ms: int,
    risk: str,
    mode: EffectiveMode,
    config_hash: str = "",
    is_degraded: bool = False,
    denial: Denial | None = None,
    most_config_age_ms: int = MOST_CONFIG_AGE_MS,
    clock_skew_ms: int = CLOCK_SKEW_MS,
) -> GuardSnapshot:
    """Return the snapshot of one request."""
    updated_ms = read_updated_at(config.config_updated_at, started_ms)
    signals = (
        _look_at_config(updated_ms, now_ms, most_config_age_ms + clock_skew_ms),
        _look_at_dependencies(config, endpoint),
    )
    return GuardSnapshot(
        now_ms, tenant_id, endpoint, method, updated_ms, most_config_age_ms, clock_skew_ms,
        config_hash or config.hash, denial, signals, is_degraded, mode.configured, risk,
        mode.effective,
    )  # fmt: skip


def judge(snapshot: GuardSnapshot | None) -> Verdict:
    """Return the verdict on a request; one without a snapshot is let through."""
    if snapshot is None:
        return Verdict.ALLOW
    if snapshot.denial is not None:
        return Verdict.PASSTHROUGH
    if snapshot.is_insufficient:
        return Verdict.BLOCK_INSUFFICIENT
    return Verdict.BLOCK_STALE if snapshot.is_stale else Verdict.ALLOW


@lru_cache(maxsize=64)
def read_updated_at(text: str, started_ms: int) -> int | None:
    """Return when the configuration was updated, in milliseconds; None: the text is no time."""
    if not text:
        return started_ms
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    aware = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
    return int(aware.timestamp() * 1000)


_FRESHNESS, _MAPPING = "config_freshness", "dependency_mapping"
_FRESH: Final = GuardSignal(_FRESHNESS, SignalStatus.OK)
_OLD: Final = GuardSignal(_FRESHNESS, SignalStatus.STALE, ReasonCode.CONFIG_TOO_OLD)
_UNDATED: Final = GuardSignal(
    _FRESHNESS, SignalStatus.INSUFFICIENT, ReasonCode.CONFIG_UPDATED_AT_UNKNOWN
)
_MAPPED: Final = GuardSignal(_MAPPING, SignalStatus.OK)
_UNMAPPED: Final = GuardSignal(_MAPPING, SignalStatus.INSUFFICIENT, ReasonCode.DEPENDENCY_UNMAPPED)


def _look_at_config(updated_ms: int | None, now_ms: int, most_age_ms: int) -> GuardSignal:
    if updated_ms is None:
        return _UNDATED
    return _OLD if now_ms - updated_ms > most_age_ms else _FRESH


def _look_at_dependencies(config: GuardConfig, endpoint: str) -> GuardSignal:
    return _MAPPED if config.find_dependencies(endpoint) else _UNMAPPED


def _digest(document: Any) -> str:
    return sha256(canonical_json(document).encode()).hexdigest()[:16]


# What the variables say.


def read_guard_environment(variables: Mapping[str, str]) -> GuardConfig:
    """Return the settings that variables name; what they do not name has its default. A variable
    of JSON that cannot be used counts as an empty one, with a warning in the log. Raises
    `BadInput`: naming every other value that cannot be used."""
    wrong: list[str] = []
    read: dict[str, Any] = {}

    def take(name: str, reader: Callable[[str], Any]) -> Any:
        text = variables.get(PREFIX + name, "").strip()
        if not text:
            return None
        try:
            return reader(text)
        except ValueError as error:
            wrong.append(f"{PREFIX}{name}: {error}")
            return None

    for name, (field_name, reader) in _PLAIN.items():
        if (value := take(name, reader)) is not None:
            read[field_name] = value
    for name, (field_name, check, empty) in _JSON.items():
        text = variables.get(PREFIX + name, "").strip()
        if text:
            read[field_name] = _read_json(PREFIX + name, text, check, empty)
    switches = {switch: take(name, _flag) for name, switch in _SWITCHES.items()}
    tenants = take("KILLSWITCH_TENANTS", _tenants) or ()
    read["kill_switches"] = {
        **{name: True for name, is_on in switches.items() if is_on},
        **dict.fromkeys(tenants, True),
    }
    limits = {group: take(name, _count) for name, group in _LIMITS.items()}
    read["rate_limits"] = {group: n for group, n in limits.items() if n is not None}
    terms = {name: take(variable, reader) for variable, (name, reader) in _BREAKER.items()}
    read["breaker"] = BreakerTerms(**{k: value for k, value in terms.items() if value is not None})
    if wrong:
        raise BadInput("; ".join(wrong))
    return GuardConfig(**read)


def describe_guard(config: GuardConfig) -> dict[str, Any]:
    """Return each variable with the value in force, as `ulak doctor` shows it."""
    shown = {name: getattr(config, field_name) for name, (field_name, _) in _PLAIN.items()}
    shown |= {name: _write(getattr(config, name_)) for name, (name_, _, _) in _JSON.items()}
    shown |= {name: config.kill_switches.get(it, False) for name, it in _SWITCHES.items()}
    tenants = [n.removeprefix(TENANT) for n in config.kill_switches if n.startswith(TENANT)]
    shown["KILLSWITCH_TENANTS"] = ",".join(tenants)
    shown |= {name: config.rate_limits.get(group, "") for name, group in _LIMITS.items()}
    shown |= {name: getattr(config.breaker, it) for name, (it, _) in _BREAKER.items()}
    return {PREFIX + name: value for name, value in shown.items()}


def _write(value: Any) -> str:
    return "" if value is None else json.dumps(value)


def _read_json(variable: str, text: str, check: Callable[[Any], bool], empty: Any) -> Any:
    try:
        found = json.loads(text)
        if check(found):
            return found
        why = "it is JSON of another form"
    except (ValueError, RecursionError) as error:
        why = str(error)
    log.warning("a setting cannot be used and counts as empty", extra={"why": f"{variable}: {why}"})
    return empty


def _is_map(is_value: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda found: isinstance(found, dict) and all(map(is_value, found.values()))


def _is_texts(found: Any) -> bool:
    return isinstance(found, list) and all(isinstance(text, str) and text for text in found)


def _flag(text: str) -> bool:
    known = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if text.lower() not in known:
        raise ValueError(f"it is {text[:20]!r}; write true or false")
    return known[text.lower()]


def _mode(text: str) -> str:
    mode = OFF if text.lower() == "disabled" else text.lower()
    if mode not in GUARD_MODES:
        raise ValueError(f"it is {text[:20]!r}; write {', '.join(GUARD_MODES)}")
    return mode


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text[:12]) <= 1_000_000:
        raise ValueError(f"it is {text[:20]!r}; write a number from 1 to 1000000")
    return int(text)


def _percent(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found <= 100:
        raise ValueError(f"it is {text[:20]!r}; write a number above 0, up to 100")
    return found


def _milliseconds(text: str) -> int:
    return _count(text) * 1000


def _tenants(text: str) -> Iterable[str]:
    names = [TENANT + each.strip() for each in text.split(",")]
    for name in names:
        try:
            check_name(name)
        except NotFound as error:
            raise ValueError(str(error)) from None
    return names


_PLAIN: Final[Mapping[str, tuple[str, Callable[[str], Any]]]] = {
    "DECISION_LAYER_ENABLED": ("decision_layer_enabled", _flag),
    "DECISION_LAYER_DEFAULT_MODE": ("decision_layer_default_mode", _mode),
    "CONFIG_UPDATED_AT": ("config_updated_at", str),
}
_JSON: Final[Mapping[str, tuple[str, Callable[[Any], bool], Any]]] = {
    "DEPENDENCY_MAP_JSON": ("dependency_map", _is_map(_is_texts), {}),
    "DECISION_LAYER_TENANT_MODES_JSON": ("tenant_modes", _is_map(lambda m: m in GUARD_MODES), {}),
    "DECISION_LAYER_TENANT_ALLOWLIST_JSON": ("tenant_allowlist", _is_texts, ()),
    "DECISION_LAYER_ENDPOINT_RISK_MAP_JSON": (
        "endpoint_risk_map", _is_map(lambda risk: risk in RISKS), {},
    ),
}  # fmt: skip
_SWITCHES: Final = {
    "KILLSWITCH_GLOBAL": GLOBAL, "KILLSWITCH_DEGRADE_MODE": DEGRADE, "KILLSWITCH_GUARD": "guard",
    "KILLSWITCH_PDF": "pdf",
}  # fmt: skip
_LIMITS: Final = {
    "RATE_LIMIT_HEAVY_WRITE_PER_MINUTE": HEAVY_WRITE,
    "RATE_LIMIT_HEAVY_READ_PER_MINUTE": HEAVY_READ,
    "RATE_LIMIT_OTHER_PER_MINUTE": OTHER_ROUTES,
}
_BREAKER: Final[Mapping[str, tuple[str, Callable[[str], Any]]]] = {
    "CB_FAILURE_PCT": ("failure_pct", _percent),
    "CB_WINDOW_SECONDS": ("window_ms", _milliseconds),
    "CB_MIN_EVENTS": ("min_events", _count),
    "CB_OPEN_SECONDS": ("open_ms", _milliseconds),
    "CB_HALF_OPEN_PROBES": ("probes", _count),
}
VARIABLES: Final = tuple(
    PREFIX + name
    for name in (*_PLAIN, *_JSON, *_SWITCHES, "KILLSWITCH_TENANTS", *_LIMITS, *_BREAKER)
)
