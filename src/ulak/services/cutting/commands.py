"""`ulak cutting`: the bare address, a stand-in for the saw, and spreadsheets."""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path
from threading import Event
from typing import Annotated

import typer

from ulak.errors import BadInput
from ulak.kit.commands import (
    ActorOption,
    AppOption,
    HostOption,
    JsonOption,
    load_service,
    opened_service,
    print_json,
)
from ulak.kit.processes import Work, run
from ulak.services.cutting.flow import QUEUE
from ulak.services.cutting.intake import read_order_sheet
from ulak.services.cutting.order import parse_order
from ulak.services.cutting.routes import BARE
from ulak.services.cutting.saw import Manner, Saw

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
    part_type: Annotated[str, typer.Option(help="GOVDE, or ARKALIK for back panels.")] = "GOVDE",
    material: Annotated[str, typer.Option(help="The code of the material.")] = "",
    band: Annotated[str, typer.Option(help="The band of an edge that is marked.")] = "1mm",
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
