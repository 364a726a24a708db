"""The optimiser on the command line: plans of an order, and public instances."""

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openpyxl
import pytest

from tests.services.cutting.optimise.shelves import shelve
from tests.services.cutting.optimise.trees import mm
from tests.services.cutting.orders import make_back, make_part
from ulak.cli import main
from ulak.services.cutting.optimise import solver as solver_module
from ulak.services.cutting.optimise.document import read_sheets
from ulak.services.cutting.optimise.model import Order, Plan, Stock
from ulak.services.cutting.rules import DEFAULT_RULES

Run = Callable[..., int]


class Solver:
    """Stands in for the search: it shelves parts, and remembers what it was asked."""

    def __init__(self) -> None:
        self.orders: list[Order] = []
        self.options: list[dict[str, Any]] = []
        self.spoil: Callable[[Plan], Plan] = lambda plan: plan

    def __call__(self, order: Order, **options: Any) -> Plan:
        self.orders.append(order)
        self.options.append(options)
        plan = shelve(order)
        if tell := options.get("on_better"):
            tell(plan)
        return self.spoil(plan)


@pytest.fixture
def solver(monkeypatch: pytest.MonkeyPatch) -> Solver:
    made = Solver()
    monkeypatch.setattr(solver_module, "solve", made)
    return made


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> int:
        with pytest.raises(SystemExit) as ended:
            main(["cutting", *arguments])
        return int(ended.value.code or 0)

    return call


def write_order(*parts: dict[str, Any], **more: Any) -> None:
    Path("order.json").write_text(json.dumps({"parts": parts or [make_part()]} | more))


def test_the_plan_of_an_order_is_written_and_drawn(
    run: Run, solver: Solver, capsys: pytest.CaptureFixture[str]
) -> None:
    write_order(make_part(quantity=40))
    options = "--svg", "drawings", "--report", "page.html", "--json"
    assert run("optimise", "order.json", "-o", "plan.xml", *options) == 0
    said = capsys.readouterr()
    (line,) = json.loads(said.out)["batches"]
    assert (line["batch"], line["plan"]) == ("GOVDE_BEYAZ_18mm", "plan.xml")
    assert (line["sheets"], line["bound"], line["gap_percent"]) == (4, 1, 300.0)
    assert "GOVDE_BEYAZ_18mm: 4 sheets, 3 above the bound, after 0.0 s" in said.err
    assert len(read_sheets(Path("plan.xml").read_bytes())) == 4
    drawings = sorted(path.name for path in Path("drawings").iterdir())
    assert drawings == [f"plan_{n}.svg" for n in range(1, line["patterns"] + 1)]
    assert Path("page.html").read_text().count("<svg") == line["patterns"]
    assert {key: solver.options[0][key] for key in ("seconds", "seed")} == {
        "seconds": 10.0, "seed": 1,
    }  # fmt: skip


def test_each_batch_has_a_plan_of_its_own_and_one_page(
    run: Run, solver: Solver, capsys: pytest.CaptureFixture[str]
) -> None:
    write_order(make_part(), make_back())
    assert run("optimise", "order.json", "-o", "plan.xml", "--report", "page.html") == 0
    found = sorted(path.name for path in Path().glob("*.xml"))
    assert found == ["plan_ARKALIK_BEYAZ_3mm.xml", "plan_GOVDE_BEYAZ_18mm.xml"]
    assert Path("page.html").read_text().count("<figure>") == 2
    assert "plan_ARKALIK_BEYAZ_3mm.xml" in capsys.readouterr().out


def test_options_come_before_order_and_rules(run: Run, solver: Solver) -> None:
    write_order(plate_size={"width_mm": 1000, "height_mm": 1000})
    assert run("optimise", "order.json", "-o", "plan.xml") == 0
    options = (
        "--plate", "1830x3660", "--plate", "900x600:3", "--kerf", "4.4", "--trim", "0",
        "--stages", "2", "--seconds", "3", "--seed", "7",
    )  # fmt: skip
    assert run("optimise", "order.json", "-o", "plan.xml", *options) == 0
    usual, order = solver.orders
    assert (usual.stock, usual.kerf, usual.trim, usual.stages) == (
        (Stock(mm(1000), mm(1000)),), mm("3.2"), 10, 3,
    )  # fmt: skip
    assert list(order.stock) == [Stock(mm(1830), mm(3660)), Stock(mm(900), mm(600), 3)]
    assert (order.kerf, order.trim, order.stages) == (mm("4.4"), 0, 2)
    assert {key: solver.options[1][key] for key in ("seconds", "seed")} == {
        "seconds": 3.0, "seed": 7,
    }  # fmt: skip


def test_rules_are_read_from_a_file(run: Run, solver: Solver) -> None:
    write_order(make_part(thickness_mm=16, edge_up="thick"))
    rules = DEFAULT_RULES | {"trimByThickness": {"16": 8}, "edgeMapping": {"thick": 3}}
    Path("rules.json").write_text(json.dumps(rules))
    assert run("optimise", "order.json", "-o", "plan.xml", "--rules", "rules.json") == 0
    assert (solver.orders[0].trim, solver.orders[0].parts[0].bands[0]) == (8, 3)


def test_a_spreadsheet_is_an_order(run: Run, solver: Solver) -> None:
    book = openpyxl.Workbook()
    for row in (["18MM"], ["RENK: WHITE"], ["left", 720, 450, 2, 1, "x"], ["", 600, 300, 1, 0]):
        book.worksheets[0].append(row)
    book.save("order.xlsx")
    assert run("optimise", "order.xlsx", "-o", "plan.xml", "--material", "M18") == 0
    (order,) = solver.orders
    assert [(part.length, part.quantity) for part in order.parts] == [(720, 2), (600, 1)]
    assert (order.material, order.parts[0].bands[0]) == ("M18", 1)


@pytest.mark.parametrize(
    ("content", "options", "told"),
    [
        (None, [], "order.json"),
        ("{", [], "order.json is no JSON"),
        ('{"parts": NaN}', [], "order.json is no JSON"),
        ("[]", [], "write an object"),
        ("{}", [], "parts: Field required"),
        ({"parts": []}, [], "parts: "),
        ({"parts": [make_part(thickness_mm=16)]}, [], "trimByThickness has no rule for 16 mm"),
        ({"parts": [make_part(length_cm=400)]}, [], "no plate holds P1"),
        ({"parts": [make_part()]}, ["--plate", "large"], "'large' is no plate"),
        ({"parts": [make_part()]}, ["--stages", "1"], "--stages cannot be 1"),
        ({"parts": [make_part()]}, ["--rules", "order.json"], "Extra inputs are not permitted"),
        ({"parts": [make_part()]}, ["--rules", "no.json"], "no.json"),
        ({"parts": [make_part()]}, ["--report", "no/page.html"], "there is no folder no for page"),
    ],
)
def test_what_cannot_be_cut_is_said_in_one_line(
    run: Run, solver: Solver, capsys: pytest.CaptureFixture[str], content: Any, options: list[str],
    told: str,
) -> None:  # fmt: skip
    if content is not None:
        text = content if isinstance(content, str) else json.dumps(content)
        Path("order.json").write_text(text)
    assert run("optimise", "order.json", "-o", "plan.xml", *options) == 1
    said = capsys.readouterr().err
    assert told in said
    assert said.count("\n") == 1
    assert not Path("plan.xml").exists()


def test_a_plan_with_a_fault_is_not_written(
    run: Run, solver: Solver, capsys: pytest.CaptureFixture[str]
) -> None:
    write_order(make_part(quantity=40))
    solver.spoil = lambda plan: Plan(plan.sheets[1:], bound=1)
    assert run("optimise", "order.json", "-o", "plan.xml", "--report", "page.html") == 1
    assert "the plan is wrong and was not written: " in capsys.readouterr().err
    assert not list(Path().glob("p*"))


def test_on_a_terminal_there_is_a_bar(
    run: Run, solver: Solver, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    write_order(make_part(quantity=40))
    monkeypatch.setattr(sys, "stderr", shown := Terminal())
    assert run("optimise", "order.json", "-o", "plan.xml") == 0
    assert "GOVDE_BEYAZ_18mm: 4 sheets, 3 above the bound" in shown.getvalue()
    assert "after" not in shown.getvalue()


def write_instance(name: str, items: str, bins: str = "ID,WIDTH,HEIGHT\n0,100,60\n") -> None:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_name(f"{path.name}_items.csv").write_text(items)
    path.with_name(f"{path.name}_bins.csv").write_text(bins)


ONE = "ID,WIDTH,HEIGHT\n0,100,60\n1,50,30\n2,50,30\n"


@pytest.mark.shows("C-101")
def test_public_instances_are_solved_judged_and_added_up(
    run: Run, solver: Solver, capsys: pytest.CaptureFixture[str]
) -> None:
    write_instance("data/a/one.2bp", ONE)
    write_instance("data/b/two", "ID,WIDTH,HEIGHT,COPIES\n0,50,59,3\n1,100,10,2\n")
    write_instance("data/b/three.txt", ONE)
    known = "Path,Best known solution value\na/one.2bp,2\nb/two,2\nb/three.txt,1\n"
    Path("data/best_known_3nho.csv").write_text(known)
    Path("data/best_known_3nhr.csv").write_text(known.replace(",2", ",1"))
    Path("data/best_known_2nho.csv").write_text(known.replace(",2", ",1"))
    assert run("bench", "data", "--json", "--first", "y") == 0
    found = json.loads(capsys.readouterr().out)
    shown = {
        each["name"]: [each[key] for key in ("sheets", "greedy", "area_bound", "best_known")]
        for each in (*found["instances"], *found["sums"])
    }
    assert shown == {
        "a/one.2bp": [2, 2, 2, 2], "b/three": [2, 2, 2, 1], "b/two": [3, 3, 2, 2],
        "a: 1": [2, 2, 2, 2], "b: 2": [5, 5, 4, 3], "all: 3": [7, 7, 6, 5],
    }  # fmt: skip
    gaps = {each["name"]: each["gap_percent"] for each in (*found["instances"], *found["sums"])}
    assert (gaps["a/one.2bp"], gaps["b/two"], gaps["all: 3"]) == (0.0, 50.0, 40.0)
    assert all(each["faults"] == [] and each["seconds"] >= 0 for each in found["instances"])
    for order in solver.orders:
        assert (order.kerf, order.trim, order.first_cut, order.stages) == (0, 0, "y", 3)
    assert run("bench", "data") == 0
    table = capsys.readouterr().out
    assert table.split("\n")[0].split() == [
        "INSTANCE", "SHEETS", "GREEDY", "AREA", "BOUND", "BEST", "KNOWN", "GAP", "%", "SECONDS",
    ]  # fmt: skip
    assert [line.split()[:2] for line in table.splitlines()[1:4]] == [
        ["a/one.2bp", "2"], ["b/three", "2"], ["b/two", "3"],
    ]  # fmt: skip


@pytest.mark.shows("C-101")
def test_a_plan_with_a_fault_ends_the_measurement_with_1(
    run: Run, solver: Solver, capsys: pytest.CaptureFixture[str]
) -> None:
    write_instance("data/one", ONE)
    solver.spoil = lambda plan: Plan(plan.sheets[1:])
    assert run("bench", "data") == 1
    said = capsys.readouterr()
    assert "error: one: " in said.err
    assert "one" in said.out, "the table is there all the same"


def test_parts_of_instances_turn_when_they_may(
    run: Run, solver: Solver, capsys: pytest.CaptureFixture[str]
) -> None:
    write_instance("wide/a", ONE)
    write_instance("high/a", ONE, "ID,WIDTH,HEIGHT,COST,COPIES\n7,100,101,5,-1\n8,60,100,4,3\n")
    for path in ("wide", "high"):
        assert run("bench", path) == 0
    assert run("bench", "wide", "--rotate", "--stages", "0") == 0
    wide, high, turned = solver.orders
    grains = [{part.grain for part in order.parts} for order in (wide, high, turned)]
    assert grains == [{1}, {2}, {0}]
    assert high.stock == (
        Stock(mm(100), mm(101), None, 5, "7"), Stock(mm(60), mm(100), 3, 4, "8"),
    )  # fmt: skip
    assert turned.stages == 0
    write_instance("both/a", ONE, "ID,WIDTH,HEIGHT\n0,100,60\n1,100,160\n")
    capsys.readouterr()
    assert run("bench", "both") == 1
    assert "plates are wide and high" in capsys.readouterr().err


def test_a_sample_is_drawn_again_by_its_seed(
    run: Run, solver: Solver, capsys: pytest.CaptureFixture[str]
) -> None:
    for n in range(12):
        write_instance(f"data/{n}", ONE)

    def draw(seed: str) -> list[str]:
        assert run("bench", "data", "--sample", "4", "--seed", seed, "--json") == 0
        found = json.loads(capsys.readouterr().out)
        return [each["name"] for each in found["instances"]]

    first = draw("1")
    assert len(first) == 4
    assert draw("1") == first
    assert any(draw(seed) != first for seed in "234")


@pytest.mark.shows("C-105")
def test_the_figures_of_a_run_are_stored_with_the_greedy_packer_machine_and_versions(
    run: Run, solver: Solver, capsys: pytest.CaptureFixture[str]
) -> None:
    write_instance("data/one", ONE)
    assert run("bench", "data", "--seconds", "2", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["options"] == {
        "folder": "data", "sample": None, "seed": 1, "seconds": 2.0, "stages": 3, "rotate": False,
        "first": "free",
    }  # fmt: skip
    assert found["versions"]["python"]
    assert found["versions"]["ulak"]
    assert found["machine"]
    assert found["instances"][0]["greedy"] == 2


@pytest.mark.parametrize(
    ("items", "bins", "told"),
    [
        ("", "ID,WIDTH,HEIGHT\n0,9,9\n", "has no row below its head"),
        ("ID,WIDTH,HEIGHT\n0,9\n", "ID,WIDTH,HEIGHT\n0,9,9\n", "no HEIGHT of 0"),
        ("ID,WIDTH,HEIGHT\n0,9,nan\n", "ID,WIDTH,HEIGHT\n0,9,9\n", "'nan' is no HEIGHT of 0"),
        ("ID,WIDTH,HEIGHT,COPIES\n0,9,9,x\n", "ID,WIDTH,HEIGHT\n0,9,9\n", "'x' is no COPIES of 0"),
        ("ID,WIDTH,HEIGHT\n0,9,9\n", "ID,W\n0,9\n", "no WIDTH of 0"),
    ],
)
def test_an_instance_that_cannot_be_read_is_said_in_one_line(
    run: Run, solver: Solver, capsys: pytest.CaptureFixture[str], items: str, bins: str, told: str
) -> None:
    write_instance("data/one", items, bins)
    assert run("bench", "data") == 1
    said = capsys.readouterr().err
    assert told in said
    assert said.count("\n") == 1


def test_a_folder_without_instances_and_an_instance_without_plates_are_said(
    run: Run, solver: Solver, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("bench", "nowhere") == 1
    assert "no file NAME_items.csv below nowhere" in capsys.readouterr().err
    write_instance("data/one", ONE)
    Path("data/one_bins.csv").unlink()
    assert run("bench", "data") == 1
    assert "one_bins.csv cannot be read" in capsys.readouterr().err


def test_an_instance_without_a_plan_is_a_fault(
    run: Run, solver: Solver, capsys: pytest.CaptureFixture[str]
) -> None:
    write_instance("data/one", "ID,WIDTH,HEIGHT\n0,900,60\n")
    assert run("bench", "data") == 1
    assert "error: one: no plate holds 0" in capsys.readouterr().err
