"""PDF rendering: an allow-listed template and its variables become a PDF, as a durable job.

    ulak up --service pdf

`docs/pdf.md` tells the rest. Nothing heavy is imported before it is asked for, and no browser by
anybody but the worker that renders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from ulak import Engine
from ulak.auth import OPERATOR, SERVICE, VIEWER, AccessScope
from ulak.errors import NotSupported
from ulak.service import Service
from ulak.settings import Settings

if TYPE_CHECKING:
    import typer

    from ulak.services.pdf.settings import PdfRenderConfig

PDF_READ: Final = AccessScope(
    "pdf:read", "read PDF jobs of one's own and download what they made",
    roles={VIEWER, SERVICE, OPERATOR},
)  # fmt: skip
PDF_RENDER: Final = AccessScope("pdf:render", "have PDFs rendered", roles={SERVICE, OPERATOR})

_PUBLIC: Final = {
    name: module
    for module, names in {
        "artifacts": ("PdfArtifactStore", "StorageBackend"),
        "bodies": (
            "PdfJobRequest", "PdfJobResponse", "PdfJobStatusResponse", "PdfOutputOptions",
            "PdfPageOptions", "PdfRenderOptions",
        ),
        "failsafe": ("FailSafePolicy", "check_worker_health", "handle_unavailable"),
        "fetching": ("AllowedFetcher",),
        "flow": ("compute_job_key",),
        "jobs": ("Created", "InvalidTransition", "PdfJobStore", "enqueue_pdf_job"),
        "model": (
            "MAX_RETRIES", "PdfErrorCode", "PdfJob", "PdfJobStatus", "TRANSIENT_ERRORS",
            "should_retry",
        ),
        "output": ("OutputOptions",),
        "page": ("PageOptions",),
        "security": ("sanitize_html_variables", "validate_template", "validate_url"),
        "settings": ("PdfRenderConfig", "PdfSecurityConfig"),
        "submission": ("NewPdfJob", "QuotaExceeded"),
        "templates": ("Templates",),
        "worker": ("PdfRenderWorker", "open_render_worker"),
    }.items()
    for name in names
}  # fmt: skip
"""Every public name and the module that has it."""

_NEEDED: Final = ("jinja2", "pikepdf")
"""What every job needs. Drivers and WeasyPrint say for themselves what they lack."""


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
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
    """Raise NotSupported without the packages that every process of the service needs; they are
    looked for and not imported."""
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
    from ulak import control
    from ulak.services.pdf import callbacks, cleanup, totals
    from ulak.services.pdf.configuration import artifacts_of
    from ulak.services.pdf.flow import FLOW, QUEUE, make_flow
    from ulak.services.pdf.output import sealing_of
    from ulak.services.pdf.settings import load
    from ulak.services.pdf.submission import Submitting
    from ulak.services.pdf.worker import PdfRenderWorker, open_worker

    config = load(platform=settings)
    artifacts_of(config, engine.store.clock)
    engine.add(make_flow(config, on_end=callbacks.attach(engine, config)))
    engine.flow_control.apart(QUEUE, lease=config.lease)
    engine.resource(
        PdfRenderWorker, queue=QUEUE, places=config.concurrency, unready=PdfRenderWorker.unready
    )(partial(open_worker, engine, config, partial(sealing_of, engine, settings)))
    cleanup.attach(engine, config)
    totals.attach(engine)
    control.subsystem(
        engine, "pdf", depth=control.queue_depth(engine, FLOW), admission=Submitting(engine),
        telemetry=totals.Totals(engine).read_telemetry, creates={"POST": "/pdf/jobs"},
    )  # fmt: skip
    return config


def _later(module: str, name: str) -> Callable[..., Any]:
    """Return a function that imports the one of this name when it is called."""

    def call(*arguments: Any) -> Any:
        return getattr(import_module(f"{__name__}.{module}"), name)(*arguments)

    return call


def _commands() -> typer.Typer:
    _check_extra()
    from ulak.services.pdf.commands import pdf

    return pdf


def _verify(engine: Engine, settings: Settings) -> Iterable[tuple[str, str, str]]:
    from ulak.services.pdf.cleanup import find_strays
    from ulak.services.pdf.configuration import open_jobs
    from ulak.services.pdf.settings import load

    jobs = open_jobs(engine, load(platform=settings))
    try:
        yield from find_strays(jobs)
    finally:
        jobs.close()


service = Service(
    "pdf", attach=_attach, routes=_later("routes", "routes_of"), scopes=(PDF_READ, PDF_RENDER),
    commands=_commands, condition=_later("configuration", "condition"), verify=_verify,
)  # fmt: skip
