"""`ulak control`: how adaptive control stands, why, and what it would do."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from ulak.control.config import AdaptiveControlConfig
from ulak.control.explanation import explain
from ulak.control.state import ControlState
from ulak.errors import BadInput, NotSupported
from ulak.kit.commands import output as out
from ulak.kit.commands.target import AppOption, reading
from ulak.wiring import control_settings

group = typer.Typer(no_args_is_help=True, help="Adaptive control: how it stands, and why.")


@group.command("status")
def status(app: AppOption = None, as_json: out.JsonOption = False) -> None:
    """Show the modes, timers and values of the last tick."""
    found = _explain(app)
    if as_json:
        out.print_json(found)
        return
    out.print_facts([("loop", found["why"]), ("state", str(found.get("state", "not started")))])
    rows = [
        (
            name, each["mode"], each["set_by"], _value(each), _seconds(each["dwell_left_ms"]),
            _seconds(each["cooldown_left_ms"]),
        )
        for name, each in found["subsystems"].items()
    ]  # fmt: skip
    if rows:
        columns = ("subsystem", "mode", "set by", "value", "dwell left", "cooldown left")
        out.print_table(columns, rows, keep=("subsystem", "mode"))


@group.command("why")
def why(app: AppOption = None, as_json: out.JsonOption = False) -> None:
    """Explain the last tick: for each subsystem what it saw, and why it did no more."""
    found = _explain(app)
    if as_json:
        out.print_json(found)
        return
    out.print_facts([("loop", found["why"])])
    for name, each in found["subsystems"].items():
        facts = [
            (name, each["why"]),
            ("  mode", f"{each['mode']}, set by {each['set_by']}"),
            (f"  {each['metric']}", _value(each)),
            ("  telemetry", each["insufficient"] or "sufficient"),
            ("  held by", each["hold"] or "nothing"),
            ("  dwell left", _seconds(each["dwell_left_ms"])),
            ("  cooldown left", _seconds(each["cooldown_left_ms"])),
        ]
        facts += [
            (
                f"  {b['metric']}",
                f"{b['budget_remaining_pct']:.1%} left, burn {_plain(b['burn_rate'])}",
            )
            for b in each["budgets"]
        ]
        facts += [(f"  {s['signal_type']}", s["outcome"]) for s in each["signals"]]
        out.print_facts(facts)


def _explain(app: str | None) -> dict[str, Any]:
    with reading(app) as engine:
        state = ControlState(engine)
        stored = state.find_config()
        config = control_settings() if stored is None else stored.config
        return explain(config, state.find_last_tick(), state.now_ms)


def _value(each: dict[str, Any]) -> str:
    value = each["value"]
    seen = f"{value:g}" if isinstance(value, int | float) else "-"
    return f"{seen} (enter above {each['enter']:g}, exit below {each['exit']:g})"


def _plain(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.3g}"


def _seconds(left_ms: int) -> str:
    return f"{left_ms / 1000:.0f} s" if left_ms else "-"


@group.command("simulate")
def simulate(
    scenario: Annotated[Path, typer.Argument(metavar="SCENARIO", help="A file of YAML or JSON.")],
    svg: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw it into this file.")
    ] = None,
    as_json: out.JsonOption = False,
) -> None:
    """Run the engine over a simulated load; no store is read and nothing is changed."""
    from ulak.control.scenario import read_scenario
    from ulak.control.scenario import simulate as run

    read = read_scenario(_read_yaml(scenario))
    with _unlogged():
        found = run(read)
    summary = found.summary()
    if svg is not None:
        svg.write_text(_draw(scenario.name, found.ticks, read.configure()), encoding="utf-8")
    if as_json:
        out.print_json({**summary, "ticks": found.ticks})
        return
    rows = [
        (
            name, _took(each["time_to_protect_seconds"]), _took(each["time_to_recover_seconds"]),
            str(each["transitions"]),
        )
        for name, each in summary["subsystems"].items()
    ]  # fmt: skip
    columns = ("subsystem", "time to protect", "time to recover", "transitions")
    out.print_table(columns, rows, keep=columns)
    jobs = summary["jobs"]
    out.print_facts([
        ("jobs", ", ".join(f"{jobs[name]} {name}" for name in ("offered", "accepted", "finished"))),
        ("refused", f"{jobs['rejected']} times; {jobs['gave_up']} clients gave up"),
        ("in time", f"{jobs['within_slo']:.1%} within {read.slo_seconds:g} s"),
        ("deepest queue", str(jobs["deepest_queue"])),
    ])  # fmt: skip
    if svg is not None:
        out.note(f"drawn into {svg}")


def _took(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.0f} s"


def _read_yaml(path: Path) -> Any:
    import msgspec

    try:
        return msgspec.yaml.decode(path.read_bytes())
    except ImportError:
        raise NotSupported("scenarios are read by PyYAML: pip install 'ulak[control]'") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadInput(f"{path} is no YAML: {error}") from None


def _draw(name: str, ticks: list[dict[str, Any]], config: AdaptiveControlConfig) -> str:
    from ulak.control.picture import draw, make_panels

    return draw(make_panels(ticks, config.document()), f"{name}: dashed are the thresholds")


@contextmanager
def _unlogged() -> Iterator[None]:
    """Keep what is only simulated out of the log."""
    log = logging.getLogger("ulak.control")
    was, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = was
