"""Users of the blog: their rows, and whom they subscribe to."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Final

from ulak import Engine
from ulak.auth import Attempts, hash_password, is_password
from ulak.errors import ServiceError, Unauthenticated
from ulak.kit.clock import rfc3339, to_datetime
from ulak.kit.ids import new_secret_id
from ulak.kit.logins import Logins as Logins
from ulak.kit.sealing import Seal
from ulak.services.publishing.settings import PublishingSettings
from ulak.tables import Schema, Tables

log = logging.getLogger("ulak.publishing")

SHORTEST_PASSWORD: Final = 6
SCHEMA: Final = Schema(
    "users", folder=files(__package__) / "sql" / "users", version_table="publishing_users_schema",
    why="a user, a subscription or a delivery is one commit",
)  # fmt: skip

_SELECT: Final = """
    SELECT id, email, username, bio, image_url, is_active, subscription_key IS NOT NULL,
        created_at, updated_at, password_hash
    FROM {schema}.publishing_users WHERE
"""
_BY_ID: Final = _SELECT + "id = ?"
_BY_EMAIL: Final = _SELECT + "email_key = ?"
_TAKEN: Final = """
    SELECT email_key FROM {schema}.publishing_users
    WHERE (email_key = ? OR username = ?) AND id <> ?
"""
_SUBSCRIBE: Final = """
    INSERT INTO {schema}.publishing_subscribers (author_id, subscriber_id, created_at)
    VALUES (?, ?, ?) ON CONFLICT DO NOTHING
"""
_UNSUBSCRIBE: Final = """
    DELETE FROM {schema}.publishing_subscribers WHERE author_id = ? AND subscriber_id = ?
"""


class EmailTaken(ServiceError):
    code, status = "email_taken", 409


class UsernameTaken(ServiceError):
    code, status = "username_taken", 409


class BadCredentials(ServiceError):
    code, status = "bad_credentials", 401
    headers = MappingProxyType({"WWW-Authenticate": "Bearer"})


class InactiveUser(ServiceError):
    code, status = "inactive_user", 403


class CannotSubscribeToSelf(ServiceError):
    code, status = "cannot_subscribe_to_self", 400


class UserNotFound(ServiceError):
    code, status = "not_found", 404


@dataclass(frozen=True, slots=True)
class User:
    """A user as they see themselves, without anything secret."""

    id: str
    email: str
    username: str
    bio: str | None
    image_url: str | None
    is_active: bool
    has_subscription_key: bool
    created_at: str
    updated_at: str


class Users:
    """Registers, reads and changes users and subscriptions, in the store of an engine."""

    def __init__(self, engine: Engine, settings: PublishingSettings) -> None:
        self.tables = Tables(engine, SCHEMA)
        self._settings = settings
        self.attempts = Attempts(engine.store.clock)

    def register(self, values: Mapping[str, Any]) -> User:
        """Make a user from `email`, `username`, `password`, and perhaps `bio` and `image_url`.
        Raises `EmailTaken`, `UsernameTaken`, `BadInput`: the password cannot be used, and
        `Overloaded`: too many others register."""
        columns = {"id": new_secret_id(), "is_active": 1, **self._columns(values)}
        with self.tables.writing() as connection:
            self._refuse_taken(connection, columns["id"], columns)
            columns["created_at"] = columns["updated_at"] = self.tables.now
            names, marks = ", ".join(columns), ", ".join("?" * len(columns))
            statement = f"INSERT INTO {{schema}}.publishing_users ({names}) VALUES ({marks})"  # noqa: S608 - names of ours
            self.tables.execute(connection, statement, *columns.values())
            return self._read(connection, columns["id"])

    def login(self, email: str, password: str, *, address: str) -> User:
        """Return the user of an e-mail address and a password. Raises `BadCredentials`, which takes
        as long for one that nobody has; `Overloaded`: after failures from this network address, or
        beside too many others, it was not looked at; and `InactiveUser`."""
        found = self.tables.read(_BY_EMAIL, email.casefold())
        stored = found[0][-1] if found else None
        user = email.casefold()
        if not self.attempts.check(user, address, lambda: is_password(password, stored)):
            log.warning("a login was refused", extra={"address": address})
            raise BadCredentials("no user has this e-mail address with this password")
        return _active(_user(found[0]))

    def get(self, user_id: str) -> User:
        """Return an active user. Raises `InactiveUser`, and `Unauthenticated`: there is none, so
        that the token is of another system."""
        found = self.tables.read(_BY_ID, user_id)
        if not found:
            raise Unauthenticated("the user of this token does not exist", reason="unknown")
        return _active(_user(found[0]))

    def update(self, user_id: str, changes: Mapping[str, Any]) -> User:
        """Change what is among the changes; takes and raises as `register` and `get` do."""
        self.get(user_id)
        columns = self._columns(changes)
        with self.tables.writing() as connection:
            self._refuse_taken(connection, user_id, columns)
            return self._change(connection, user_id, columns)

    def set_key(self, user_id: str, key: str) -> User:
        """Store, sealed, what pushes to a user are authorised with; raises as `get`."""
        self.get(user_id)
        sealed = self.seal.seal(key)
        with self.tables.writing() as connection:
            return self._change(connection, user_id, {"subscription_key": sealed})

    def set_active(self, user_id: str, is_active: bool) -> User:
        """Deactivate a user, who then gets no more pushes, or let them come back. Raises
        `UserNotFound`."""
        with self.tables.writing() as connection:
            return self._change(connection, user_id, {"is_active": int(is_active)})

    def subscribe(self, user_id: str, author_id: str) -> None:
        """Subscribe a user to an author; to do it twice changes nothing. Raises
        `CannotSubscribeToSelf`, `UserNotFound`, and as `get`."""
        self.get(user_id)
        if user_id == author_id:
            raise CannotSubscribeToSelf("this is your own id; subscribe to another user")
        with self.tables.writing() as connection:
            self._read(connection, author_id)
            self.tables.execute(connection, _SUBSCRIBE, author_id, user_id, self.tables.now)

    def unsubscribe(self, user_id: str, author_id: str) -> None:
        """End a subscription, if there is one: a delivery that was not claimed before is skipped.
        Raises as `get`."""
        self.get(user_id)
        with self.tables.writing() as connection:
            self.tables.execute(connection, _UNSUBSCRIBE, author_id, user_id)

    def _change(self, connection: Any, user_id: str, columns: Mapping[str, Any]) -> User:
        sets = "".join(f"{name} = ?, " for name in columns)
        statement = f"UPDATE {{schema}}.publishing_users SET {sets}updated_at = ? WHERE id = ?"  # noqa: S608 - names of ours
        self.tables.execute(connection, statement, *columns.values(), self.tables.now, user_id)
        return self._read(connection, user_id)

    def _read(self, connection: Any, user_id: str) -> User:
        for row in self.tables.execute(connection, _BY_ID, user_id):
            return _user(row)
        raise UserNotFound(f"there is no user {user_id}")

    def _refuse_taken(self, connection: Any, user_id: str, columns: Mapping[str, Any]) -> None:
        # The unique columns are the law; that writers take turns here makes this their sentence.
        self.tables.take_turns(connection)
        email, name = columns.get("email_key", ""), columns.get("username", "")
        for (taken,) in self.tables.execute(connection, _TAKEN, email, name, user_id):
            if taken == email:
                raise EmailTaken("another user has this e-mail address; log in, or use another")
            raise UsernameTaken(f"another user is called {name}; choose another name")

    def _columns(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return what is stored of the values that a user has sent."""
        columns = dict(values)
        if "password" in columns:
            password = columns.pop("password")
            # Everybody may register, and has a user whose password changes as often as they like.
            with self.attempts.place():
                columns["password_hash"] = hash_password(password, shortest=SHORTEST_PASSWORD)
        if "email" in columns:
            columns["email_key"] = columns["email"].casefold()
        return columns

    @cached_property
    def seal(self) -> Seal:
        """What subscription keys are sealed with. Raises `BadInput`: SECRET_KEY is not set."""
        self._settings.must_have_secret()
        return Seal(self._settings.secret_key, "publishing subscription keys")


def _user(row: tuple[Any, ...]) -> User:
    *texts, is_active, has_key, created_at, updated_at, _ = row
    times = (rfc3339(to_datetime(at)) for at in (created_at, updated_at))
    values: Any = (*texts, bool(is_active), bool(has_key), *times)
    return User(*values)


def _active(user: User) -> User:
    if not user.is_active:
        raise InactiveUser("this user was deactivated; an operator can activate it again")
    return user
