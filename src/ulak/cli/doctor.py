"""`ulak doctor`: what is in force, where it came from, and which jobs nobody can serve."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Annotated, Any

import typer

import ulak
from ulak import settings, wiring
from ulak.clock import rfc3339, to_datetime
from ulak.control.config import VARIABLES as CONTROL
from ulak.control.guard import describe_guard
from ulak.core.flow import Flow
from ulak.core.job import JobRow, lane_before
from ulak.core.lifecycle import CLAIMABLE, FINAL, UNDOING
from ulak.core.schedule import LATE
from ulak.core.table import find_missing, knows
from ulak.engine.engine import Engine
from ulak.errors import FlowError
from ulak.idempotency.settings import IdempotencySettings, names, variable
from ulak.kit.commands.output import JsonOption, print_facts, print_json, print_table, when
from ulak.kit.commands.target import AppOption, in_force, load
from ulak.service import Condition, get_service
from ulak.settings import Settings
from ulak.store import without_password
from ulak.store.protocol import CountRow, JobFilter, WorkerRow

WAL_RESET = (
    "this SQLite has the WAL-reset bug (mended in 3.51.3, 3.50.7 and 3.44.6): a checkpoint that "
    "overlaps a write can lose committed pages. ulak checkpoints only under its lock file; let no "
    "other program write to or checkpoint this database"
)


LOSES = (
    "synchronous_commit is off: when the server crashes, what it acknowledged in its last moments "
    "may be lost (jobs, moves, messages; three times wal_writer_delay, 0.6 s by default). "
    "ALTER DATABASE ... SET synchronous_commit = on"
)
NO_FSYNC = "fsync is off: a power cut may destroy the database. Set fsync = on"
PAGE = 1000
"""Jobs that are looked at together."""
NO_VIEW = (
    "public.hos_idempotency_keys is not there: this role may not make it, or the name is taken. "
    "Run SELECT ulak.show_idempotency_keys() as the owner of the database"
)
NO_RING = "the ring is not heard: jobs of other processes are found when workers look, not at once"


@dataclass(frozen=True, slots=True)
class Trouble:
    """Jobs that somebody should look at before they are missed."""

    code: str
    flow: str
    version: int
    state: str
    jobs: int
    sentence: str


def doctor(
    app: AppOption = None,
    before_deploy: Annotated[
        bool,
        typer.Option(
            "--before-deploy", help="Only what this program could not serve; exit 1 if anything."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Say what is in force and where it came from, and which jobs nobody can serve; exit 1 when a
    service cannot work here."""
    found = in_force(app)
    engine = load(found)
    # The store itself, not the engine: an engine refuses to open what this command must show.
    engine.store.open()
    try:
        counts = [count for count in engine.store.counts() if count.jobs > 0]
        unservable = _unservable(engine, counts)
        if before_deploy:
            if as_json:
                print_json({"app": found.app, "troubles": list(map(asdict, unservable))})
            else:
                _print_troubles(unservable, f"{found.program} can serve every stored job")
            if unservable:
                raise typer.Exit(1)
            return
        now = engine.store.clock.now()
        alive = [worker for worker in engine.store.workers() if worker.expires_at > now]
        facts = _facts(found, engine, alive, counts)
        troubles = unservable + _unserved(engine, counts, alive) + _late(engine, alive)
    finally:
        engine.store.close()
    if as_json:
        print_json({**facts, "troubles": [asdict(trouble) for trouble in troubles]})
    else:
        _print(facts, troubles)
    if facts["missing"]:
        raise typer.Exit(1)


def _facts(
    found: Settings, engine: Engine, alive: list[WorkerRow], counts: list[CountRow]
) -> dict[str, Any]:
    store = engine.store
    about: dict[str, Any] = getattr(store, "about", dict)()
    services = map(get_service, found.services)
    conditions = [service.condition(found) for service in services if service.condition]
    return {
        "ulak": ulak.__version__,
        "settings": {
            name: {"value": value, "source": source}
            for name, (value, source) in {
                **{name: (found.shown(name), found.source(name)) for name in settings.names()},
                **_of_idempotency(),
                **_of_guard(),
                **_of_control(),
                **{k: v for condition in conditions for k, v in condition.settings.items()},
            }.items()
        },
        "store": {**asdict(store.features), **about},
        "notes": _notes(about) + [note for condition in conditions for note in condition.notes],
        "missing": [sentence for condition in conditions for sentence in _missing(condition)],
        "flows": [{"flow": f.name, "version": f.version} for f in engine.inspect.flows],
        "schedules": [
            {"schedule": row.name, "paused": row.paused_at is not None} for row in store.schedules()
        ],
        "workers": [
            {
                "id": w.id,
                "about": w.about,
                "renewed_at": rfc3339(to_datetime(w.renewed_at)),
                "expires_at": rfc3339(to_datetime(w.expires_at)),
                "lanes": w.lanes.split(),
            }
            for w in alive
        ],
        "jobs": {
            "unfinished": sum(c.jobs for c in counts if c.role not in FINAL),
            "ended": sum(c.jobs for c in counts if c.role in FINAL),
        },
    }


def _missing(condition: Condition) -> list[str]:
    """Return what keeps a service from working here; it is tried where nothing is known to."""
    tried = [] if condition.missing or condition.try_out is None else condition.try_out()
    return [*condition.missing, *tried]


def _of_idempotency() -> dict[str, tuple[Any, str]]:
    """Return the settings of idempotency, by their variables: they have no other name."""
    kept, usual = asdict(wiring.idempotency_settings()), asdict(IdempotencySettings())
    kept["redis_url"] = without_password(kept["redis_url"])
    sources = {name: "default" if kept[name] == usual[name] else variable(name) for name in names()}
    return {variable(name): (kept[name], source) for name, source in sources.items()}


def _of_guard() -> dict[str, tuple[Any, str]]:
    """Return the settings of the request guard, by their variables."""
    shown = describe_guard(wiring.guard_settings())
    said = settings.read_variables(dict.fromkeys(shown, str))
    return {name: (value, name if name in said else "default") for name, value in shown.items()}


def _of_control() -> dict[str, tuple[Any, str]]:
    """Return the settings of adaptive control, by their variables: those of a start, which a
    change at runtime outlives."""
    config = wiring.control_settings().document()
    said = settings.read_variables(dict.fromkeys(CONTROL, str))
    shown = {name: config[field] for name, field in CONTROL.items()}
    return {name: (value, name if name in said else "default") for name, value in shown.items()}


def _notes(about: Mapping[str, Any]) -> list[str]:
    known = {
        WAL_RESET: about.get("wal_reset_bug"),
        LOSES: about.get("synchronous_commit") == "off",
        NO_FSYNC: about.get("fsync") == "off",
        NO_RING: about.get("ring") is False,
        NO_VIEW: about.get("idempotency_view") is False,
    }
    return [sentence for sentence, holds in known.items() if holds]


def _unservable(engine: Engine, counts: list[CountRow]) -> list[Trouble]:
    """Return what this program declares wrongly, and the jobs that it could not carry on."""
    flows = {(flow.name, flow.version): flow for flow in engine.inspect.flows}
    troubles, valid = [], {}
    for key, flow in flows.items():
        try:
            _ = flow.table
            valid[key] = flow
        except FlowError as error:
            troubles.append(Trouble("flow-invalid", *key, "", 0, str(error)))
    for count in counts:
        key = (count.flow, count.flow_version)
        if count.role in FINAL or (key in flows and key not in valid):
            continue
        command = f"ulak flows migrate {count.flow} --from {count.flow_version}"
        cure = f"; move them: {command} --map {count.state}=NEW"
        if key not in flows:
            others = sorted(version for name, version in flows if name == count.flow)
            has = f"only version {', '.join(map(str, others))}{cure}" if others else "no such flow"
            troubles.append(_trouble("version-missing", count, f"this program declares {has}"))
        elif not knows(valid[key].table, count.state, count.role):
            lacks = f"this program's version lacks the state{cure}"
            troubles.append(_trouble("state-missing", count, lacks))
    return troubles + _unknown_undos(engine, valid)


def _unknown_undos(engine: Engine, flows: Mapping[tuple[str, int], Flow[Any]]) -> list[Trouble]:
    """Return the jobs that owe an undo which this program lacks."""
    found: Counter[tuple[str, int, str, str]] = Counter()
    for row in _list_undone(engine):
        flow = flows.get((row.flow, row.flow_version))
        if flow is None or not knows(flow.table, row.state, row.role):
            continue
        missing = find_missing(flow.table, row)
        if missing is not None:
            found[row.flow, row.flow_version, row.state, missing] += 1
    why = 'they owe the undo of "{}", which this program lacks; start one that has it'
    return [
        Trouble("undo-missing", flow, version, state, jobs, why.format(missing))
        for (flow, version, state, missing), jobs in sorted(found.items())
    ]


def _list_undone(engine: Engine) -> Iterator[JobRow]:
    after: bytes | None = None
    while rows := engine.store.list_jobs(JobFilter(role=UNDOING), after=after, limit=PAGE):
        yield from rows
        after = rows[-1].id


def _unserved(engine: Engine, counts: list[CountRow], alive: list[WorkerRow]) -> list[Trouble]:
    lanes = {lane for worker in alive for lane in worker.lanes.split()}
    kinds = {lane_before(lane).split("/")[2] for lane in lanes if lane.count("/") > 1}
    troubles = []
    for count in counts:
        if count.role not in CLAIMABLE:
            continue
        needed = _lane(engine, count)
        if needed is not None and needed not in lanes:
            troubles.append(_trouble("lane-not-served", count, f"no worker serves {needed}"))
        elif needed is None and f"{count.flow}@{count.flow_version}" not in kinds:
            troubles.append(_trouble("version-not-served", count, "no worker serves this version"))
    return troubles


def _late(engine: Engine, alive: list[WorkerRow]) -> list[Trouble]:
    now = engine.store.clock.now()
    troubles = []
    for row in engine.store.schedules() if alive else []:
        if row.paused_at is not None or row.next_at + LATE >= now:
            continue
        is_declared = row.name in engine.kernel.schedules
        cure = (
            "no worker sees to it" if is_declared else "this program does not declare it; pause it"
        )
        sentence = f"schedule {row.name} was due {when(to_datetime(row.next_at))}: {cure}"
        troubles.append(Trouble("schedule-late", row.flow, row.flow_version, "", 0, sentence))
    return troubles


def _lane(engine: Engine, count: CountRow) -> str | None:
    """Return the lane in which jobs of this state stand, None when this program cannot know."""
    key = (count.flow, count.flow_version)
    flow = next((f for f in engine.inspect.flows if (f.name, f.version) == key), None)
    try:
        place = None if flow is None else flow.table.places.get(count.state)
    except FlowError:
        return None
    return None if place is None else place.lane or None


def _trouble(code: str, count: CountRow, sentence: str) -> Trouble:
    return Trouble(code, count.flow, count.flow_version, count.state, count.jobs, sentence)


def _print(facts: Mapping[str, Any], troubles: list[Trouble]) -> None:
    flows = ", ".join(f"{f['flow']}@{f['version']}" for f in facts["flows"])
    store = facts["store"]
    jobs, schedules = facts["jobs"], facts["schedules"]
    paused = sum(schedule["paused"] for schedule in schedules)
    print_facts([("ulak", facts["ulak"])])
    print_facts([(name, f"{s['value']}  ({s['source']})") for name, s in facts["settings"].items()])
    print()
    print_facts(
        [("store", store["name"])]
        + [
            (name, ", ".join(map(str, value)) if isinstance(value, list) else str(value))
            for name, value in store.items()
            if name not in ("name", "wal_reset_bug")
        ]
    )
    print_facts([("note", sentence) for sentence in facts["notes"]])
    print_facts([("missing", sentence) for sentence in facts["missing"]])
    print()
    print_facts(
        [
            ("flows", flows or "none"),
            ("schedules", f"{len(schedules)}, {paused} paused" if schedules else "none"),
            ("jobs", f"{jobs['unfinished']} unfinished, {jobs['ended']} ended"),
            ("workers", f"{len(facts['workers'])} alive"),
        ]
    )
    if facts["workers"]:
        rows = [
            (w["id"], w["about"], when(datetime.fromisoformat(w["renewed_at"])))
            for w in facts["workers"]
        ]
        print_table(("worker", "about", "renewed"), rows, keep=("worker", "renewed"))
    print()
    _print_troubles(troubles, "every job can be served")


def _print_troubles(troubles: list[Trouble], all_is_well: str) -> None:
    if not troubles:
        print(all_is_well)
        return
    print_table(
        ("trouble", "jobs", "flow", "state", "what"),
        [(t.code, str(t.jobs), f"{t.flow}@{t.version}", t.state, t.sentence) for t in troubles],
        keep=("trouble", "jobs"),
    )
