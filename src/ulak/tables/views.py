"""Views of what the engine keeps, to be joined with rows of a service. Their columns are a promise.

The engine makes them: a service holds no SQL on its tables.
"""

from __future__ import annotations

import re
from dataclasses import KW_ONLY, dataclass
from typing import Final

from ulak.errors import BadInput
from ulak.store import schemas

NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,62}")
PLAIN: Final = "use lower-case letters, digits and underscores"
_WORD: Final = re.compile(r"[a-z][a-z0-9_.-]*")


@dataclass(frozen=True, slots=True)
class DeliveryView:
    """A view of the deliveries of one handler, to be joined with rows of the service.

    It has the columns `position`, `key`, `data` and `answer` (JSON, as text), `at`, `state`,
    `tries`, `not_before`, `give_up_at`, `sent_at` and `error`. A file of the schema may insert
    there, all but `position` and `answer`, to move the rows of another outbox.

    Args:
        name: The view. A stored name: begin it with the service's own.
        handler: Under which name the service declares it (`engine.on`).
        topic: What it wants.

    Raises:
        BadInput: one of them could not be part of a statement.
    """

    name: str
    _: KW_ONLY
    handler: str
    topic: str

    def __post_init__(self) -> None:
        _must_be_plain(self.name, self.handler, self.topic)

    def make_script(self, dialect: str) -> str:
        """Return the statements that make it on `sqlite` or `postgresql`, if it is not there."""
        return schemas.make_script(dialect, view=self.name, handler=self.handler, topic=self.topic)


@dataclass(frozen=True, slots=True)
class JobView:
    """A view of the jobs of one flow, every version and tenant, to be read only.

    It has the columns `key`, `job_id` (as `Job.id`), `tenant`, `state`, `role`, `code`,
    `dedup_key`, `payload` (JSON, as text, with the fields that the flow calls secret), `round`,
    `seq`, `not_before`, `created_at`, `changed_at` (microseconds since 1970), `submitter`, and
    those times as text with milliseconds: `not_before_text`, `created_text` and `changed_text`.
    `key` is the id as the database keeps it, `Tables.make_key` makes one: by it a job is found at
    once, and by it views are joined. By `job_id` every job is read.

    Args:
        name: The view. A stored name: begin it with the service's own.
        flow: The name of the flow.

    Raises:
        BadInput: one of them could not be part of a statement.
    """

    name: str
    _: KW_ONLY
    flow: str

    def __post_init__(self) -> None:
        _must_be_plain(self.name, self.flow)

    def make_script(self, dialect: str) -> str:
        """Return the statement that makes it on `sqlite` or `postgresql`, if it is not there."""
        return schemas.make_job_script(dialect, view=self.name, flow=self.flow)


@dataclass(frozen=True, slots=True)
class TrailView:
    """A view of the trails of one flow's jobs, to be read only.

    It has the columns `key`, `job_id`, `seq`, `kind`, `from_state`, `to_state`, `actor`, `code`,
    `message`, `details` (JSON, as text), `round`, `at` (microseconds since 1970) and `at_text`.
    Arguments and errors are those of `JobView`, and so is `key`.
    """

    name: str
    _: KW_ONLY
    flow: str

    def __post_init__(self) -> None:
        _must_be_plain(self.name, self.flow)

    def make_script(self, dialect: str) -> str:
        """Return the statement that makes it on `sqlite` or `postgresql`, if it is not there."""
        return schemas.make_trail_script(dialect, view=self.name, flow=self.flow)


def _must_be_plain(name: str, *words: str) -> None:
    if not NAME.fullmatch(name):
        raise BadInput(f"{name!r} cannot be the name of a view: {PLAIN}")
    for word in words:
        if not _WORD.fullmatch(word):
            raise BadInput(f"{word!r} cannot be shown by a view: {PLAIN}, dots and hyphens")
