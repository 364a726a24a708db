"""How a request becomes a job, or is refused, or is answered with HTML while nobody renders."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from fastapi import Response

from ulak.auth import Principal
from ulak.errors import BadInput, NotSupported, Overloaded, StaleJob
from ulak.idempotency import fingerprint
from ulak.services.pdf.bodies import PdfJobRequest, bad_options, invalid, output_of, page_of
from ulak.services.pdf.failsafe import (
    INERT,
    FailSafePolicy,
    HealthCheck,
    Pacing,
    Unavailable,
    stand_in,
)
from ulak.services.pdf.flow import payload_of
from ulak.services.pdf.jobs import Created, NotCreated, PdfJobStore
from ulak.services.pdf.model import BadOptions, PdfError, PdfErrorCode, PdfJobStatus, WrongVariables
from ulak.services.pdf.output import NOTHING_MORE, OutputOptions, Sealing, as_json
from ulak.services.pdf.page import NOTHING_SAID, PageOptions, said_by
from ulak.services.pdf.responses import Refusal
from ulak.services.pdf.security.template_input import must_be_listed
from ulak.services.pdf.settings import PdfRenderConfig
from ulak.services.pdf.submission import PRESSED, NewPdfJob
from ulak.services.pdf.templates import Templates
from ulak.web.callers import actor_of
from ulak.web.idempotency import Requested

log = logging.getLogger("ulak.pdf")

Refused = Refusal | Unavailable


@dataclass(frozen=True, slots=True)
class Accepting:
    """Takes requests whose words are good, in the order of checks of the specification."""

    jobs: PdfJobStore
    templates: Templates
    health: HealthCheck
    pacing: Pacing
    sealing: Callable[[], Sealing] | None = None

    @property
    def config(self) -> PdfRenderConfig:
        """Return the settings."""
        return self.jobs.config

    def fingerprint(self, requested: Requested) -> str:
        """Return what must be the same under one idempotency key.

        Of a request with a password it is masked: by a plain digest, which is stored, passwords
        could be tried.
        """
        plain = fingerprint(**requested._asdict())
        if self.sealing is None or b"password" not in requested.body:
            return plain
        try:
            return self.sealing().mask(plain)
        except (BadInput, NotSupported):
            return plain  # no password is taken here

    def must_be_allowed(self, template: str) -> None:
        """Refuse a template that is not in the list."""
        with _refusing():
            must_be_listed(template, self.config.security.template_allowlist)

    def accept_all(
        self, asked: Sequence[PdfJobRequest], principal: Principal, correlation: str, root: str = ""
    ) -> list[Created | Refused]:
        """Return for each of several requests, in order, its job or why it gets none.

        Checked in this order: the template, whether the job is there already, backpressure, the
        quota of the tenant, health. A job that is there is returned whatever follows. Those that
        become jobs do so in few commits, and one that is refused harms no other.

        Raises:
            Unavailable: the store does not answer, so that nothing is known of any of them.
            StoreError: it could not be written, or it is not known; the same again tells.
        """
        tenant, actor = principal.tenant or "", actor_of(principal)
        answers: dict[int, Created | Refused] = {}
        new: dict[int, NewPdfJob] = {}
        for number, one in enumerate(asked):
            try:
                payload, options = self._payload_of(one), one.options
                # A store that hangs would be found out by its time limits alone, a minute later.
                self.health.must_answer()
                new[number] = self.jobs.new_job(
                    one.template_name, payload, tenant=tenant, timeout_s=options.timeout,
                    priority=self.config.priority_for(options.priority), root=root,
                    correlation_id=correlation, callback_url=options.callback_url or "",
                )  # fmt: skip
            except Refusal as refusal:
                answers[number] = refusal
            except BadInput:
                answers[number] = _unstorable()
        if new:
            made = self._make(list(new.values()), tenant, actor)
            answers |= zip(new, made, strict=True)
        return [answers[number] for number in range(len(asked))]

    def _make(self, new: Sequence[NewPdfJob], tenant: str, actor: str) -> list[Created | Refused]:
        """Return jobs that are there, and make the others if new ones are taken now."""
        if complaint := self.health.look().complaint:
            # What refuses new jobs comes before health: HTML would else stand in for them.
            refusal = self.jobs.find_refusal(tenant)
            refused = Unavailable(complaint) if refusal is None else self._refused(refusal)
            known = (self.jobs.find_repeat(one, actor=actor) for one in new)
            return [refused if job is None else Created(job, is_repeat=True) for job in known]
        try:
            made = self.jobs.create_jobs(new, tenant=tenant, actor=actor)
        except BadInput:
            return [_unstorable()] * len(new)
        for one in made:
            if isinstance(one, Created) and not one.is_repeat:
                facts = {"job_id": one.job.job_id, "correlation_id": one.job.correlation_id}
                log.info("a request became a job", extra={"status": one.job.status, **facts})
        return [one if isinstance(one, Created) else self._refused(one) for one in made]

    def _refused(self, why: NotCreated) -> Refused:
        """Say why a job was not made, and when to ask again."""
        if isinstance(why, StaleJob):
            return Unavailable(str(why))
        details: dict[str, int] | None = None
        if isinstance(why, Overloaded):
            wait_s = max(1, math.ceil(why.retry_after.total_seconds()))
            said = "new jobs are refused for now" if why.code == PRESSED else "too many jobs wait"
            code = str(PdfErrorCode.BACKPRESSURE_ACTIVE)
        else:
            wait_s = self.pacing.look().retry_after_s(PdfJobStatus.QUEUED)
            said, code, details = str(why), "QUOTA_EXCEEDED", {"max_waiting": why.most}
        return Refusal(
            f"{said}; try again in {wait_s} s", status=429, error_code=code,
            retry_after_s=wait_s, details=details,
        )  # fmt: skip

    def preview(self, asked: PdfJobRequest) -> Response:
        """Return the HTML that would be printed, or refuse; no job is made."""
        page = self._judged(asked)
        self._judged_output(asked)
        with _refusing():
            document = self.templates.render(asked.template_name, asked.variables, page)
        return Response(document.html, media_type="text/html", headers=INERT)

    def stand_in(self, asked: PdfJobRequest, why: str) -> Response:
        """Return the HTML that stands in for a PDF, but for one that is to be protected, marked or
        put together. Raises Unavailable: that is not wanted, or there is none."""
        if asked.options.output is not None:
            raise Unavailable(why)
        policy = FailSafePolicy(asked.options.fail_safe or self.config.fail_safe_policy)

        def make() -> str:
            self.must_be_allowed(asked.template_name)
            return self.templates.render(asked.template_name, asked.variables).html

        return stand_in(policy, make, why=why)

    def _payload_of(self, asked: PdfJobRequest) -> dict[str, Any]:
        try:
            version = self.templates.version(asked.template_name)
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
        passwords = {"user": output.password.user, "owner": output.password.owner}
        try:
            if self.sealing is None:
                raise NotSupported("nothing here seals them")
            return self.sealing().seal(asked.template_name, payload, passwords)
        except (BadInput, NotSupported) as error:
            why = f"passwords cannot be kept here: {error}"
            raise invalid("options.output.password", why) from None

    def _judged(self, asked: PdfJobRequest) -> PageOptions:
        """Refuse what the template could not be filled with, so that no job is made to fail."""
        page = page_of(asked)
        with _refusing():
            self.templates.judge(asked.template_name, asked.variables, page)
        return page

    def _judged_output(self, asked: PdfJobRequest) -> OutputOptions:
        """Refuse what the template does not allow, and documents that could not follow it."""
        output = output_of(asked)
        if output == NOTHING_MORE:
            return output
        with _refusing():
            self.templates.judge_output(asked.template_name, output)
        following = []
        for number, one in enumerate(output.append):
            with _refusing(f"options.output.append.{number}: "):
                must_be_listed(one.template_name, self.config.security.template_allowlist)
                self.templates.judge(one.template_name, one.variables)
                version = self.templates.version(one.template_name)
            following.append(replace(one, template_version=version))
        return replace(output, append=tuple(following))


def _unstorable() -> Refusal:
    return Refusal(
        "variables: they cannot be stored as they are", status=422, error_code="VALIDATION_ERROR"
    )


@contextmanager
def _refusing(place: str = "") -> Iterator[None]:
    """Refuse what a template stumbles over: names of variables, files and lines, and no value."""
    try:
        yield
    except BadOptions as error:
        raise bad_options(error) from None
    except WrongVariables as error:
        named = [{"name": name, "message": message} for name, message in error.wrong]
        raise _template_error(f"{place}{error}", details={"variables": named}) from None
    except PdfError as error:
        raise _template_error(f"{place}{error}") from None


def _template_error(message: str, *, details: Mapping[str, Any] | None = None) -> Refusal:
    return Refusal(
        message, status=400, error_code=str(PdfErrorCode.TEMPLATE_ERROR), details=details
    )
