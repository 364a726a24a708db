"""How a run ended, and what an operator or the clock asks of a job.

`Goto`, `Hold` and `RetryLater` are what a stage may return instead of its result; `RetryLater` may
be raised too, and `Refused` is raised by handlers of messages. The rest is made by the engine:
`decide` takes one of these and returns the change.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import Final, NamedTuple

from ulak.clock import Duration
from ulak.core.job import Message, NewJob


@dataclass(frozen=True, slots=True)
class Goto:
    """Returned by a stage: move to `state`, which must be one of its moves.

    `result` is stored as the stage's result; `after` delays the next stage, or sets how long a
    waiting state waits.
    """

    state: str
    _: KW_ONLY
    after: Duration | None = None
    result: object = None


@dataclass(frozen=True, slots=True)
class Hold:
    """Returned by a stage: a person must look at this. `code` is stored and shown."""

    code: str
    why: str = ""


@dataclass(unsafe_hash=True)  # not frozen: Python sets the traceback of an exception
class RetryLater(Exception):
    """Returned or raised by a stage: not now. By default no attempt is spent."""

    after: Duration
    _: KW_ONLY
    spend_attempt: bool = False
    why: str = ""
    key: str | None = None
    """Pause this key for as long: no job whose limit or rate has it is begun meanwhile."""


class Refused(Exception):
    """Raised by a handler of messages: never deliver this one. `why` is kept with it and shown.

    With `dead=True` it is a dead letter, as after its last try: it could not be judged at all.
    """

    def __init__(self, why: str = "", *, dead: bool = False) -> None:
        super().__init__(why)
        self.why = why
        self.dead = dead


@dataclass(frozen=True, slots=True)
class Left:
    """What a run leaves beside its outcome: messages, new jobs, and its encoded result."""

    result: bytes | None = None
    messages: tuple[Message, ...] = ()
    spawns: tuple[NewJob, ...] = ()


NOTHING = Left()


@dataclass(frozen=True, slots=True)
class Finished:
    """The stage or the undo returned. `to` and `after` come from a `Goto`."""

    left: Left = NOTHING
    to: str | None = None
    after: Duration | None = None
    after_stop: bool = False
    """The run had seen that it should stop, and returned all the same."""


JUST_FINISHED: Final = Finished()


@dataclass(frozen=True, slots=True)
class Passed:
    """What is called before a stage returned None: the job may enter the busy state."""

    left: Left = NOTHING


@dataclass(frozen=True, slots=True)
class Parked:
    """It may enter the busy state, and no slot is free."""

    limit: str


@dataclass(frozen=True, slots=True)
class Held:
    """The run asks for a person: a `Hold`, or an error class that holds."""

    code: str
    message: str
    details: str | None = None


@dataclass(frozen=True, slots=True)
class Deferred:
    """The run asked to be run later."""

    after: Duration
    spend_attempt: bool
    message: str
    key: str | None = None


@dataclass(frozen=True, slots=True)
class Raised:
    """The run failed. A permanent failure is not retried."""

    code: str
    message: str
    permanent: bool = False
    details: str | None = None
    timed_out: bool = False


@dataclass(frozen=True, slots=True)
class Lapsed:
    """The lease lapsed: its worker vanished in the middle of a run."""


@dataclass(frozen=True, slots=True)
class GivenBack:
    """The run was interrupted by a drain, or never began; no attempt is spent."""

    code: str | None = None
    message: str | None = None
    after: Duration = 0


@dataclass(frozen=True, slots=True)
class Overran:
    """A run is past its time and does not stop; the lease stays."""


@dataclass(frozen=True, slots=True)
class Noted:
    """A `once` finished inside a run that goes on."""

    name: str
    data: bytes


class Note(NamedTuple):
    """A line for the trail, of a service's own kind."""

    kind: str
    message: str
    details: str | None = None


Outcome = (
    Finished | Passed | Parked | Held | Deferred | Raised | Lapsed | GivenBack | Overran | Noted
)


@dataclass(frozen=True, slots=True)
class Act:
    """Who acts, and what they say about it."""

    actor: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Decide(Act):
    """An operator answers a gate."""

    choice: str = ""
    data: bytes | None = None


@dataclass(frozen=True, slots=True)
class Release(Act):
    """An operator lets a held job go on."""

    because: str | None = None
    """Why it gave up, if its undos go on; the engine finds that in the trail."""


@dataclass(frozen=True, slots=True)
class Retry(Act):
    """An operator runs a failed job again, in a new round."""


@dataclass(frozen=True, slots=True)
class Cancel(Act):
    """An operator ends a job."""


@dataclass(frozen=True, slots=True)
class Expire(Act):
    """A program ends a job whose time is over by its own count."""

    state: str | None = None


@dataclass(frozen=True, slots=True)
class Signal(Act):
    """Something outside happened that a waiting job waits for."""

    name: str = ""
    data: bytes | None = None


@dataclass(frozen=True, slots=True)
class AddNote(Act):
    """A program writes a line into the trail; `note` is what it says."""

    kind: str = ""
    details: str | None = None
    request: str | None = None
    """The name of the request that it answers, if the job was leased when it came."""


@dataclass(frozen=True, slots=True)
class Elapsed(Act):
    """A deadline or an expiry has come; nobody in particular acts."""

    actor: str = field(default="ulak")


Asked = Decide | Release | Retry | Cancel | Expire | Signal | AddNote | Elapsed
