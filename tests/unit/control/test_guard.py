"""The decision layer alone: its settings, its signals, its verdicts."""

import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest

from ulak.control.breaker import BreakerTerms
from ulak.control.guard import (
    CLOCK_SKEW_MS,
    MOST_CONFIG_AGE_MS,
    NOTHING_SET,
    VARIABLES,
    Denial,
    GuardConfig,
    GuardModes,
    SignalStatus,
    Verdict,
    find_mode,
    judge,
    make_snapshot,
    read_guard_environment,
)
from ulak.errors import BadInput

NOW = 1_800_000_000_000
ON = GuardConfig(decision_layer_enabled=True, endpoint_risk_map={"/jobs": "high"})


def snapshot(config=ON, modes=NOTHING_SET, **facts):
    usual = {"now_ms": NOW, "tenant_id": "acme", "endpoint": "/jobs", "method": "POST",
             "started_ms": NOW}  # fmt: skip
    facts = {**usual, **facts}
    risk = config.find_risk(facts["endpoint"])
    mode = find_mode(config, facts["tenant_id"], risk, modes)
    return make_snapshot(config, risk=risk, mode=mode, **facts)


@pytest.mark.shows("A-2")
def test_a_snapshot_has_everything_and_cannot_be_altered():
    made = snapshot(is_degraded=True, denial=Denial.RATE_LIMITED)
    assert (made.now_ms, made.tenant_id, made.endpoint, made.method) == (
        NOW,
        "acme",
        "/jobs",
        "POST",
    )
    assert (made.most_config_age_ms, made.clock_skew_ms) == (24 * 3600 * 1000, 5000)
    assert (made.config_hash, made.denial) == (ON.hash, Denial.RATE_LIMITED)
    assert (made.is_degraded, made.tenant_mode, made.risk_class) == (True, "enforce", "high")
    assert made.effective_mode == "enforce"
    with pytest.raises(AttributeError):
        made.effective_mode = "off"


@pytest.mark.shows("A-3")
@pytest.mark.parametrize(
    ("updated", "status"),
    [
        ("2027-01-15T08:00:00Z", SignalStatus.OK),
        ("2027-01-14T08:00:00Z", SignalStatus.OK),
        ("2027-01-14T07:59:55Z", SignalStatus.OK),  # exactly the most age and the skew
        ("2027-01-14T07:59:54.999000+00:00", SignalStatus.STALE),
        ("2027-01-14T07:59:54", SignalStatus.STALE),
        ("yesterday", SignalStatus.INSUFFICIENT),
    ],
)
def test_how_fresh_the_configuration_is(updated, status):
    made = snapshot(replace(ON, config_updated_at=updated))
    assert made.signals[0].status == status
    assert (made.is_stale, made.is_insufficient) == (
        status == SignalStatus.STALE, status == SignalStatus.INSUFFICIENT,
    )  # fmt: skip


@pytest.mark.shows("A-3", "A-56")
def test_without_a_time_the_start_of_the_process_counts():
    oldest = NOW - MOST_CONFIG_AGE_MS - CLOCK_SKEW_MS
    assert snapshot(started_ms=oldest).signals[0].status == SignalStatus.OK
    assert snapshot(started_ms=oldest - 1).signals[0].status == SignalStatus.STALE


@pytest.mark.shows("A-3", "A-56")
@pytest.mark.parametrize(
    ("mapped", "status"),
    [
        (None, SignalStatus.OK),
        ({"/jobs": ["store"]}, SignalStatus.OK),
        ({"/jobs": []}, SignalStatus.INSUFFICIENT),
        ({}, SignalStatus.INSUFFICIENT),
    ],
)
def test_an_endpoint_without_a_dependency_is_not_known_well_enough(mapped, status):
    assert snapshot(replace(ON, dependency_map=mapped)).signals[1].status == status


@pytest.mark.shows("A-4")
def test_the_verdict_follows_from_the_snapshot_alone():
    old, unknown = NOW - 2 * MOST_CONFIG_AGE_MS, replace(ON, dependency_map={})
    assert judge(None) == Verdict.ALLOW
    assert judge(snapshot()) == Verdict.ALLOW
    assert judge(snapshot(started_ms=old)) == Verdict.BLOCK_STALE
    assert judge(snapshot(unknown)) == Verdict.BLOCK_INSUFFICIENT
    assert judge(snapshot(unknown, started_ms=old)) == Verdict.BLOCK_INSUFFICIENT
    denied = snapshot(unknown, started_ms=old, denial=Denial.KILL_SWITCHED)
    assert judge(denied) == Verdict.PASSTHROUGH


@pytest.mark.shows("A-4")
def test_reason_codes_come_in_a_fixed_order():
    both = snapshot(replace(ON, dependency_map={}, config_updated_at="never"))
    assert both.reason_codes == ["CONFIG_UPDATED_AT_UNKNOWN", "DEPENDENCY_UNMAPPED"]
    turned = both._replace(signals=both.signals[::-1])
    assert turned.reason_codes == both.reason_codes


@pytest.mark.shows("A-5")
@pytest.mark.parametrize(
    ("endpoint", "risk"),
    [("/jobs", "high"), ("/jobs/{id}", "medium"), ("/jobs/bulk", "low"), ("/flows", "low")],
)
def test_the_risk_is_that_of_the_endpoint_else_of_the_longest_prefix_else_low(endpoint, risk):
    risks = {"/j": "high", "/jobs": "high", "/jobs/": "medium", "/jobs/b": "low"}
    assert GuardConfig(endpoint_risk_map=risks).find_risk(endpoint) == risk


@pytest.mark.shows("A-5")
@pytest.mark.parametrize(
    ("tenant", "risk", "modes", "effective", "why"),
    [
        ("acme", "high", GuardModes(), "enforce", ""),
        ("acme", "medium", GuardModes(), "enforce", ""),
        ("acme", "low", GuardModes(), "shadow", "risk low"),
        ("calm", "high", GuardModes(), "shadow", ""),
        ("gone", "high", GuardModes(), "off", ""),
        ("acme", "high", GuardModes(shadowed=(("acme", "high"),)), "shadow", "adaptive control"),
        ("acme", "medium", GuardModes(shadowed=(("acme", "high"),)), "enforce", ""),
        ("other", "high", GuardModes(shadowed=(("acme", "*"),)), "enforce", ""),
        ("gone", "high", GuardModes(shadowed=(("*", "*"),)), "off", ""),
        ("acme", "high", GuardModes("shadow"), "shadow", "manual override"),
        ("acme", "high", GuardModes("enforce", (("*", "*"),)), "enforce", ""),
        ("calm", "high", GuardModes("enforce"), "enforce", "manual override"),
        ("gone", "high", GuardModes("enforce"), "off", ""),
        ("acme", "high", GuardModes(switched_off_by="guard"), "off", "kill switch guard"),
    ],
)
def test_the_mode_of_a_tenant_and_why_it_is_not_the_configured_one(
    tenant, risk, modes, effective, why
):
    config = replace(ON, tenant_modes={"calm": "shadow", "gone": "off"})
    found = find_mode(config, tenant, risk, modes)
    assert (found.effective, found.why) == (effective, why)
    layerless = find_mode(replace(config, decision_layer_enabled=False), tenant, risk, modes)
    assert (layerless.effective, layerless.why) == ("off", "layer disabled")
    assert layerless.configured == found.configured


@pytest.mark.shows("A-6")
def test_the_hash_of_the_context_is_of_all_its_inputs():
    usual = snapshot().risk_context_hash
    assert len(usual) == 16
    assert set(usual) <= set("0123456789abcdef")
    assert snapshot(now_ms=NOW + 1).risk_context_hash == usual
    others = [
        snapshot(tenant_id="other"), snapshot(endpoint="/flows"), snapshot(method="GET"),
        snapshot(most_config_age_ms=1_000_000), snapshot(clock_skew_ms=1),
        snapshot(modes=GuardModes("shadow")), snapshot(denial=Denial.CIRCUIT_OPEN),
        snapshot(is_degraded=True), snapshot(started_ms=NOW - 1),
        snapshot(replace(ON, endpoint_risk_map={"/jobs": "medium"}, tenant_modes={"x": "off"})),
        snapshot(config_hash="0" * 16),
    ]  # fmt: skip
    assert len({usual, *(other.risk_context_hash for other in others)}) == 12


@pytest.mark.shows("A-56")
def test_every_setting_has_a_variable():
    config = read_guard_environment(
        {
            "OPS_GUARD_DECISION_LAYER_ENABLED": "true",
            "OPS_GUARD_DECISION_LAYER_DEFAULT_MODE": "shadow",
            "OPS_GUARD_CONFIG_UPDATED_AT": "2027-01-15T08:00:00Z",
            "OPS_GUARD_DEPENDENCY_MAP_JSON": '{"/jobs": ["store"]}',
            "OPS_GUARD_DECISION_LAYER_TENANT_MODES_JSON": '{"acme": "off"}',
            "OPS_GUARD_DECISION_LAYER_TENANT_ALLOWLIST_JSON": '["acme"]',
            "OPS_GUARD_DECISION_LAYER_ENDPOINT_RISK_MAP_JSON": '{"/jobs": "high"}',
            "OPS_GUARD_KILLSWITCH_DEGRADE_MODE": "true",
            "OPS_GUARD_KILLSWITCH_PDF": "false",
            "OPS_GUARD_KILLSWITCH_TENANTS": "acme, other",
            "OPS_GUARD_RATE_LIMIT_HEAVY_WRITE_PER_MINUTE": "10",
            "OPS_GUARD_CB_FAILURE_PCT": "25.5",
            "OPS_GUARD_CB_OPEN_SECONDS": "5",
        }
    )
    assert config == GuardConfig(
        True, "shadow", "2027-01-15T08:00:00Z", {"/jobs": ["store"]}, {"acme": "off"}, ["acme"],
        {"/jobs": "high"}, {"degrade_mode": True, "tenant:acme": True, "tenant:other": True},
        {"heavy-write": 10}, BreakerTerms(failure_pct=25.5, open_ms=5000),
    )  # fmt: skip
    assert (config.find_label("acme"), config.find_label("other")) == ("acme", "_other")


@pytest.mark.shows("A-9", "A-56")
def test_nothing_is_set_by_default():
    config = read_guard_environment({})
    assert config == GuardConfig()
    assert (config.decision_layer_enabled, config.rate_limits, config.kill_switches) == (
        False,
        {},
        {},
    )
    assert config.breaker == BreakerTerms(50.0, 60_000, 10, 30_000, 3)


@pytest.mark.shows("A-56")
@pytest.mark.parametrize(
    "text", ["{", "[1]", '{"acme": 3}', '{"acme": "sometimes"}', "[" * 100_000]
)
@pytest.mark.parametrize(
    ("variable", "field", "empty"),
    [
        ("DEPENDENCY_MAP_JSON", "dependency_map", {}),
        ("DECISION_LAYER_TENANT_MODES_JSON", "tenant_modes", {}),
        ("DECISION_LAYER_TENANT_ALLOWLIST_JSON", "tenant_allowlist", ()),
        ("DECISION_LAYER_ENDPOINT_RISK_MAP_JSON", "endpoint_risk_map", {}),
    ],
)
def test_json_that_cannot_be_used_is_empty_and_logged(variable, field, empty, text, caplog):
    with caplog.at_level(logging.WARNING, "ulak.guard"):
        config = read_guard_environment({f"OPS_GUARD_{variable}": text})
    assert getattr(config, field) == empty
    assert [variable in record.why for record in caplog.records] == [True]


@pytest.mark.shows("A-56")
def test_every_other_value_that_cannot_be_used_is_named():
    bad = {
        "OPS_GUARD_DECISION_LAYER_ENABLED": "perhaps",
        "OPS_GUARD_DECISION_LAYER_DEFAULT_MODE": "loud",
        "OPS_GUARD_RATE_LIMIT_OTHER_PER_MINUTE": "0",
        "OPS_GUARD_CB_FAILURE_PCT": "nan",
        "OPS_GUARD_KILLSWITCH_TENANTS": "acme,,",
    }
    with pytest.raises(BadInput) as raised:
        read_guard_environment(bad)
    assert len(str(raised.value).splitlines()) == 1, "a command prints one line"
    assert {part.partition(":")[0] for part in str(raised.value).split("; ")} >= set(bad)


@pytest.mark.shows("A-9", "A-56")
def test_the_example_file_names_settings_that_there_are():
    lines = Path(".env.example").read_text().splitlines()
    shown = dict(
        line.lstrip("#").split("=", 1) for line in lines if "OPS_GUARD_" in line and "=" in line
    )
    assert shown.keys() == set(VARIABLES)
    config = read_guard_environment({name: value.strip("'") for name, value in shown.items()})
    assert config.rate_limits == {"heavy-write": 10, "heavy-read": 120, "other": 60}
    assert json.loads(shown["OPS_GUARD_DECISION_LAYER_ENDPOINT_RISK_MAP_JSON"].strip("'"))
