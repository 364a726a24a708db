"""The plain page for operators, until there is a console."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal
from urllib.parse import quote, urlencode

from fastapi import Depends, Request, Response

from ulak.kit.pages import (
    Html,
    PageRoute,
    form,
    link,
    local_path,
    read_form,
    respond_document,
    respond_page,
    see_other,
    table,
    to_html,
)
from ulak.services.cutting import ACT, READ
from ulak.services.cutting.flow import LIFECYCLE
from ulak.services.cutting.jobs import Cutting
from ulak.web import Caller, RouteTable, actor_of

STATES: Final = ("HOLD", "FAILED", *LIFECYCLE.moves, "DONE")
"""Those that wait for people first."""
SHOWN: Final = 50
LISTED: Final = ("state", "error_code", "opti_mode", "retry_count", "created_at", "updated_at")
AUDITED: Final = ("id", "created_at", "event_type", "message", "details_json", "actor")


def make_page(cutting: Cutting, prefix: str) -> RouteTable:
    """Make the routes of the page, each with its line of access."""
    jobs = cutting.jobs
    route = RouteTable(prefix=prefix, route_class=PageRoute, include_in_schema=False)

    def show_customer_form(request: Request, known: Mapping[str, Any], job: str = "") -> list[Html]:
        where = local_path(request, f"{prefix}/page/customer")
        fields = {"name": known.get("customer_snapshot_name"), "phone": known.get("customer_phone")}
        filled = form(where, "Add customer", fields, hidden={"job": job})
        return [Html("<h2>New customer</h2>"), filled]

    @route("GET", "", READ)
    def show_index(request: Request, principal: Caller) -> Response:
        """Show the orders, by state or by order; the newest first."""
        query, home, counts = request.query_params, local_path(request, prefix), jobs.counts()
        state, page = query.get("state", ""), query.get("page", "")[:5]
        state, number = state if state in STATES else "", int(page) if page.isdecimal() else 0
        order = "".join(filter(str.isprintable, query.get("order", "")))
        found, total = jobs.list(state=state, order_id=order, limit=SHOWN, offset=number * SHOWN)
        filled = [link(f"{home}?state={s}", f"{s} {counts[s]}") for s in STATES if counts.get(s)]
        rows = (
            [link(f"{home}/page/{job['id']}", job["order_id"]), *(job[c] for c in LISTED)]
            for job in found
        )
        older = f"{home}?{urlencode({'state': state, 'order': order, 'page': number + 1})}"
        return respond_page(
            "Orders",
            Html(f'<nav aria-label="States">{link(home, "all")}{"".join(filled)}</nav>'),
            form(home, "Find", {"order": order}, method="get"),
            table(("order", *LISTED), rows),
            link(older, "Older orders") if total > (number + 1) * SHOWN else "",
            show_customer_form(request, {}) if principal.may(ACT) else "",
        )

    @route("GET", "/page/{id}", READ)
    def show_job(request: Request, principal: Caller, id: str) -> Response:
        """Show one order, with the buttons that its caller may press."""
        job, audit, acts = jobs.get(id), jobs.audit(id), list[Html]()
        order = json.loads(job.pop("payload_json"))
        if principal.may(ACT):
            for verb, state in (("approve", "HOLD"), ("retry", "FAILED")):
                where = local_path(request, f"{prefix}/page/{job['id']}/{verb}")
                acts.append(form(where, verb.title(), enabled=job["state"] == state))
            if job["error_code"] == "E_CRM_NO_MATCH":
                acts += show_customer_form(request, order, job["id"])
        text = json.dumps(order, indent=2, ensure_ascii=False)
        where = local_path(request, f"{prefix}/page/{job['id']}/plans")
        has_plans = job["opti_mode"] == "E" and job["state"] in ("XML_READY", "DELIVERED", "DONE")
        plans = link(where, "Drawings and labels") if has_plans else ""
        return respond_page(
            f"Order {job['order_id']}",
            Html(f"<p>{link(local_path(request, prefix), 'All orders')} {plans}</p>"), acts,
            Html("<h2>Fields</h2>"), table(("field", "value"), job.items()),
            Html("<h2>Audit</h2>"), table(AUDITED, ([line[c] for c in AUDITED] for line in audit)),
            Html(f"<h2>Order as it was sent</h2><pre>{to_html(text)}</pre>"),
        )  # fmt: skip

    @route("GET", "/page/{id}/plans", READ)
    def show_plans(id: str) -> Response:
        """Show the plans of an order, drawn, with labels to print."""
        return respond_document(jobs.draw(id))

    @route("POST", "/page/{id}/{verb}", ACT)
    def act(
        request: Request, principal: Caller, id: str, verb: Literal["approve", "retry"]
    ) -> Response:
        """Let an order go on."""
        {"approve": jobs.approve, "retry": jobs.retry}[verb](id, actor=actor_of(principal))
        return see_other(local_path(request, f"{prefix}/page/{quote(id, safe='')}"))

    @route("POST", "/page/customer", ACT)
    def add_customer(
        request: Request, sent: Annotated[dict[str, str], Depends(read_form)]
    ) -> Response:
        """Store a customer, and go on to the order that has waited for one."""
        cutting.customers.add(sent.get("name", ""), sent.get("phone", ""))
        job = quote(sent.get("job", ""), safe="")
        return see_other(local_path(request, f"{prefix}/page/{job}" if job else prefix))

    return route
