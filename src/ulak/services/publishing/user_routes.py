"""The routes of users: registration, login, their own data, and whom they subscribe to."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Response
from fastapi.responses import JSONResponse
from pydantic import StringConstraints

from ulak.kit.bodies import Body, describe_body, strict_body
from ulak.kit.logins import Logins
from ulak.services.publishing.bodies import Storable, make_table, said
from ulak.services.publishing.users import SHORTEST_PASSWORD, User, Users
from ulak.web import KNOWN, PUBLIC, Access, Caller, SlashRoute

USERS: Final = "/api/users"
MINE: Final = ("/api/user", f"{USERS}/me")
SUBSCRIBE: Final = f"{USERS}/subscribe"
SUBSCRIPTION: Final = f"{SUBSCRIBE}/{{target_user_id}}"
A_LOGIN: Final = {"email": "ada@example.com", "password": "a-password-of-hers"}
A_USER: Final = {"username": "ada", **A_LOGIN}
AN_EDIT: Final = {"bio": "It counts."}
A_KEY: Final = {"subscription_key": "a-key-of-the-push-service"}

Email = Annotated[
    str, StringConstraints(max_length=254, pattern=r"^[^@\s]+@[^@\s]+\.[^@\s]+$"), Storable
]
Username = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9]{3,50}$")]
Password = Annotated[str, StringConstraints(min_length=SHORTEST_PASSWORD, max_length=100), Storable]
About = Annotated[str, StringConstraints(max_length=500), Storable]
Word = Annotated[str, StringConstraints(max_length=1000), Storable]
# It becomes a header.
Key = Annotated[str, StringConstraints(pattern=r"^[!-~]{10,255}$")]


class EditedUser(Body):
    """What is to be different in a user; what is left out stays."""

    email: Email = ""
    username: Username = ""
    password: Password = ""
    bio: About | None = None
    image_url: About | None = None


class NewUser(EditedUser):
    """A user as they register."""

    email: Email
    username: Username
    password: Password


class Credentials(Body):
    """Who logs in."""

    email: Word
    password: Word


class SubscriptionKey(Body):
    """What pushes to the caller are authorised with."""

    subscription_key: Key


class Target(Body):
    """To whom the caller subscribes."""

    target_user_id: Word


def make_users(users: Users, logins: Logins) -> tuple[APIRouter, list[Access]]:
    """Make the routes, each with its line of access."""
    route = make_table(SlashRoute, logins, "Bearer")
    # A token that has expired is no hindrance to a new login.
    public = make_table(SlashRoute, None, "Bearer")
    public.router = route.router

    @public("POST", USERS, PUBLIC, status=201, **describe_body(NewUser, A_USER))
    def register(sent: Annotated[NewUser, strict_body(NewUser)]) -> Response:
        """Register a user."""
        return _said("registered", users.register(sent.model_dump(exclude_unset=True)), 201)

    @public("POST", f"{USERS}/login", PUBLIC, **describe_body(Credentials, A_LOGIN))
    def login(sent: Annotated[Credentials, strict_body(Credentials)]) -> Response:
        """Log in, and get a token for the other routes."""
        user = users.login(sent.email, sent.password)
        token = {"access_token": logins.make(user.id, user.email), "token_type": "bearer"}
        data = {"user": asdict(user), **token}
        # Clients of OAuth look for the token at the top.
        return JSONResponse({"success": True, "message": "logged in", "data": data, **token})

    def read(principal: Caller) -> Response:
        """Read your own data."""
        return _said("this is you", users.get(principal.name))

    def edit(principal: Caller, sent: Annotated[EditedUser, strict_body(EditedUser)]) -> Response:
        """Change your own data."""
        changes = sent.model_dump(exclude_unset=True)
        return _said("your data was changed", users.update(principal.name, changes))

    for path in MINE:
        route("GET", path, KNOWN)(read)
        route("PUT", path, KNOWN, **describe_body(EditedUser, AN_EDIT))(edit)

    @route("PUT", f"{MINE[1]}/subscription-key", KNOWN, **describe_body(SubscriptionKey, A_KEY))
    def set_key(
        principal: Caller, sent: Annotated[SubscriptionKey, strict_body(SubscriptionKey)]
    ) -> Response:
        """Set the key by which the push service knows you. It is not shown again."""
        return _said("the key was set", users.set_key(principal.name, sent.subscription_key))

    @route.router.post(SUBSCRIBE, status_code=204, openapi_extra=describe_body(Target))
    def subscribe(principal: Caller, sent: Annotated[Target, strict_body(Target)]) -> None:
        """Subscribe to the posts of another user."""
        users.subscribe(principal.name, sent.target_user_id)

    @route.router.delete(SUBSCRIPTION, status_code=204)
    def unsubscribe(
        principal: Caller, target_user_id: Annotated[str, Path(max_length=100), Storable]
    ) -> None:
        """End a subscription."""
        users.unsubscribe(principal.name, target_user_id)

    bearer: Any = {"authenticate": logins, "schemes": ("Bearer",)}
    without_body = [("POST", SUBSCRIBE), ("DELETE", SUBSCRIPTION)]
    of_them = [Access(*line, KNOWN, **bearer) for line in without_body]
    return route.router, [*public.access, *route.access, *of_them]


def _said(message: str, user: User, status: int = 200) -> Response:
    return said(message, {"user": user}, status)
