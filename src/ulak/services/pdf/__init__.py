"""PDF rendering: an allow-listed template and its variables become a PDF, as a durable job.

    ulak up --service pdf

`docs/pdf.md` tells the rest. Nothing heavy is imported before it is asked for, and no browser by
anybody but the worker that renders.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ulak import Engine
from ulak.auth import OPERATOR, SERVICE, VIEWER, AccessScope
from ulak.errors import NotSupported
from ulak.service import Condition, Service
from ulak.settings import Settings

if TYPE_CHECKING:
    import typer

    from ulak.services.pdf.settings import PdfRenderConfig
    from ulak.web import Routes

PDF_READ: Final = AccessScope(
    "pdf:read", "read PDF jobs of one's own and download what they made",
    roles={VIEWER, SERVICE, OPERATOR},
)  # fmt: skip
PDF_RENDER: Final = AccessScope("pdf:render", "have PDFs rendered", roles={SERVICE, OPERATOR})

_PUBLIC: Final = {
    "AllowedFetcher": "fetching",
    "Created": "jobs",
    "FailSafePolicy": "failsafe",
    "InvalidTransition": "jobs",
    "MAX_RETRIES": "model",
    "NewPdfJob": "submitting",
    "OutputOptions": "output",
    "PageOptions": "page",
    "PdfArtifactStore": "artifacts",
    "PdfErrorCode": "model",
    "PdfJob": "model",
    "PdfJobRequest": "bodies",
    "PdfJobResponse": "bodies",
    "PdfJobStatus": "model",
    "PdfJobStatusResponse": "bodies",
    "PdfJobStore": "jobs",
    "PdfOutputOptions": "bodies",
    "PdfPageOptions": "bodies",
    "PdfRenderConfig": "settings",
    "PdfRenderOptions": "bodies",
    "PdfRenderWorker": "worker",
    "PdfSecurityConfig": "settings",
    "QuotaExceeded": "submitting",
    "TRANSIENT_ERRORS": "model",
    "Templates": "templates",
    "check_worker_health": "failsafe",
    "compute_job_key": "flow",
    "handle_unavailable": "failsafe",
    "sanitize_html_variables": "security",
    "should_retry": "model",
    "validate_template": "security",
    "validate_url": "security",
}
"""Every public name and the module that has it."""

_NEEDED: Final = ("jinja2", "pikepdf")
"""What every job needs. Drivers and WeasyPrint say for themselves what they lack."""


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    try:
        return getattr(import_module(f"{__name__}.{_PUBLIC[name]}"), name)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{__name__}.{name} needs {error.name}, which is not installed; "
            "pip install 'ulak[pdf,web]'",
            name=error.name,
        ) from error


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])


def _check_extra() -> None:
    """Refuse to start without the packages that every process of the service needs.

    They are looked for and not imported: a command that lists jobs needs none of them.

    Raises:
        NotSupported: the extra is not installed.
    """
    from importlib.util import find_spec

    for name in _NEEDED:
        if find_spec(name) is None:
            raise NotSupported(
                f"the service pdf needs {name}, which is not installed; pip install 'ulak[pdf]'"
            )


def _attach(engine: Engine, settings: Settings) -> PdfRenderConfig:
    """Refuse to start with settings that would fail the first job; then bring the flow, its
    queue apart, its worker, the clean-up and the callbacks."""
    _check_extra()
    from ulak.services.pdf import callbacks, cleanup, totals
    from ulak.services.pdf.configuration import artifacts_of
    from ulak.services.pdf.flow import QUEUE, make_flow
    from ulak.services.pdf.sealing import sealing_of
    from ulak.services.pdf.settings import load
    from ulak.services.pdf.worker import PdfRenderWorker, open_worker

    config = load(platform=settings)
    artifacts_of(config, engine.store.clock)
    engine.add(make_flow(config, on_end=callbacks.attach(engine, config)))
    engine.flow_control.apart(QUEUE, lease=config.lease)
    engine.resource(PdfRenderWorker, queue=QUEUE, places=config.concurrency)(
        partial(open_worker, engine, config, partial(sealing_of, engine, settings))
    )
    cleanup.attach(engine, config)
    totals.attach(engine)
    return config


def _routes(engine: Engine, config: PdfRenderConfig) -> Routes:
    from ulak.services.pdf.routes import routes_of

    return routes_of(engine, config)


def _commands() -> typer.Typer:
    _check_extra()
    from ulak.services.pdf.commands import pdf

    return pdf


def _condition(settings: Settings) -> Condition:
    from ulak.services.pdf.condition import condition

    return condition(settings)


def _verify(engine: Engine, settings: Settings) -> Iterable[tuple[str, str, str]]:
    from ulak.services.pdf.cleanup import find_strays
    from ulak.services.pdf.configuration import artifacts_of
    from ulak.services.pdf.jobs import PdfJobStore
    from ulak.services.pdf.settings import load

    config = load(platform=settings)
    jobs = PdfJobStore(engine, artifacts_of(config, engine.store.clock), config)
    try:
        yield from find_strays(jobs)
    finally:
        jobs.close()


service = Service(
    "pdf", attach=_attach, routes=_routes, scopes=(PDF_READ, PDF_RENDER), commands=_commands,
    condition=_condition, verify=_verify,
)  # fmt: skip
