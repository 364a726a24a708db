"""Which jobs are meant: the conditions that a list, a stream and a bulk act take alike."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from ulak.auth.principal import Principal
from ulak.core.lifecycle import Role
from ulak.errors import Forbidden
from ulak.store.protocol import JobFilter
from ulak.web.schemas import Parameters
from ulak.web.texts import Time


class Conditions(Parameters):
    """Which jobs: every condition that is set must hold."""

    tenant: str | None = Field(None, description="Only of this tenant.")
    flow: str | None = Field(None, description="Only of this flow.")
    state: str | None = Field(None, description="Only in this state.")
    role: Role | None = Field(None, description="Only with this role.")
    code: str | None = Field(None, description="Only held or failed with this code.")
    queue: str | None = Field(None, description="Only of this queue.")
    submitted_since: Time | None = Field(None, description="Only submitted then or later.")
    submitted_before: Time | None = Field(None, description="Only submitted before.")
    changed_since: Time | None = Field(None, description="Only changed then or later.")
    changed_before: Time | None = Field(None, description="Only changed before.")
    id_prefix: str | None = Field(None, description="Only with an id that begins so.")
    dedup_key: str | None = Field(None, description="Only with this dedup key, held or not.")
    owner: str | None = Field(None, description="Only owned by this one.")

    def are_foreign_to(self, principal: Principal) -> bool:
        """Tell whether they name a tenant whose jobs the caller does not see."""
        return self.tenant is not None and not principal.sees(self.tenant)

    def filter_for(self, principal: Principal) -> JobFilter:
        """Return the filter that is meant; that of a caller of one tenant is about that tenant.

        Raises:
            Forbidden: they name another tenant.
            BadInput: no id begins with the prefix.
        """
        if self.are_foreign_to(principal):
            raise Forbidden(
                f"{principal.name} sees the jobs of {principal.tenant!r} only, "
                f"not those of {self.tenant!r}"
            )
        said = self.said()
        if principal.tenant is not None:
            said["tenant"] = principal.tenant
        return JobFilter(**said)

    def said(self) -> dict[str, Any]:
        """Return the conditions that are set."""
        return self.model_dump(include=set(Conditions.model_fields), exclude_none=True)
