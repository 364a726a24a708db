"""The routes of letters; the one below /clerk is for the service's own users."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from fastapi import APIRouter
from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from acme_letters import COUNT_WAITING, READ, WRITE, Office
from ulak import Engine
from ulak.kit.bodies import Body, describe_body, strict_body
from ulak.web import Access, Caller, Routes


class Letter(Body):
    to: str


Sent = Annotated[Letter, strict_body(Letter)]


def envelope(problem: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what errors of letters have besides the members of every problem."""
    return {"ok": False, "error": {"name": problem["code"].upper(), "text": problem["detail"]}}


def make_routes(engine: Engine, office: Office) -> Routes:
    """Make the routes, each with the line that says who may call it."""
    router = APIRouter()

    @router.post("/letters", status_code=202, openapi_extra=describe_body(Letter))
    def write(principal: Caller, letter: Sent) -> dict[str, str]:
        """Write a letter."""
        return {"letter": office.write(letter.to, principal)}

    @router.delete("/letters/{letter}", status_code=204)
    def withdraw(letter: str, principal: Caller) -> None:
        """Take a letter back."""
        office.withdraw(letter, principal)

    @router.get("/clerk/letters/{letter}")
    def read(letter: str, principal: Caller) -> dict[str, str]:
        """Read a letter, as a clerk does."""
        job, addressee, _ = office.read(letter, principal)
        return {"to": addressee, "state": engine.get(job).state, "reader": principal.name}

    def metrics() -> Iterator[Metric]:
        waiting = office.tables.read(COUNT_WAITING)[0][0]
        yield GaugeMetricFamily("letters_waiting", "Letters that were not posted yet.", waiting)

    clerks: Any = {"authenticate": office.find_clerk, "schemes": ("Token",)}
    access = [
        Access("POST", "/letters", WRITE, "jobs"),
        Access("DELETE", "/letters/{letter}", WRITE, "job"),
        Access("GET", "/clerk/letters/{letter}", READ, "job", **clerks),
    ]
    return Routes([router], access, metrics, envelope=envelope)
