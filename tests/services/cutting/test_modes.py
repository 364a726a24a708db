"""Modes of the optimiser, with real programs."""

import asyncio
import json
import os
import sys
import textwrap
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from defusedxml import ElementTree as Xml

from tests.processes import await_gone, await_text
from tests.services.cutting.orders import RULES, make_back, make_batches, make_part, make_rules
from tests.unit.kit.test_programs import STUBBORN
from ulak.services.cutting import plans
from ulak.services.cutting.codes import CuttingError
from ulak.services.cutting.plans import make_settings, run_mode, verify_plan
from ulak.services.cutting.rules import Config, Paths
from ulak.services.cutting.workbook import import_name, make_template, write_import

JOB = "01990000-0000-7000-8000-000000000001"


class Told:
    """Stands for a run: keeps its notes."""

    def __init__(self) -> None:
        self.notes: list[tuple[str, str, dict[str, Any]]] = []

    def note(self, kind: str, message: str = "", /, **details: object) -> None:
        json.dumps(details)
        self.notes.append((kind, message, details))

    @property
    def only(self) -> dict[str, Any]:
        ((kind, _, details),) = self.notes
        assert kind == "cutting.runner"
        return details


@pytest.fixture
def run() -> Any:
    return Told()


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    config = Config(tmp_path / "cutting")
    config.start()
    return config.paths()


@pytest.fixture
def write_program(paths: Paths) -> Callable[[str], Path]:
    """Write the program of mode A; its `sys` is there."""

    def write(text: str) -> Path:
        paths.exe_path.parent.mkdir(exist_ok=True)
        lines = f"#!{sys.executable}\nimport os, sys, time\n" + textwrap.dedent(text)
        paths.exe_path.write_text(lines, encoding="utf-8")
        paths.exe_path.chmod(0o755)
        return paths.exe_path

    return write


def start(mode: str, files: list[Path], paths: Paths, run: Any) -> str:
    settings = make_settings({}, make_rules(optSeconds=0))
    return asyncio.run(run_mode(mode, files, paths=paths, settings=settings, run=run))


@pytest.mark.shows("C-38")
def test_mode_a_gets_the_import_files_as_arguments_and_no_shell(
    tmp_path: Path, paths: Paths, run: Any, write_program: Callable[[str], Path]
) -> None:
    write_program(
        "print(sys.argv[1:], os.environ.get('ULAK_SECRET')); print('err', file=sys.stderr)"
    )
    files = [tmp_path / "a b.xlsx", tmp_path / f"$(touch {tmp_path}x); 'q' *.xlsx"]
    output = start("A", files, paths, run)
    assert str([str(path) for path in files]) in output
    assert "err" in output
    assert not Path(f"{tmp_path}x").exists()
    assert run.only["exit_code"] == 0
    assert run.only["output"] == output
    assert run.only["mode"] == "A"


@pytest.mark.shows("C-38")
def test_the_last_4_kb_of_the_output_are_kept(
    paths: Paths, run: Any, write_program: Callable[[str], Path]
) -> None:
    write_program(r"sys.stdout.buffer.write(b'x' * 300_000 + b'\0\xff end'); sys.exit(7)")
    with pytest.raises(CuttingError) as raised:
        start("A", [], paths, run)
    assert raised.value.code == "E_OPTI_RUNNER_FAILED"
    assert "ended with 7" in str(raised.value)
    output = run.only["output"]
    assert output.endswith("x\ufffd\ufffd end")
    assert len(output) == 4096
    assert run.only["exit_code"] == 7


@pytest.mark.shows("C-38")
def test_a_program_that_is_not_there_has_a_code_of_its_own(paths: Paths, run: Any) -> None:
    with pytest.raises(CuttingError, match="optiplanningExePath") as raised:
        start("A", [], paths, run)
    assert raised.value.code == "E_OPTI_MODE_A_RUNNER_MISSING"
    assert not run.notes


@pytest.mark.shows("C-38")
def test_a_program_that_cannot_be_executed_has_failed(paths: Paths, run: Any) -> None:
    paths.exe_path.parent.mkdir()
    paths.exe_path.write_text("no program")
    for mode in (0o644, 0o755):
        paths.exe_path.chmod(mode)
        with pytest.raises(CuttingError, match="cannot be started") as raised:
            start("A", [], paths, run)
        assert raised.value.code == "E_OPTI_RUNNER_FAILED"


@pytest.mark.shows("C-38")
def test_a_program_that_is_killed_has_failed(
    paths: Paths, run: Any, write_program: Callable[[str], Path]
) -> None:
    write_program("os.kill(os.getpid(), 9)")
    with pytest.raises(CuttingError) as raised:
        start("A", [], paths, run)
    assert raised.value.code == "E_OPTI_RUNNER_FAILED"
    assert run.only["exit_code"] == -9


@pytest.mark.shows("C-38")
def test_what_takes_too_long_is_ended_with_all_that_it_has_started(
    tmp_path: Path,
    paths: Paths,
    run: Any,
    write_program: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert timedelta(seconds=60) == plans.LIMIT
    monkeypatch.setattr(plans, "LIMIT", timedelta(seconds=1))
    write_program(STUBBORN)
    ticks = 0

    async def go() -> None:
        nonlocal ticks
        settings = make_settings({}, RULES)
        made = run_mode("A", [tmp_path / "x.xlsx"], paths=paths, settings=settings, run=run)
        task = asyncio.create_task(made)
        while not task.done():
            # The loop answers others meanwhile.
            await asyncio.sleep(0.01)
            ticks += 1
        await task

    with pytest.raises(CuttingError, match="took more than 1 s") as raised:
        asyncio.run(go())
    assert raised.value.code == "E_OPTI_RUNNER_FAILED"
    await_gone(*map(int, (tmp_path / "pids").read_text().split()), within_s=5)
    assert ticks > 20
    assert run.only["exit_code"] is None
    assert run.only["output"] == "begun\n"


@pytest.mark.shows("C-43", "C-67")
def test_a_cancel_ends_the_program_within_five_seconds(
    tmp_path: Path, paths: Paths, run: Any, write_program: Callable[[str], Path]
) -> None:
    write_program(STUBBORN)

    async def go() -> float:
        settings = make_settings({}, RULES)
        made = run_mode("A", [tmp_path / "x.xlsx"], paths=paths, settings=settings, run=run)
        task = asyncio.create_task(made)
        await asyncio.to_thread(await_text, tmp_path / "pids")
        began = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return time.monotonic() - began

    assert asyncio.run(go()) < 5
    await_gone(*map(int, (tmp_path / "pids").read_text().split()), within_s=1)
    assert run.only["exit_code"] is None


@pytest.mark.shows("C-39")
def test_mode_b_needs_its_macro(
    paths: Paths, run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for program in ("", "EXCEL.EXE"):
        if program:
            _install_excel(tmp_path, monkeypatch)
        with pytest.raises(CuttingError) as raised:
            start("B", [], paths, run)
        assert raised.value.code == "E_OPTI_MODE_B_MACRO_MISSING"


@pytest.mark.shows("C-39")
def test_a_macro_that_nothing_can_start_is_no_run(paths: Paths, run: Any) -> None:
    paths.exe_path.parent.mkdir()
    paths.exe_path.with_name("RunOptiPlanning.xls").touch()
    with pytest.raises(CuttingError, match=r"no EXCEL\.EXE") as raised:
        start("B", [], paths, run)
    assert raised.value.code == "E_OPTI_MODE_B_MACRO_MISSING"


@pytest.mark.shows("C-39")
def test_where_excel_is_the_macro_is_started(
    paths: Paths, run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _install_excel(tmp_path, monkeypatch)
    paths.exe_path.parent.mkdir()
    macro = paths.exe_path.with_name("RunOptiPlanning.xls")
    macro.touch()
    assert start("B", [], paths, run) == f"opened {macro}\n"
    assert run.only["mode"] == "B"


def _install_excel(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = folder / "EXCEL.EXE"
    program.write_text('#!/bin/sh\necho opened "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_mode_c_starts_nothing(paths: Paths, run: Any) -> None:
    assert start("C", [], paths, run) == ""
    assert not run.notes


@pytest.mark.shows("C-45")
def test_mode_e_leaves_a_plan_for_each_import_file(paths: Paths, run: Any) -> None:
    prepared = make_batches(make_part(quantity=9), make_back(), make_part(id="P2", color="MESE"))
    make_template(paths.template_path)
    files = []
    for batch in prepared.batches:
        path = paths.import_folder / import_name(JOB, batch.mark)
        write_import(paths.template_path, [row.cells for row in batch.rows], path)
        files.append(path)
    assert len(files) == 3
    output = start("E", files, paths, run)
    assert {path.name for path in paths.export_folder.iterdir()} == {f"{p.stem}.xml" for p in files}
    for path in files:
        root = Xml.parse(paths.export_folder / f"{path.stem}.xml").getroot()
        (solution,) = root.iter("Solution")
        assert solution.attrib["boards"] == "1"
        assert f"{path.name}: 1 sheets" in output
    parts = Xml.parse(paths.export_folder / f"{files[0].stem}.xml").getroot().iter("Part")
    assert [part.attrib["id"] for part in parts] == ["P1"] * 9


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        ((b"<Solution ", b"<Solution hidden='1' "), "E_PLAN_INVALID"),
        ((b'<Plan version="2"', b'<Plan version="1"'), "E_OPTI_RUNNER_FAILED"),
        (None, "E_OPTI_XML_TIMEOUT"),
    ],
)
def test_a_plan_of_mode_e_is_judged_by_its_import_file(
    paths: Paths, run: Any, damage: tuple[bytes, bytes] | None, code: str
) -> None:
    (batch,) = make_batches(make_part(quantity=3)).batches
    make_template(paths.template_path)
    path = paths.import_folder / import_name(JOB, batch.mark)
    write_import(paths.template_path, [row.cells for row in batch.rows], path)
    settings = make_settings({}, make_rules(optSeconds=0))
    asyncio.run(run_mode("E", [path], paths=paths, settings=settings, run=run))
    plan = paths.export_folder / f"{path.stem}.xml"
    verify_plan(plan, path, settings)
    if damage is None:
        path.unlink()
    else:
        plan.write_bytes(plan.read_bytes().replace(*damage))
    with pytest.raises(CuttingError) as raised:
        verify_plan(plan, path, settings)
    assert raised.value.code == code


@pytest.mark.shows("C-45")
def test_mode_e_is_the_default_where_the_program_is_not(paths: Paths, tmp_path: Path) -> None:
    config = Config(tmp_path / "cutting")
    assert config.rules().opti_mode_default == "E"
    paths.exe_path.parent.mkdir()
    paths.exe_path.touch()
    assert config.rules().opti_mode_default == "C"


@pytest.mark.shows("C-45")
def test_parts_that_mode_e_cannot_place_are_named(paths: Paths, run: Any) -> None:
    (batch,) = make_batches(make_part()).batches
    make_template(paths.template_path)
    path = paths.import_folder / import_name(JOB, batch.mark)
    write_import(paths.template_path, [row.cells for row in batch.rows], path)
    rules = make_rules(defaultPlateSize={"width_mm": 400, "height_mm": 300})
    with pytest.raises(CuttingError, match="larger than a sheet: P1") as raised:
        asyncio.run(run_mode("E", [path], paths=paths, settings=make_settings({}, rules), run=run))
    assert raised.value.code == "E_OPTI_RUNNER_FAILED"
    assert not list(paths.export_folder.iterdir())


def test_the_settings_of_mode_e_follow_order_and_rules() -> None:
    plate = {"width_mm": 1830.5, "height_mm": 3660}
    rules = make_rules(
        machineConfig={"kerf_mm": 4.4, "trim_mm": {"left": 0}}, grainAxis="short",
        deductBands=False, millingAllowance_mm=0.5, maxStackHeight_mm=54,
        offcutMinimum={"length_mm": 500, "width_mm": 80},
    )  # fmt: skip
    settings = make_settings({"plate_size": plate}, rules)
    assert json.loads(json.dumps(settings)) == settings
    assert sorted(settings.pop("trimmed_sides")) == ["bottom", "right", "top"]
    assert settings == {
        "plate_mm": ["1830.5", "3660"], "kerf_mm": "4.4", "grain_axis": "short",
        "deduct_bands": False, "milling_mm": "0.5", "stages": 3, "first_cut": "",
        "trimming": True, "stack_mm": "54", "seconds": 10, "offcut_mm": ["500", "80"],
    }  # fmt: skip
    assert make_settings({}, RULES)["plate_mm"] == ["2100", "2800"]
