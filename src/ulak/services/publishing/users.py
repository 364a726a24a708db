"""Users of the blog: their rows, whom they subscribe to, and the tokens of their logins."""

from __future__ import annotations

import base64
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from importlib.resources import files
from typing import Any, Final

import jwt

from ulak import Engine
from ulak.auth import Principal, hash_password, is_password
from ulak.errors import NotSupported, ServiceError, Unauthenticated
from ulak.kit.clock import SECOND, Clock, Instant, micros
from ulak.kit.ids import new_secret_id
from ulak.services.publishing.settings import PublishingSettings
from ulak.tables import Schema, Tables

BLOGGER: Final = "blogger"
SHORTEST_PASSWORD: Final = 6
SCHEMA: Final = Schema(
    "users",
    folder=files(__package__) / "sql" / "users",
    version_table="publishing_users_schema",
    why="a user, a subscription or a delivery is one commit",
)

_ALGORITHM: Final = "HS256"
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
    """Another user has this address."""

    code, status = "email_taken", 409


class UsernameTaken(ServiceError):
    """Another user has this name."""

    code, status = "username_taken", 409


class BadCredentials(ServiceError):
    """No user has this address with this password."""

    code, status = "bad_credentials", 401
    headers: Mapping[str, str] = {"WWW-Authenticate": "Bearer"}


class InactiveUser(ServiceError):
    """The user was deactivated."""

    code, status = "inactive_user", 403


class CannotSubscribeToSelf(ServiceError):
    """A user does not subscribe to their own posts."""

    code, status = "cannot_subscribe_to_self", 400


class UserNotFound(ServiceError):
    """There is no such user."""

    code, status = "not_found", 404


@dataclass(frozen=True, slots=True)
class User:
    """A user, without anything secret."""

    id: str
    email: str
    username: str
    bio: str | None
    image_url: str | None
    is_active: bool
    has_subscription_key: bool
    created_at: Instant
    updated_at: Instant


class Users:
    """Registers, reads and changes users and subscriptions, in the store of an engine."""

    def __init__(self, engine: Engine, settings: PublishingSettings) -> None:
        self.tables = Tables(engine, SCHEMA)
        self._settings = settings

    def register(self, values: Mapping[str, Any]) -> User:
        """Make a user from `email`, `username`, `password`, and perhaps `bio` and `image_url`.
        Raises `EmailTaken`, `UsernameTaken`, and `BadInput`: the password cannot be used."""
        columns = {"id": new_secret_id(), "is_active": 1, **_columns(values)}
        with self.tables.writing() as connection:
            self._refuse_taken(connection, columns["id"], columns)
            columns["created_at"] = columns["updated_at"] = self.tables.now
            names, marks = ", ".join(columns), ", ".join("?" * len(columns))
            statement = f"INSERT INTO {{schema}}.publishing_users ({names}) VALUES ({marks})"  # noqa: S608 - names of ours
            self.tables.execute(connection, statement, *columns.values())
            return _user(self.tables.execute(connection, _BY_ID, columns["id"]), columns["id"])

    def login(self, email: str, password: str) -> User:
        """Return the user of an address and a password. Raises `BadCredentials`, which takes as
        long for an address that nobody has, and `InactiveUser`."""
        found = self.tables.read(_BY_EMAIL, email.casefold())
        if not is_password(password, found[0][-1] if found else None):
            raise BadCredentials("no user has this e-mail address with this password")
        return _active(_user(found, email))

    def get(self, user_id: str) -> User:
        """Return an active user. Raises `Unauthenticated`: there is none, so that the token is of
        another system; `InactiveUser`."""
        found = self.tables.read(_BY_ID, user_id)
        if not found:
            raise Unauthenticated("the user of this token does not exist", reason="unknown")
        return _active(_user(found, user_id))

    def update(self, user_id: str, changes: Mapping[str, Any]) -> User:
        """Change what is among the changes, as `register` takes it; raises as `register` and
        `get`."""
        self.get(user_id)
        changes = _columns(changes)
        with self.tables.writing() as connection:
            self._refuse_taken(connection, user_id, changes)
            return self._change(connection, user_id, changes)

    def set_key(self, user_id: str, key: str) -> User:
        """Store, sealed, what pushes to a user are authorised with; raises as `get`."""
        self.get(user_id)
        sealed = self._cipher.encrypt(key.encode()).decode()
        with self.tables.writing() as connection:
            return self._change(connection, user_id, {"subscription_key": sealed})

    def set_active(self, user_id: str, is_active: bool) -> User:
        """Deactivate a user, who then gets no more pushes, or let them come back. Raises
        `UserNotFound`."""
        with self.tables.writing() as connection:
            return self._change(connection, user_id, {"is_active": int(is_active)})

    def open_key(self, sealed: str) -> str | None:
        """Return a subscription key as it was set; None when it was sealed under another
        SECRET_KEY."""
        from cryptography.fernet import InvalidToken

        try:
            return str(self._cipher.decrypt(sealed).decode())
        except InvalidToken:
            return None

    def subscribe(self, user_id: str, author_id: str) -> None:
        """Subscribe a user to an author; to do it twice changes nothing. Raises
        `CannotSubscribeToSelf`, `UserNotFound`, and as `get`."""
        self.get(user_id)
        if user_id == author_id:
            raise CannotSubscribeToSelf("this is your own id; subscribe to another user")
        with self.tables.writing() as connection:
            _user(self.tables.execute(connection, _BY_ID, author_id), author_id)
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
        return _user(self.tables.execute(connection, _BY_ID, user_id), user_id)

    def _refuse_taken(self, connection: Any, user_id: str, columns: Mapping[str, Any]) -> None:
        # The unique columns are the law; that writers take turns here makes this their sentence.
        self.tables.take_turns(connection)
        email, name = columns.get("email_key", ""), columns.get("username", "")
        for (taken,) in self.tables.execute(connection, _TAKEN, email, name, user_id):
            if taken == email:
                raise EmailTaken("another user has this e-mail address; log in, or use another")
            raise UsernameTaken(f"another user is called {name}; choose another name")

    @cached_property
    def _cipher(self) -> Any:
        self._settings.must_have_secret()
        try:
            from cryptography.fernet import Fernet
        except ImportError:
            raise NotSupported(
                "subscription keys are sealed with cryptography, which is not installed; "
                "pip install 'ulak[publishing]'"
            ) from None
        secret = self._settings.secret_key.encode()
        derived = hmac.digest(secret, b"publishing subscription keys", "sha256")
        return Fernet(base64.urlsafe_b64encode(derived))


class Logins:
    """Makes and checks the tokens of users: JWT with HS256 and nothing else.

    Args:
        secret: Signs them; the same in every process that checks them.
        lasts: How long one is good.
        clock: Tells the time that decides.
    """

    def __init__(self, secret: str, lasts: timedelta, clock: Clock) -> None:
        self._secret = secret
        self._lasts_us = micros(lasts)
        self._clock = clock

    def make(self, user: User) -> str:
        """Return a new token of a user."""
        now = self._clock.now()
        times = {"iat": now // SECOND, "exp": (now + self._lasts_us) // SECOND}
        claims = {"sub": user.email, "user_id": user.id, **times}
        return jwt.encode(claims, self._secret, algorithm=_ALGORITHM)

    def authenticate(self, credential: str) -> Principal:
        """Return the user of a token, by the id of the user. Raises `Unauthenticated`: it was not
        made with this secret, is no such token, or has expired."""
        # The clock of the store decides, not that of this machine.
        checks = {f"verify_{claim}": False for claim in ("exp", "iat", "nbf")}
        options: Any = {"require": ["sub", "user_id", "iat", "exp"], **checks}
        try:
            claims = jwt.decode(credential, self._secret, algorithms=[_ALGORITHM], options=options)
            user_id, expires_at = str(claims["user_id"]), int(claims["exp"]) * SECOND
        except (jwt.PyJWTError, TypeError, ValueError):
            raise Unauthenticated("this is no token of a user", reason="unknown") from None
        if expires_at <= self._clock.now():
            raise Unauthenticated("the login has expired; log in again", reason="expired")
        roles = frozenset({BLOGGER})
        return Principal(user_id, tenant=None, roles=roles, credential=f"user/{user_id}")

    def recall(self, credential: str) -> Principal | None:
        """Return the same at once, since nothing is read for it; None where `authenticate` says
        why not."""
        try:
            return self.authenticate(credential)
        except Unauthenticated:
            return None


def _columns(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is stored of the values that a user has sent."""
    columns = dict(values)
    if "password" in columns:
        password = columns.pop("password")
        columns["password_hash"] = hash_password(password, shortest=SHORTEST_PASSWORD)
    if "email" in columns:
        columns["email_key"] = columns["email"].casefold()
    return columns


def _user(found: list[tuple[Any, ...]], which: str) -> User:
    if not found:
        raise UserNotFound(f"there is no user {which}")
    row = found[0]
    return User(*row[:5], bool(row[5]), bool(row[6]), *row[7:9])


def _active(user: User) -> User:
    if not user.is_active:
        raise InactiveUser("this user was deactivated; an operator can activate it again")
    return user
