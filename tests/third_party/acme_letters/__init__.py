"""Letters: a service that a package outside ulak brings, by documented names alone."""

import json
from contextlib import nullcontext
from datetime import timedelta
from hashlib import sha256
from importlib import import_module
from importlib.resources import files
from urllib.request import urlopen

from ulak import Engine, Flow, Lifecycle, Message, OnEnd, Run
from ulak.auth import OPERATOR, SERVICE, AccessScope, Principal
from ulak.errors import ServiceError
from ulak.kit import FaultPoint
from ulak.kit.clock import now, to_instant
from ulak.kit.ids import new_id, new_secret_id
from ulak.service import Condition, Service
from ulak.settings import Settings, read_variables
from ulak.tables import Schema, Tables

READ = AccessScope("letters:read", "read letters", roles={"clerk"})
WRITE = AccessScope("letters:write", "write letters", roles={SERVICE, OPERATOR})
STAMPED = FaultPoint("letters.stamped")
MOST_WAITING, WEBHOOK = "LETTERS_MOST_WAITING", "LETTERS_WEBHOOK"
SCHEMA = Schema(
    "letters", folder=files("acme_letters") / "sql", version_table="acme_letters_schema",
    why="a letter and its job are one commit",
)  # fmt: skip

INSERT = "INSERT INTO {schema}.acme_letters VALUES (?, ?, ?, ?, NULL, 0)"
FILE = "UPDATE {schema}.acme_letters SET filed = 1 WHERE letter = ?"
POST = "UPDATE {schema}.acme_letters SET posted_at = ? WHERE letter = ?"
FIND = "SELECT tenant, job, addressee, posted_at FROM {schema}.acme_letters WHERE letter = ?"
COUNT_WAITING = "SELECT count(*) FROM {schema}.acme_letters WHERE posted_at IS NULL"
HIRE = "INSERT INTO {schema}.acme_clerks VALUES (?, ?)"
FIND_CLERK = "SELECT name FROM {schema}.acme_clerks WHERE token = ?"


class LetterNotFound(ServiceError):
    code, status = "letter-not-found", 404


class AlreadyPosted(ServiceError):
    code, status = "already-posted", 409


class OfficeFull(ServiceError):
    code, status = "office-full", 429


def tell(run: Run[dict[str, str]]) -> None:
    """Tell the webhook, if there is one, how the job of a letter has ended."""
    if url := run.resource(Office).webhook:
        urlopen(url, json.dumps(run.payload).encode(), timeout=10).close()  # noqa: S310


webhooks = Flow.steps("letters-webhooks", tell)
END = OnEnd(webhooks, payload=lambda job, code: {"job": job.id, "state": job.state})
letters = Flow("letters", Lifecycle("written", {"written": ["posted"]}, done="posted"), on_end=END)


@letters.stage("written", to="posted")
def post(run: Run[dict[str, str]]) -> None:
    """Post a letter; to do it twice changes nothing."""
    office = run.resource(Office)
    with office.tables.writing() as connection:
        posted_at, letter = to_instant(now(office.engine)), run.payload["letter"]
        office.tables.execute(connection, POST, posted_at, letter)
        STAMPED()
    run.emit("letter.posted", letter)


def load() -> dict[str, int | str]:
    """Read the settings: how many letters may wait, and who is told of each that has ended."""
    return {MOST_WAITING: 100, WEBHOOK: ""} | read_variables({MOST_WAITING: int, WEBHOOK: str})


class Office:
    """Writes, reads and withdraws letters, and knows the clerks."""

    def __init__(self, engine: Engine, settings: dict[str, int | str]) -> None:
        self.engine = engine
        self.tables = Tables(engine, SCHEMA)
        self._most_waiting, self.webhook = settings[MOST_WAITING], settings[WEBHOOK]

    def write(self, addressee: str, principal: Principal) -> str:
        """Write a letter, and the job that posts it, in one transaction."""
        letter, tenant = new_id(self.engine), principal.tenant or ""
        with self.tables.writing() as connection:
            waiting = self.tables.execute(connection, COUNT_WAITING)[0][0]
            if waiting >= self._most_waiting:
                raise OfficeFull(f"{waiting} letters wait", retry_after=timedelta(seconds=30))
            about = {"tenant": tenant, "actor": principal.name, "connection": connection}
            job = self.engine.submit(letters, {"letter": letter}, **about)
            self.tables.execute(connection, INSERT, letter, job.id, tenant, addressee)
        return letter

    def read(self, letter: str, principal: Principal) -> tuple[str, str, int | None]:
        """Return the job of a letter, to whom it goes, and when it was posted."""
        found = self.tables.read(FIND, letter)
        if not found or not principal.sees(found[0][0]):
            raise LetterNotFound(f"there is no letter {letter}")
        return found[0][1:]

    def withdraw(self, letter: str, principal: Principal) -> None:
        """Take a letter back that was not posted."""
        job, addressee, posted_at = self.read(letter, principal)
        if posted_at is not None:
            raise AlreadyPosted(f"letter {letter} was posted", letter=letter, to=addressee)
        self.engine.cancel(job, actor=principal.name)

    def file(self, message: Message) -> str:
        """File a letter that was posted; to do it twice changes nothing."""
        with self.tables.writing() as connection:
            self.tables.execute(connection, FILE, message.data)
        return f"filed {message.data}"

    def hire(self, name: str) -> str:
        """Make a clerk; return the token, of which only the hash is kept."""
        token = new_secret_id()
        with self.tables.writing() as connection:
            self.tables.execute(connection, HIRE, _hash(token), name)
        return token

    def find_clerk(self, token: str) -> Principal | None:
        """Return the clerk who has a token."""
        for (name,) in self.tables.read(FIND_CLERK, _hash(token)):
            return Principal(f"clerk:{name}", tenant=None, roles=frozenset({"clerk"}))
        return None


def _hash(token: str) -> str:
    return sha256(token.encode()).hexdigest()


def _attach(engine: Engine, settings: Settings) -> Office:
    office = Office(engine, load())
    for flow in (webhooks, letters):
        engine.add(flow)
    engine.on("letter.posted", name="letters-archive")(office.file)
    engine.resource(Office)(lambda: nullcontext(office))
    return office  # it reaches `make_routes`


def _condition(settings: Settings) -> Condition:
    return Condition({k: (str(v), "environment or default") for k, v in load().items()})


service = Service(
    "letters",
    attach=_attach,
    routes=lambda *given: import_module("acme_letters.routes").make_routes(*given),
    commands=lambda: import_module("acme_letters.commands").group,
    condition=_condition,
    scopes=(READ, WRITE),
)
