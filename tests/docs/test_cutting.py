"""The pages about cutting do what they say, for somebody who types them."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

import httpx
import pytest

from bench.ports import reserve_port
from bench.zygote import Zygote
from tests.docs.pages import DOCS
from tests.docs.terminal import Terminal, blocks, section, terminal, until
from ulak.core.lifecycle import states_of
from ulak.services.cutting import codes
from ulak.services.cutting.flow import LIFECYCLE
from ulak.services.cutting.rules import DEFAULT_PATHS, Rules

PAGE = DOCS / "services" / "cutting.md"
HOLDS = DOCS / "operations" / "cutting-holds.md"


@pytest.fixture
def opened(tmp_path: Path, zygote: Zygote) -> Iterator[Terminal]:
    main, bare = reserve_port(), reserve_port()
    replaced = {"localhost:8090": f"127.0.0.1:{bare}"}
    ports = {"ULAK_PORT": str(main), "CUTTING_PORT": str(bare)}
    with terminal(tmp_path, zygote, replaced, **ports) as made:
        yield made


def follow(opened: Terminal, *headings: str) -> None:
    """Type every block below these headings, and hold what is printed against the page."""
    typed = blocks(section(PAGE, *headings))
    assert typed
    for block in typed:
        opened.follow(block)


@pytest.mark.shows("C-108")
def test_the_walk_from_an_order_to_done_is_typed_as_the_page_says(opened: Terminal) -> None:
    follow(opened, "")
    # The saw and ulak are started at once, and whoever types by hand gives both the time.
    opened.wait_for(opened.folder / "block-1.out", "  orders  ")
    greeting = (opened.folder / "block-1.out").read_text()
    follow(opened, "From an order to DONE")
    assert re.search(rf"^  cutting   http://{opened.replaced['localhost:8090']}$", greeting, re.M)
    assert re.search(r"^  orders    http://\S+/cutting/$", greeting, re.M)


@pytest.mark.shows("C-107", "C-108")
def test_the_bare_address_stands_alone_and_sheets_are_read(opened: Terminal) -> None:
    opened.type("export ULAK_SERVICE=cutting")
    printed = opened.start("ulak cutting serve")
    bare = opened.replaced["localhost:8090"]
    assert f"serves http://{bare}" in printed.read_text()
    key = opened.read("ulak keys create shop --role operator")
    with httpx.Client(
        base_url=f"http://{bare}", headers={"Authorization": f"Bearer {key}"}, timeout=180
    ) as client:
        assert client.get("/health").json()["service"] == "orchestrator"
        order = (PAGE.read_text().partition("cat > order.json << 'END'\n")[2]).partition("END")[0]
        job = client.post("/jobs", content=order).json()["job"]["id"]

        def state() -> str:
            return str(client.get(f"/jobs/{job}").json()["job"]["state"])

        until(lambda: state() == "HOLD", "it works on nothing")
        make_sheet(opened.folder / "order.xlsx")
        (sheet,) = blocks(section(PAGE, "Spreadsheets"))
        read = json.loads(opened.follow(sheet))
        assert read["order_id"] == "2026-0118"
        submitted = opened.read(sheet.commands.replace("--dry-run", "--json").strip())
        assert client.get(f"/jobs/{json.loads(submitted)['job']['id']}").status_code == 200


def make_sheet(path: Path) -> None:
    from openpyxl import Workbook

    book = Workbook()
    sheet = book.active
    for row in (
        ["18MM", None, "RENK: white"],
        ["info", "length", "width", "quantity"],
        ["side", 720, 450, 2, 1, 1, "yok", None, 0, None, None, "a note"],
    ):
        sheet.append(row)
    book.save(path)
    assert ZipFile(path).namelist()


def test_every_hold_has_a_row_with_what_releases_it() -> None:
    rows = re.findall(r"^\| `(E_\w+)` \| [^|]+ \| [^|]+ \|$", HOLDS.read_text(), re.M)
    assert sorted(rows) == sorted(codes.HOLD_ERROR_CODES)
    failures = HOLDS.read_text().partition("## What is not a hold")[2]
    named = set(re.findall(r"`(E_\w+)`", failures))
    assert named == {
        *codes.TRANSIENT_ERROR_CODES, *codes.PERMANENT_ERROR_CODES - codes.HOLD_ERROR_CODES
    }  # fmt: skip


def test_every_state_rule_and_path_is_on_the_page() -> None:
    states = re.findall(r"^\| `(\w+)` \|", section(PAGE, "The states"), re.M)
    assert sorted(states) == sorted(states_of(LIFECYCLE))
    named = set(re.findall(r"^\| `(\w+)` \|", section(PAGE, "Rules and paths"), re.M))
    keys = {field.alias or name for name, field in Rules.model_fields.items()}
    assert named == keys | set(DEFAULT_PATHS)


def test_every_route_of_the_page_is_served_and_every_route_is_on_it(tmp_path: Path) -> None:
    from tests.services.cutting.desk import Desk

    desk = Desk(f"sqlite:///{tmp_path / 'cutting.db'}", tmp_path / "data")
    try:
        served = {
            (method.upper(), path.removeprefix("/cutting"))
            for path, methods in desk.apps["/cutting"].openapi()["paths"].items()
            for method in methods
            if path.startswith("/cutting")
        }
    finally:
        desk.engine.close()
    told = set(re.findall(r"`(GET|POST|PUT) (/[^?`]*)[^`]*`", section(PAGE, "The API")))
    told = {(method, path) for method, path in told if not path.startswith("/auth/")}
    assert told == served
