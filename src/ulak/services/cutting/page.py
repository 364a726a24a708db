"""The plain page for operators, until there is a console."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal
from urllib.parse import quote

from fastapi import Depends, Request, Response

from ulak.auth import Principal
from ulak.errors import ServiceError
from ulak.kit.pages import (
    Html,
    PageRoute,
    form,
    link,
    read_form,
    respond_page,
    see_other,
    table,
    to_html,
)
from ulak.services.cutting.flow import LIFECYCLE
from ulak.services.cutting.scopes import ACT, READ
from ulak.web import Access, Caller, actor_of, guarded_router

if TYPE_CHECKING:
    from fastapi import APIRouter

    from ulak.services.cutting import Cutting

STATES: Final = ("HOLD", "FAILED", *LIFECYCLE.moves, "DONE")
"""Those that wait for people first."""
SHOWN: Final = 50
LISTED: Final = ("state", "error_code", "opti_mode", "retry_count", "created_at", "updated_at")
AUDITED: Final = ("id", "created_at", "event_type", "message", "details_json", "actor")


def make_page(cutting: Cutting, prefix: str) -> tuple[APIRouter, list[Access]]:
    """Make the routes of the page, each with its line of access."""
    jobs, router, own = cutting.jobs, guarded_router(route_class=PageRoute), f"{prefix}/page"
    verbs: Mapping[str, Callable[..., Any]] = {"approve": jobs.approve, "retry": jobs.retry}

    def at(request: Request, *path: str) -> str:
        return "/".join((f"{request.scope.get('root_path', '')}{path[0]}", *path[1:]))

    def customer_form(request: Request, job: Mapping[str, str]) -> Html:
        order = json.loads(job.get("payload_json", "{}"))
        known = {"name": order.get("customer_snapshot_name"), "phone": order.get("customer_phone")}
        hidden = {"job": job.get("id", "")}
        return to_html(
            (
                Html("<h2>New customer</h2>"),
                form(at(request, own, "customer"), "Add customer", known, hidden=hidden),
            )
        )

    def show_index(request: Request, principal: Principal, **said: Any) -> Response:
        query = request.query_params
        home, counts, page = at(request, prefix), jobs.counts(), query.get("page", "")
        state = query["state"] if query.get("state") in STATES else ""
        order = "".join(filter(str.isprintable, query.get("order", "")))
        number = int(page) if re.fullmatch(r"[0-9]{1,5}", page) else 0
        found, total = jobs.list(state=state, order_id=order, limit=SHOWN, offset=number * SHOWN)
        filled = [link(f"{home}?state={s}", f"{s} {counts[s]}") for s in STATES if counts.get(s)]
        rows = (
            [link(at(request, own, job["id"]), job["order_id"]), *(job[c] for c in LISTED)]
            for job in found
        )
        more = f"{home}?state={state}&order={quote(order)}&page={number + 1}"
        return respond_page(
            "Orders",
            Html(f'<nav aria-label="States">{link(home, "all")}{"".join(filled)}</nav>'),
            form(home, "Find", {"order": order}, method="get"),
            table(("order", *LISTED), rows),
            link(more, "Older orders") if total > (number + 1) * SHOWN else "",
            customer_form(request, {}) if principal.may(ACT) else "",
            **said,
        )

    def show_job(request: Request, principal: Principal, id: str, **said: Any) -> Response:
        job, audit = jobs.get(id), jobs.audit(id)
        acts: list[Html] = []
        if principal.may(ACT):
            place = at(request, own, job["id"])
            acts = [
                form(f"{place}/approve", "Approve", enabled=job["state"] == "HOLD"),
                form(f"{place}/retry", "Retry", enabled=job["state"] == "FAILED"),
            ]
            if job["error_code"] == "E_CRM_NO_MATCH":
                acts.append(customer_form(request, job))
        text = json.dumps(json.loads(job.pop("payload_json")), indent=2, ensure_ascii=False)
        return respond_page(
            f"Order {job['order_id']}",
            Html(f"<p>{link(at(request, prefix), 'All orders')}</p>"), acts,
            Html("<h2>Fields</h2>"), table(("field", "value"), job.items()),
            Html("<h2>Audit</h2>"), table(AUDITED, ([line[c] for c in AUDITED] for line in audit)),
            Html(f"<h2>Order as it was sent</h2><pre>{to_html(text)}</pre>"),
            **said,
        )  # fmt: skip

    @router.get(prefix, include_in_schema=False)
    def index(request: Request, principal: Caller) -> Response:
        return show_index(request, principal)

    @router.get(f"{own}/{{id}}", include_in_schema=False)
    def read(request: Request, principal: Caller, id: str) -> Response:
        return show_job(request, principal, id)

    @router.post(f"{own}/{{id}}/{{verb}}", include_in_schema=False)
    def act(
        request: Request, principal: Caller, id: str, verb: Literal["approve", "retry"]
    ) -> Response:
        try:
            verbs[verb](id, actor=actor_of(principal))
        except ServiceError as error:
            return show_job(request, principal, id, said=str(error), status=error.status)
        return see_other(at(request, own, quote(id, safe="")))

    @router.post(f"{own}/customer", include_in_schema=False)
    def add_customer(
        request: Request, principal: Caller, sent: Annotated[dict[str, str], Depends(read_form)]
    ) -> Response:
        try:
            cutting.customers.add(sent.get("name", ""), sent.get("phone", ""))
        except ServiceError as error:
            return show_index(request, principal, said=str(error), status=error.status)
        job = quote(sent.get("job", ""), safe="")
        return see_other(at(request, own, job) if job else at(request, prefix))

    reads = [Access("GET", path, READ) for path in (prefix, f"{own}/{{id}}")]
    acts = [Access("POST", f"{own}/{path}", ACT) for path in ("{id}/{verb}", "customer")]
    return router, reads + acts
