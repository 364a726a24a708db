"""`ulak cutting`: the bare address, a stand-in for the saw, spreadsheets, and the optimiser."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ulak.errors import BadInput
from ulak.kit import read_json
from ulak.kit.commands import (
    ActorOption,
    AppOption,
    HostOption,
    JsonOption,
    complain,
    load_service,
    opened_service,
    print_json,
    print_table,
    some,
    time_bar,
)
from ulak.kit.config_files import ConfigFile
from ulak.kit.files import write_atomically
from ulak.kit.processes import Work, run
from ulak.kit.texts import exact
from ulak.services.cutting.codes import HoldCode
from ulak.services.cutting.flow import QUEUE
from ulak.services.cutting.intake import read_order_sheet
from ulak.services.cutting.offcuts import Offcut
from ulak.services.cutting.order import parse_order
from ulak.services.cutting.routes import BARE
from ulak.services.cutting.rules import DEFAULT_RULES, Rules
from ulak.services.cutting.saw import Manner, Saw

if TYPE_CHECKING:
    from ulak.services.cutting.optimise.model import Plan
    from ulak.services.cutting.optimise.report import Batch

PartTypeOption = Annotated[
    str, typer.Option(help="Of a spreadsheet: GOVDE, or ARKALIK for back panels.")
]
MaterialOption = Annotated[str, typer.Option(help="Of a spreadsheet: the code of the material.")]
BandOption = Annotated[
    str, typer.Option(help="Of a spreadsheet: the band of an edge that is marked.")
]
SecondsOption = Annotated[float, typer.Option(min=0.01, max=3600, help="For each plan.")]
SeedOption = Annotated[int, typer.Option(help="Draws what it does; the same again.")]
StagesOption = Annotated[int, typer.Option(min=0, max=3, help="2 or 3; 0 is any number.")]

group = typer.Typer(no_args_is_help=True, help="Orders for the panel saw.")


@group.command()
def serve(
    host: HostOption = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="0 for any; else CUTTING_PORT or 8090.")
    ] = None,
    app: AppOption = None,
) -> None:
    """Serve the API on an address of its own, without a prefix, and work on orders."""
    platform, engine, cutting = load_service("cutting", app)
    port = BARE.read_port() if port is None else port
    at = platform.override("command line", host=host, port=port)

    serving, work = partial(BARE.make_app, engine), [Work(engine, [QUEUE])]
    run("cutting", at, work=work, app=serving, prepare=cutting.start, logins=True)


@group.command()
def saw(
    folder: Annotated[
        Path | None, typer.Option(help="The drop folder; else machineDropFolder of the paths.")
    ] = None,
    late: Annotated[float, typer.Option(min=0, help="Up to so many seconds late.")] = 0.0,
    wrong: Annotated[float, typer.Option(min=0, max=1, help="Which share it refuses.")] = 0.0,
    twice: Annotated[bool, typer.Option("--twice", help="Answer each file a second time.")] = False,
    copy: Annotated[bool, typer.Option("--copy", help="Copy files, do not move them.")] = False,
    seed: Annotated[int, typer.Option(help="Draws what it does; the same again.")] = 1,
    app: AppOption = None,
) -> None:
    """Stand in for the saw: for trying it, not for production."""
    if folder is None:
        _, _, cutting = load_service("cutting", app)
        folder = cutting.config.paths().drop_folder
    if not folder.is_dir():
        raise BadInput(f"there is no folder {folder}; make it, or name another with --folder")
    told = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: told.set())
    manner = Manner(late_s=late, wrong=wrong, twice=float(twice), copies=float(copy), seed=seed)
    print(f"the saw cuts what comes into {folder}\nCtrl-C drains and stops.", flush=True)
    Saw(folder, manner, tell=lambda what, name: print(f"{what:<8} {name}", flush=True)).run(told)


@group.command()
def intake(
    file: Annotated[Path, typer.Argument(help="The spreadsheet (.xlsx).")],
    order: Annotated[str, typer.Argument(help="The id of the order.")],
    phone: Annotated[str, typer.Argument(help="The phone number of the customer.")],
    actor: ActorOption,
    part_type: PartTypeOption = "GOVDE",
    material: MaterialOption = "",
    band: BandOption = "1mm",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print the order that was read, as JSON.")
    ] = False,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Have the order of a spreadsheet cut."""
    try:
        data = file.read_bytes()
    except OSError as error:
        raise BadInput(f"{file} cannot be read: {error.strerror}") from None
    sheet = read_order_sheet(data, part_type=part_type, material_code=material, band=band)
    body = {**sheet, "order_id": order, "customer_phone": phone}
    with opened_service("cutting", app) as cutting:
        payload = parse_order(body, rules=cutting.config.rules())
        if dry_run:
            print_json(payload)
            return
        job, created = cutting.jobs.submit(payload, actor=actor)
    if as_json:
        print_json({"job": job, "deduplicated": not created})
    else:
        print(f"job {job['id']} {'will be cut' if created else 'is this order already'}")


@group.command()
def offcuts(
    remove: Annotated[
        int | None, typer.Option(help="Take this one out: somebody has used it.")
    ] = None,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the store of offcuts, by mm on the plate that each was cut from."""
    with opened_service("cutting", app) as cutting:
        if remove is not None:
            cutting.offcuts.remove(remove)
        found = [each._asdict() for each in cutting.offcuts.list_there()]
    if as_json:
        print_json({"offcuts": found})
    else:
        _print_rows(found, Offcut._fields)


@group.command()
def optimise(
    order: Annotated[Path, typer.Argument(help="A spreadsheet (.xlsx) or an order (.json).")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The plan (.xml); of several batches one each.")
    ],
    svg: Annotated[Path | None, typer.Option(help="A folder for drawings.")] = None,
    report: Annotated[Path | None, typer.Option(help="A page to print (.html).")] = None,
    seconds: SecondsOption = 10.0,
    seed: SeedOption = 1,
    plate: Annotated[
        list[str] | None, typer.Option(help="2100x2800 in mm, :3 behind it for three; repeat it.")
    ] = None,
    kerf: Annotated[float | None, typer.Option(min=0, max=10, help="In mm.")] = None,
    trim: Annotated[float | None, typer.Option(min=0, max=1000, help="In mm.")] = None,
    stages: StagesOption = 3,
    part_type: PartTypeOption = "GOVDE",
    material: MaterialOption = "",
    band: BandOption = "1mm",
    rules: Annotated[
        Path | None, typer.Option(help="A file rules.json; else the rules of a first start.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make the cutting plans of an order, without a job."""
    from ulak.services.cutting.optimise import solver
    from ulak.services.cutting.optimise.model import Unsolvable
    from ulak.services.cutting.optimise.reading import read_orders, read_stock
    from ulak.services.cutting.optimise.report import Batch, make_report

    _refuse_one_stage(stages)
    sizes = {"kerf": kerf, "trim": trim}
    # Not after the search: its time would be lost.
    for path in filter(None, (output, report)):
        if not path.parent.is_dir():
            raise BadInput(f"there is no folder {path.parent} for {path.name}; make it first")
    if svg is not None:
        svg.mkdir(parents=True, exist_ok=True)
    changes: dict[str, Any] = {name: exact(mm) for name, mm in sizes.items() if mm is not None}
    found = Rules.model_validate(DEFAULT_RULES)
    if rules is not None:
        found = ConfigFile(rules, Rules, invalid=BadInput, unavailable=BadInput).read()
    body = _read_order(order, part_type=part_type, material_code=material, band=band)
    try:
        if stock := [read_stock(text) for text in plate or ()]:
            changes["stock"] = stock
            first = {"width_mm": float(stock[0].width), "height_mm": float(stock[0].height)}
            body["plate_size"] = first
        orders = read_orders(parse_order(body, rules=found), found)
        batches = []
        for mark, each in orders.items():
            changed = replace(each, stages=stages, **changes)
            with time_bar(mark, seconds) as tell:
                plan = solver.solve(
                    changed, seconds=seconds, seed=seed, on_better=lambda p: tell(_describe(p))
                )
            batches.append(Batch(mark, changed, plan))
    except (HoldCode, Unsolvable, ValueError) as error:
        raise BadInput(f"{order}: {error}") from None

    lines = []
    for batch in batches:
        name = output.stem if len(batches) == 1 else f"{output.stem}_{batch.title}"
        lines.append(_write_batch(batch, output.with_name(f"{name}{output.suffix}"), svg))
    if report is not None:
        write_atomically(report, make_report(batches, order.stem).encode())
    if as_json:
        print_json({"batches": lines})
    else:
        columns = (
            "batch", "sheets", "bound", "gap_percent", "waste_percent", "patterns", "cycles",
            "seconds", "plan",
        )  # fmt: skip
        _print_rows(lines, columns, keep=("plan",))


def _write_batch(batch: Batch, path: Path, svg: Path | None) -> dict[str, Any]:
    """Write the plan of a batch and its drawings; return its figures."""
    from ulak.services.cutting.optimise.document import list_patterns, summarize, write_plan
    from ulak.services.cutting.optimise.drawing import draw_sheet
    from ulak.services.cutting.optimise.verify import find_faults

    mark, order, plan = batch
    data, figures = write_plan(order, plan), asdict(summarize(order, plan))
    if faults := find_faults(order, data):
        complain(f"{mark}: the plan is wrong and was not written: {faults[0]}")
        raise typer.Exit(1)
    write_atomically(path, data)
    if svg is not None:
        for pattern in list_patterns(order, plan):
            picture = draw_sheet(order, pattern, title=mark)
            write_atomically(svg / f"{path.stem}_{pattern.number}.svg", picture.encode())
    del figures["rests"]
    numbers = {key: float(n) if isinstance(n, Decimal) else n for key, n in figures.items()}
    return {"batch": mark, "plan": str(path), **numbers}


@group.command()
def bench(
    folder: Annotated[Path, typer.Argument(help="NAME_items.csv and NAME_bins.csv lie below it.")],
    sample: Annotated[int | None, typer.Option(min=1, help="So many of them, drawn.")] = None,
    seed: SeedOption = 1,
    seconds: SecondsOption = 10.0,
    stages: StagesOption = 3,
    rotate: Annotated[bool, typer.Option("--rotate", help="Parts may be turned.")] = False,
    first: Annotated[
        Literal["x", "y", "free"], typer.Option(help="The first cuts divide a plate along it.")
    ] = "free",
    as_json: JsonOption = False,
) -> None:
    """Measure the optimiser on public instances; every plan is judged."""
    from ulak.services.cutting.optimise import bench as benches
    from ulak.services.cutting.optimise import solver

    _refuse_one_stage(stages)
    solve = partial(solver.solve, seconds=seconds, seed=seed)
    instances = benches.read_instances(
        folder, stages=stages, is_rotating=rotate, first_cut=first.replace("free", ""),
        sample=sample, seed=seed,
    )  # fmt: skip
    results = []
    for n, instance in enumerate(instances, 1):
        results.append(benches.measure(instance, solve))
        if sys.stderr.isatty():
            print(f"\r{n} of {len(instances)}", end="\n" * (n == len(instances)), file=sys.stderr)
    sums = list(benches.add_up(results))
    if as_json:
        options = {
            "folder": str(folder), "sample": sample, "seed": seed, "seconds": seconds,
            "stages": stages, "rotate": rotate, "first": first,
        }  # fmt: skip
        print_json({
            **benches.describe_machine(), "options": options,
            "instances": [each.document() for each in results],
            "sums": [each.document() for each in sums],
        })  # fmt: skip
    else:
        columns = "sheets", "greedy", "area_bound", "best_known", "gap_percent", "seconds"
        rows = (each.document() for each in (*results, *sums))
        _print_rows(({"instance": row["name"], **row} for row in rows), ("instance", *columns))
    wrong = [(each.name, fault) for each in results for fault in each.faults]
    for name, fault in wrong:
        complain(f"{name}: {fault}")
    if wrong:
        raise typer.Exit(1)


def _refuse_one_stage(stages: int) -> None:
    if stages == 1:
        raise BadInput("--stages cannot be 1: a plan has 2 or 3, and 0 is any number")


def _read_order(path: Path, **more: str) -> dict[str, Any]:
    """Return the body of an order as it is sent; a plan needs neither its id nor a customer."""
    data, said = path.read_bytes(), {"order_id": path.stem or "order", "customer_phone": "0"}
    if path.suffix.lower() != ".json":
        return said | read_order_sheet(data, **more)
    try:
        body = read_json(data.decode("utf-8-sig"))
    except ValueError as error:
        raise BadInput(f"{path} is no JSON: {error}") from None
    if not isinstance(body, dict):
        raise BadInput(f'{path}: write an object, as {{"parts": [...]}}')
    return said | body


def _describe(plan: Plan) -> str:
    above = len(plan.sheets) - plan.bound
    gap = f"{above} above the bound" if above else "and no plan needs fewer"
    return f"{some(len(plan.sheets), 'sheet')}, {gap}"


def _print_rows(
    rows: Iterable[Mapping[str, object]], columns: Sequence[str], **options: Any
) -> None:
    """Print rows as a table of some of their columns."""
    heads = [column.replace("_percent", " %").replace("_", " ") for column in columns]
    print_table(heads, ([_text(row[column]) for column in columns] for row in rows), **options)


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.2f}"
    return "-" if value is None else str(value)
