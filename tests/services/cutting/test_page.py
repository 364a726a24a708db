"""The plain page for operators: in a real browser, and as every caller sees it."""

from __future__ import annotations

from html import unescape
from pathlib import Path

import pytest

import ulak.services.cutting.page
import ulak.web
from tests.services.cutting.desk import Desk
from tests.services.cutting.orders import PHONE, PHONE_NORMALIZED, make_order, make_part
from tests.web.browsing import browsing, serving
from ulak import wiring
from ulak.cli.identity import make_login_link
from ulak.service import get_service
from ulak.settings import Settings

MARKUP = "<script>alert('order')</script>"
NOBODY = "00000000-0000-4000-8000-000000000000"


@pytest.mark.shows("C-84", "C-110")
def test_an_operator_lets_an_order_through_on_the_page(desk: Desk, tmp_path: Path) -> None:
    identity = wiring.identity_of(desk.engine, Settings(data=tmp_path))
    app = ulak.web.app(desk.engine, identity=identity, services=[get_service("cutting")])
    order = make_order(
        make_part(id="<b>side</b>"), order_id=MARKUP, customer_snapshot_name='"><i>Ada</i>'
    )
    job = desk.ask("POST", "/jobs", order, status=201)["job"]
    desk.work()
    with serving(app) as address, browsing() as tab:
        page = tab.page
        page.goto(f"{address}/cutting/")
        assert "How to log in" in page.inner_text("main")
        page.goto(make_login_link(identity, "ada", address))
        page.wait_for_url("**/docs")
        page.goto(f"{address}/cutting/")
        assert "HOLD 1" in page.inner_text("nav")
        page.get_by_role("link", name=MARKUP, exact=True).click()
        assert page.inner_text("h1") == f"Order {MARKUP}"
        shown = page.inner_text("main")
        for text in (job["id"], "E_CRM_NO_MATCH", "JOB_CREATED", "STATE_HOLD", "<b>side</b>"):
            assert text in shown
        assert page.input_value("[name=name]") == '"><i>Ada</i>'
        assert page.input_value("[name=phone]") == PHONE
        assert page.get_by_role("button", name="Retry").is_disabled()
        page.get_by_role("button", name="Add customer").click()
        assert page.url == f"{address}/cutting/page/{job['id']}"
        page.get_by_role("button", name="Approve").click()
        assert "HOLD_APPROVED" in page.inner_text("main")
        assert page.get_by_role("button", name="Approve").is_disabled()
        desk.work()
        page.reload()
        assert "STATE_DONE" in page.inner_text("main")
        page.get_by_role("link", name="All orders").click()
        page.get_by_role("link", name="DONE 1").click()
        assert page.get_by_role("link", name=MARKUP, exact=True).count() == 1
        page.fill("[name=order]", "another")
        page.get_by_role("button", name="Find").click()
        assert page.get_by_role("link", name=MARKUP, exact=True).count() == 0
        assert page.locator("script, b, i").count() == 0
        assert all(asked.startswith(address) for asked in tab.asked)
    # The browser itself says so of the page that needed a login, and of nothing else.
    assert [said for said in tab.complaints if "401" not in said] == []
    number = desk.ask("GET", "/customers/lookup", params={"phone": PHONE})
    assert number["customer"]["phone_normalized"] == PHONE_NORMALIZED


@pytest.mark.shows("C-110")
def test_a_failed_order_is_retried_on_the_page_and_a_refusal_is_said_there(open_desk) -> None:
    desk = open_desk(retry_count_max=1)
    desk.know()
    job = desk.ask("POST", "/jobs", make_order(opti_mode="A"), status=201)["job"]["id"]
    desk.work()
    for status in (303, 400):
        told = desk.send("POST", f"/page/{job}/retry")
        assert told.status_code == status
    assert 'role="alert"' in told.text
    told = desk.send("POST", "/page/customer", data={"name": "", "phone": "", "job": job})
    assert (told.status_code, "name: " in unescape(told.text)) == (422, True)
    told = desk.send("POST", "/page/customer", data={"name": "Ada", "phone": "1", "job": "//x.org"})
    assert (told.status_code, told.headers["location"]) == (303, "/cutting/page/%2F%2Fx.org")


@pytest.mark.shows("C-84", "C-110")
def test_nothing_that_is_asked_for_is_shown_as_html(desk: Desk) -> None:
    desk.ask("POST", "/jobs", make_order(order_id=MARKUP), status=201)
    for query in ("", f"?order={MARKUP}", f"?state={MARKUP}", f"?page={MARKUP}", "?order=%00"):
        told = desk.send("GET", query)
        assert told.status_code == 200
        assert "<script" not in told.text
        assert "default-src 'none'" in told.headers["content-security-policy"]
    assert desk.refuse("GET", f"/page/{NOBODY}") == (404, "E_JOB_NOT_FOUND")


@pytest.mark.shows("C-110")
def test_who_may_only_read_sees_no_buttons_and_presses_none(desk: Desk) -> None:
    job = desk.ask("POST", "/jobs", make_order(), status=201)["job"]["id"]
    for path in ("", f"/page/{job}"):
        assert 'method="post"' not in desk.send("GET", path, who="viewer").text
        assert 'method="post"' in desk.send("GET", path, who="operator").text
    for path in (f"/page/{job}/approve", f"/page/{job}/retry", "/page/customer"):
        assert desk.refuse("POST", path, who="viewer") == (403, "E_FORBIDDEN")
        told = desk.send("POST", path, who="")
        assert (told.status_code, "How to log in" in told.text) == (401, True)


@pytest.mark.shows("C-110")
def test_old_orders_are_on_further_pages(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ulak.services.cutting.page, "SHOWN", 2)
    for number in range(3):
        desk.ask("POST", "/jobs", make_order(order_id=f"order {number}"), status=201)
    first, second = (desk.send("GET", query).text for query in ("", "?state=&order=&page=1"))
    assert "Older orders" in first
    assert "Older orders" not in second
    assert [("order 0" in page, "order 2" in page) for page in (first, second)] == [
        (False, True), (True, False)
    ]  # fmt: skip


@pytest.mark.shows("C-110")
def test_the_page_has_at_most_two_hundred_lines_and_no_script() -> None:
    source = Path(ulak.services.cutting.page.__file__).read_text()
    assert source.count("\n") <= 200
    assert "<script" not in source
