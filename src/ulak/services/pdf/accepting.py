"""How a request becomes a job, or is refused, or is answered with HTML while nobody renders."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from fastapi import Response

from ulak.auth.principal import Principal
from ulak.errors import BadInput, NotSupported, Overloaded
from ulak.idempotency import fingerprint
from ulak.services.pdf.bodies import PdfJobRequest, bad_output, bad_page, output_of, page_of
from ulak.services.pdf.envelope import VALIDATION_ERROR, Refusal
from ulak.services.pdf.failsafe import (
    FailSafePolicy,
    HealthCheck,
    Unavailable,
    handle_unavailable,
)
from ulak.services.pdf.jobs import PdfJobStore
from ulak.services.pdf.keys import payload_of
from ulak.services.pdf.model import PdfError, PdfErrorCode, PdfJob, WrongVariables
from ulak.services.pdf.output import NOTHING_MORE, BadOutput, OutputOptions, Password, as_json
from ulak.services.pdf.page import NOTHING_SAID, BadPage, PageOptions, said_by
from ulak.services.pdf.sealing import Sealing
from ulak.services.pdf.security.names import validate_template
from ulak.services.pdf.settings import PdfRenderConfig
from ulak.services.pdf.worker import TemplateSource
from ulak.web.idempotency import Requested
from ulak.web.seen import actor_of

log = logging.getLogger("ulak.pdf")

INERT: Final = {
    # Nothing of it runs or leaves the page, whatever a template or a variable says.
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
    "font-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; sandbox",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "private, no-store",
}
"""The headers of a document that is shown and not printed."""
FALLBACK_HEADERS: Final = {"X-Pdf-Fallback": "html", **INERT}


class Accepting:
    """Takes requests whose words are good, in the order of checks of the specification.

    Args:
        jobs: Where they become jobs.
        templates: Judges what is asked of them.
        health: Tells whether jobs are worked on.
        sealing: Makes what seals passwords; None takes none.
    """

    def __init__(
        self,
        jobs: PdfJobStore,
        templates: TemplateSource,
        health: HealthCheck,
        sealing: Callable[[], Sealing] | None = None,
    ) -> None:
        self.config: PdfRenderConfig = jobs.config
        self._jobs = jobs
        self._templates = templates
        self._health = health
        self._sealing = sealing

    def fingerprint(self, requested: Requested) -> str:
        """Answer what must be the same under one idempotency key.

        Of a request with a password it is made with a secret: by a plain digest, which is stored,
        whoever knows the rest could try passwords.
        """
        plain = fingerprint(**requested._asdict())
        if self._sealing is None or b"password" not in requested.body:
            return plain
        try:
            return self._sealing().mask(plain)
        except (BadInput, NotSupported):
            return plain  # no password is taken here

    def must_be_allowed(self, template: str) -> None:
        """Refuse a template that is not in the list."""
        try:
            validate_template(template, self.config.security.template_allowlist)
        except PdfError as error:
            raise _template_error(str(error)) from None

    def accept(
        self, asked: PdfJobRequest, principal: Principal, correlation: str, root: str = ""
    ) -> tuple[PdfJob, bool]:
        """Answer the job of a request, and whether it was there before.

        Args:
            asked: The request.
            principal: Who asks.
            correlation: Of the request.
            root: Where the application is mounted.

        Raises:
            Refusal: the template cannot be used, or new jobs are refused.
            Unavailable: nobody would render it.
            StoreError: it could not be written; nothing is left behind.
        """
        payload = self._payload_of(asked)
        tenant, actor = principal.tenant or "", actor_of(principal)
        # A store that hangs would be found out by its time limits alone, a minute later.
        if not self._health.look().store_answers:
            raise Unavailable("the store of jobs does not answer")
        callback_url = asked.options.callback_url or ""
        known = self._jobs.find_repeat(
            asked.template_name, payload, tenant=tenant, actor=actor, callback_url=callback_url,
            root=root,
        )  # fmt: skip
        if known is not None:
            return known, True
        pressure = self._jobs.backpressure()
        if pressure.active:
            raise _backpressure("new jobs are refused for now", pressure.retry_after_seconds)
        if complaint := self._health.look().complaint:
            raise Unavailable(complaint)
        try:
            created = self._jobs.create_job(
                asked.template_name, payload, tenant=tenant, actor=actor,
                timeout_s=asked.options.timeout, correlation_id=correlation,
                callback_url=callback_url, root=root,
            )  # fmt: skip
        except Overloaded as error:
            wait_s = max(1, math.ceil(error.retry_after.total_seconds()))
            raise _backpressure("too many jobs are waiting", wait_s) from error
        except BadInput as error:
            raise Refusal(
                "variables: they cannot be stored as they are", status=422,
                error_code=VALIDATION_ERROR,
            ) from error  # fmt: skip
        job = created.job
        log.info(
            "a request became a job",
            extra={"job_id": job.job_id, "status": job.status, "correlation_id": correlation},
        )
        return job, created.is_repeat

    def preview(self, asked: PdfJobRequest) -> Response:
        """Answer the HTML that would be printed. No job is made.

        Raises:
            Refusal: the template cannot be filled with it.
        """
        page = self._judged(asked)
        self._judged_output(asked)
        try:
            document = self._templates.render(asked.template_name, asked.variables, page)
        except PdfError as error:
            raise _refused(error) from None
        return Response(document.html, media_type="text/html", headers=INERT)

    def stand_in(self, asked: PdfJobRequest, why: str) -> Response:
        """Answer the HTML that stands in for a PDF.

        Raises:
            Unavailable: that is not wanted, or there is none; nothing stands in for a document
                that is to be protected, marked or put together.
        """
        if asked.options.output is not None:
            raise Unavailable(why)
        policy = FailSafePolicy(asked.options.fail_safe or self.config.fail_safe_policy)

        def make() -> str:
            self.must_be_allowed(asked.template_name)
            return self._templates.render(asked.template_name, asked.variables).html

        html = handle_unavailable(policy, make, why=why)
        return Response(html, media_type="text/html", headers=FALLBACK_HEADERS)

    def _payload_of(self, asked: PdfJobRequest) -> dict[str, Any]:
        try:
            version = self._templates.version(asked.template_name)
        except PdfError as error:
            raise _template_error("the template is allowed and is not installed here") from error
        page = self._judged(asked)
        options = {"page": said_by(page)} if page != NOTHING_SAID else {}
        output = self._judged_output(asked)
        if output != NOTHING_MORE:
            options["output"] = as_json(output)
        payload = payload_of(asked.variables, template_version=version, options=options)
        if output.password is None:
            return payload
        return self._sealed(asked.template_name, payload, output.password)

    def _judged(self, asked: PdfJobRequest) -> PageOptions:
        """Refuse what the template could not be filled with, so that no job is made to fail."""
        page = page_of(asked)
        try:
            self._templates.judge(asked.template_name, asked.variables, page)
        except BadPage as error:
            raise bad_page(error) from None
        except PdfError as error:
            raise _refused(error) from None
        return page

    def _judged_output(self, asked: PdfJobRequest) -> OutputOptions:
        """Refuse what the template does not allow, and documents that could not follow it."""
        output = output_of(asked)
        if output == NOTHING_MORE:
            return output
        try:
            self._templates.judge_output(asked.template_name, output)
        except BadOutput as error:
            raise bad_output(error) from None
        following = []
        for number, one in enumerate(output.append):
            place = f"options.output.append.{number}: "
            try:
                validate_template(one.template_name, self.config.security.template_allowlist)
                self._templates.judge(one.template_name, one.variables)
                version = self._templates.version(one.template_name)
            except PdfError as error:
                raise _refused(error, place) from None
            following.append(replace(one, template_version=version))
        return replace(output, append=tuple(following))

    def _sealed(
        self, template_name: str, payload: dict[str, Any], password: Password
    ) -> dict[str, Any]:
        passwords = {"user": password.user, "owner": password.owner}
        try:
            if self._sealing is None:
                raise NotSupported("nothing here seals them")
            return self._sealing().seal(template_name, payload, passwords)
        except (BadInput, NotSupported) as error:
            raise bad_output(
                BadOutput([("password", f"passwords cannot be kept here: {error}")])
            ) from None


def _refused(error: PdfError, place: str = "") -> Refusal:
    """Say what a template stumbles over: names of variables, files and lines, and no value."""
    if not isinstance(error, WrongVariables):
        return _template_error(f"{place}{error}")
    named = [{"name": name, "message": message} for name, message in error.wrong]
    return _template_error(f"{place}{error}", details={"variables": named})


def _template_error(message: str, *, details: Mapping[str, Any] | None = None) -> Refusal:
    return Refusal(
        message, status=400, error_code=str(PdfErrorCode.TEMPLATE_ERROR), details=details
    )


def _backpressure(message: str, retry_after_s: int) -> Refusal:
    return Refusal(
        f"{message}; try again in {retry_after_s} s", status=429,
        error_code=str(PdfErrorCode.BACKPRESSURE_ACTIVE), retry_after_s=retry_after_s,
    )  # fmt: skip
