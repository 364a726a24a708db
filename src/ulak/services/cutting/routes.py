"""The API of orders: below /cutting on the main address, and bare on an address of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any, Final

from fastapi import Header, Query, Request, Response
from pydantic import AfterValidator, Field

from ulak import Engine
from ulak.auth import Principal
from ulak.kit.addresses import OwnAddress
from ulak.kit.bodies import Body, Sent, bounded_body, describe_body, read_object
from ulak.kit.clock import now, rfc3339, to_datetime
from ulak.kit.pages import local_path
from ulak.kit.texts import must_be_writable
from ulak.service import Service
from ulak.services.cutting import ACT, CONFIGURE, READ, SCOPES
from ulak.services.cutting.codes import InvalidInput
from ulak.services.cutting.intake import read_order_sheet
from ulak.services.cutting.jobs import Cutting, make_panel
from ulak.services.cutting.order import LARGEST_ORDER, Customer, Order, parse_order
from ulak.services.cutting.page import STATES, make_page
from ulak.services.cutting.rules import Paths, Rules
from ulak.web import PUBLIC, Caller, RateLimit, Routes, RouteTable, SlashRoute, actor_of, answer

PREFIX: Final = "/cutting"
USUAL_LIMIT: Final = 100
MOST_LISTED: Final = 500
XLSX: Final = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"

A_PART: Final = {
    "id": "side", "part_type": "GOVDE", "material_code": "MDF-18", "color": "white",
    "length_cm": 72, "width_cm": 45, "thickness_mm": 18, "quantity": 2, "grain": 1,
    "edge_up": "1mm",
}  # fmt: skip
AN_ORDER: Final = {"order_id": "2026-0117", "customer_phone": "0555 123 45 67", "parts": [A_PART]}

Word = Annotated[str, Field(max_length=500), AfterValidator(must_be_writable)]
Offset = Annotated[int, Query(ge=0, le=2**31 - 1, description="How many to leave out.")]
Bytes = Annotated[bytes, bounded_body(LARGEST_ORDER)]
Batch = Annotated[int | None, Query(ge=0, le=2**31 - 1, description="Which one, from 0.")]


class NewCustomer(Body):
    """A customer as they are met."""

    name: str = Field(examples=["Ada"])
    phone: str = Field(examples=["0555 123 45 67"])


def read_limit(text: str) -> int:
    """Return how many jobs are listed: 1 to 500, and 100 for what is no number."""
    try:
        return min(max(int(float(text[:40])), 1), MOST_LISTED)
    except (ValueError, OverflowError):
        return USUAL_LIMIT


def show_customer(customer: Customer) -> dict[str, Any]:
    at = rfc3339(to_datetime(customer.created_at), "milliseconds")
    return {**asdict(customer), "created_at": at}


# Whether the platform refuses a body or the service, and on whichever Python, it is one code.
_CODES: Final = {401: "E_UNAUTHORIZED", 413: "E_PAYLOAD_TOO_LARGE", 422: "E_VALIDATION"}


def envelope(problem: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what an error has by the specification of cutting."""
    word = str(problem["code"]).replace("-", "_").upper()
    named = word if word.startswith("E_") else f"E_{word}"
    code = _CODES.get(problem["status"], named)
    return {"error": {"code": code, "message": problem["detail"]}}


def make_routes(engine: Engine, cutting: Cutting, *, prefix: str = PREFIX) -> Routes:
    """Make the routes below a prefix; the page for operators is on the main address alone."""
    route = RouteTable(prefix=prefix, route_class=SlashRoute)
    _add_customers(route, cutting)
    _add_orders(route, cutting)
    _add_jobs(route, cutting, prefix)
    _add_configuration(route, cutting)

    @route("GET", "/health", PUBLIC)
    async def health() -> Response:
        """Tell that the process lives."""
        at = rfc3339(now(engine), "milliseconds")
        return answer({"status": "ok", "service": "orchestrator", "timestamp": at})

    limits = [
        RateLimit("reads", partial(cutting.config.rate_limit, "readsPerMinute"), methods={"GET"}),
        RateLimit("writes", partial(cutting.config.rate_limit, "writesPerMinute")),
    ]
    if not prefix:
        return Routes([route.router], route.access, envelope=envelope, rate_limits=limits)
    page = make_page(cutting, prefix)
    access = route.access + page.access
    routers = [route.router, page.router]
    return Routes(routers, access, envelope=envelope, rate_limits=limits)


# What asks the store is not async: the store is synchronous, so FastAPI runs it in threads.
def _add_customers(route: RouteTable, cutting: Cutting) -> None:
    @route("GET", "/customers/lookup", READ)
    def look_up(phone: Word = "") -> Response:
        """Find the customer of a phone number, however it is written."""
        number, customer = cutting.customers.look_up(phone)
        shown = None if customer is None else show_customer(customer)
        return answer({"success": True, "phone_normalized": number, "customer": shown})

    @route("POST", "/customers", ACT)
    def add_customer(sent: Sent[NewCustomer]) -> Response:
        """Store a customer; a number that is known already keeps its record."""
        customer, created = cutting.customers.add(sent.name, sent.phone)
        return answer({"customer": show_customer(customer)}, 201 if created else 200)


def _add_orders(route: RouteTable, cutting: Cutting) -> None:
    def submit(body: Mapping[str, Any], principal: Principal, order: str | None = None) -> Response:
        payload = parse_order(body, rules=cutting.config.rules(), order_id=order)
        job, created = cutting.jobs.submit(payload, actor=actor_of(principal))
        if created:
            return answer({"job": job}, 201)
        return answer({"job": job, "deduplicated": True})

    described = describe_body(Order, AN_ORDER)

    @route("POST", "/jobs", ACT, openapi_extra=described)
    def create(principal: Caller, body: Bytes) -> Response:
        """Have an order cut. The same order again is the job that there is."""
        return submit(read_object(body), principal)

    workbook = {XLSX: {"schema": {"type": "string", "format": "binary"}}}
    either = {"requestBody": {"content": described["requestBody"]["content"] | workbook}}

    @route("POST", "/orders/{order_id}/import/xlsx", ACT, openapi_extra=either)
    def import_order(
        order_id: str, principal: Caller, body: Bytes, content_type: Annotated[str, Header()] = "",
        customer_phone: Word = "", customer_snapshot_name: Word | None = None,
        part_type: Word = "GOVDE", material_code: Word = "", band: Word = "1mm",
    ) -> Response:  # fmt: skip
        """Have an order cut that a program has read from a spreadsheet. A workbook itself may be
        sent too; what it does not say is then said by the parameters."""
        if content_type.partition(";")[0].strip().lower() != XLSX:
            return submit(read_object(body), principal, order_id)
        sheet = read_order_sheet(body, part_type=part_type, material_code=material_code, band=band)
        sheet |= {"customer_phone": customer_phone}
        sheet |= {"customer_snapshot_name": customer_snapshot_name}
        return submit(sheet, principal, order_id)


def _add_jobs(route: RouteTable, cutting: Cutting, prefix: str) -> None:
    jobs = cutting.jobs

    @route("GET", "/jobs", READ)
    def list_jobs(
        limit: str = "", offset: Offset = 0, state: Word = "", order_id: Word = ""
    ) -> Response:
        """List jobs, the newest first; `total` is how many there are on all pages."""
        if state and state not in STATES:
            raise InvalidInput(f"state: there is no {state[:20]!r}; write {', '.join(STATES)}")
        found, total = jobs.list(
            state=state, order_id=order_id, limit=read_limit(limit), offset=offset
        )
        return answer({"jobs": found, "total": total})

    @route("GET", "/jobs/worker/status", READ)
    def worker_status() -> Response:
        """Tell how the optimiser fares: the queue, what runs, the last error, the breaker."""
        return answer(make_panel(cutting.engine, cutting.breaker))

    @route("POST", "/jobs/worker/reset", CONFIGURE)
    def reset_worker(principal: Caller) -> Response:
        """Close the breaker of the optimiser."""
        cutting.breaker.reset(actor_of(principal))
        return answer(make_panel(cutting.engine, cutting.breaker))

    @route("GET", "/jobs/{id}", READ)
    def read_job(id: str) -> Response:
        """Read a job and what has happened to it."""
        return answer({"job": jobs.get(id), "audit": jobs.audit(id)})

    @route("GET", "/jobs/{id}/audit", READ)
    def read_audit(id: str) -> Response:
        """Read what has happened to a job, in order."""
        return answer({"audit": jobs.audit(id)})

    @route("POST", "/jobs/{id}/retry", ACT)
    def retry(id: str, principal: Caller) -> Response:
        """Let a failed job begin anew, after 1, 3 and 9 minutes."""
        return answer({"success": True, "retry_count": jobs.retry(id, actor=actor_of(principal))})

    @route("POST", "/jobs/{id}/approve", ACT)
    def approve(id: str, principal: Caller) -> Response:
        """Let a job in HOLD go on."""
        return answer({"success": True, "job": jobs.approve(id, actor=actor_of(principal))})

    @route("POST", "/jobs/{id}/cancel", ACT)
    def cancel(id: str, principal: Caller) -> Response:
        """End a job; its files are withdrawn from the import folder and from the saw's inbox."""
        return answer({"job": jobs.cancel(id, actor=actor_of(principal))})

    @route("GET", "/jobs/{id}/xml", READ)
    def read_plan(id: str, request: Request, batch: Batch = None) -> Response:
        """Read the plan of a batch; without a number the only one, or links to all."""
        found = jobs.xml(id, batch)
        if isinstance(found, bytes):
            return Response(found, media_type="application/xml")
        root = local_path(request, f"{prefix}/jobs/{id}/xml?batch=")
        return answer({"links": [f"{root}{number}" for number in found]}, 300)

    @route("GET", "/jobs/{id}/merges", READ)
    def read_merges(id: str) -> Response:
        """Read which equal rows could be merged; nothing is merged by itself."""
        return answer({"merges": jobs.merges(id)})

    @route("GET", "/jobs/{id}/receipt", READ)
    def read_receipt(id: str) -> Response:
        """Read what an order costs, once its plans are there."""
        return answer({"receipt": jobs.receipt(id)})


def _add_configuration(route: RouteTable, cutting: Cutting) -> None:
    config, configure = cutting.config, cutting.jobs.configure

    @route("GET", "/config/rules", CONFIGURE)
    def read_rules() -> Response:
        """Read the rules in force."""
        return answer(config.rules().document())

    @route("PUT", "/config/rules", CONFIGURE, openapi_extra=describe_body(Rules))
    def put_rules(principal: Caller, body: Bytes) -> Response:
        """Put other rules in force, for jobs that are not prepared yet."""
        return answer(configure("rules", read_object(body), actor=actor_of(principal)))

    @route("GET", "/config/paths", CONFIGURE)
    def read_paths() -> Response:
        """Read where everything is."""
        return answer(config.paths().document())

    @route("PUT", "/config/paths", CONFIGURE, openapi_extra=describe_body(Paths))
    def put_paths(principal: Caller, body: Bytes) -> Response:
        """Say where everything is from now on."""
        return answer(configure("paths", read_object(body), actor=actor_of(principal)))


_ROUTES: Final = partial(make_routes, prefix="")
BARE: Final = OwnAddress(
    Service("cutting", attach=lambda *_: None, routes=_ROUTES, scopes=SCOPES),
    variable="CUTTING_PORT", usual_port=8090,
)  # fmt: skip
"""Where the API has no prefix, and /health is the service's own."""
