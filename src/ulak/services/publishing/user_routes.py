"""The routes of users: registration, login, their own data, and whom they subscribe to."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Response
from fastapi.responses import JSONResponse
from pydantic import StringConstraints

from ulak.kit.bodies import Body, describe_body, strict_body
from ulak.kit.clock import rfc3339, to_datetime
from ulak.services.publishing.bodies import Said, Storable, said
from ulak.services.publishing.users import SHORTEST_PASSWORD, Logins, User, Users
from ulak.web import KNOWN, PUBLIC, Access, Caller, SlashRoute, guarded_router

USERS: Final = "/api/users"
LOGIN: Final = f"{USERS}/login"
MINE: Final = ("/api/user", f"{USERS}/me")
KEY: Final = f"{USERS}/me/subscription-key"
SUBSCRIBE: Final = f"{USERS}/subscribe"
SUBSCRIPTION: Final = f"{SUBSCRIBE}/{{target_user_id}}"
A_USER: Final = {"email": "ada@example.com", "username": "ada", "password": "a-password-of-hers"}
A_KEY: Final = {"subscription_key": "a-key-of-the-push-service"}

Email = Annotated[
    str, StringConstraints(max_length=254, pattern=r"^[^@\s]+@[^@\s]+\.[^@\s]+$"), Storable
]
Username = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9]{3,50}$")]
Password = Annotated[str, StringConstraints(min_length=SHORTEST_PASSWORD, max_length=100), Storable]
About = Annotated[str, StringConstraints(max_length=500), Storable]
Id = Annotated[str, Path(max_length=100), Storable]


class NewUser(Body):
    """A user as they register."""

    email: Email
    username: Username
    password: Password
    bio: About | None = None
    image_url: About | None = None


class EditedUser(Body):
    """What is to be different in a user; what is left out stays."""

    email: Email = ""
    username: Username = ""
    password: Password = ""
    bio: About | None = None
    image_url: About | None = None


class Credentials(Body):
    """Who logs in."""

    email: Annotated[str, StringConstraints(max_length=254), Storable]
    password: Annotated[str, StringConstraints(max_length=1000), Storable]


class SubscriptionKey(Body):
    """What pushes to the caller are authorised with; it becomes a header."""

    subscription_key: Annotated[str, StringConstraints(pattern=r"^[!-~]{10,255}$")]


class Target(Body):
    """To whom the caller subscribes."""

    target_user_id: Annotated[str, StringConstraints(max_length=100), Storable]


def make_users(users: Users, logins: Logins) -> tuple[APIRouter, list[Access]]:
    """Make the routes, each with the line that says who may call it."""
    router = guarded_router(route_class=SlashRoute)

    @router.post(
        USERS, status_code=201, response_model=Said, openapi_extra=describe_body(NewUser, A_USER)
    )
    def register(body: Annotated[NewUser, strict_body(NewUser)]) -> Response:
        """Register a user."""
        user = users.register(body.model_dump(exclude_unset=True))
        return said("the user was registered", {"user": show_user(user)}, 201)

    @router.post(LOGIN, response_model=Said, openapi_extra=describe_body(Credentials))
    def login(body: Annotated[Credentials, strict_body(Credentials)]) -> Response:
        """Log in, and get a token for the other routes."""
        user = users.login(body.email, body.password)
        token = {"access_token": logins.make(user), "token_type": "bearer"}
        data = {"user": show_user(user), **token}
        # Clients of OAuth look for the token at the top.
        return JSONResponse({"success": True, "message": "logged in", "data": data, **token})

    def read(principal: Caller) -> Response:
        """Read your own data."""
        return said("this is you", {"user": show_user(users.get(principal.name))})

    def edit(principal: Caller, body: Annotated[EditedUser, strict_body(EditedUser)]) -> Response:
        """Change your own data."""
        user = users.update(principal.name, body.model_dump(exclude_unset=True))
        return said("the user was changed", {"user": show_user(user)})

    for path in MINE:
        router.get(path, response_model=Said)(read)
        router.put(path, response_model=Said, openapi_extra=describe_body(EditedUser))(edit)

    @router.put(KEY, response_model=Said, openapi_extra=describe_body(SubscriptionKey, A_KEY))
    def set_key(
        principal: Caller, body: Annotated[SubscriptionKey, strict_body(SubscriptionKey)]
    ) -> Response:
        """Set the key by which the push service knows you."""
        user = users.set_key(principal.name, body.subscription_key)
        return said("the subscription key was set", {"user": show_user(user)})

    @router.post(SUBSCRIBE, status_code=204, openapi_extra=describe_body(Target))
    def subscribe(principal: Caller, body: Annotated[Target, strict_body(Target)]) -> None:
        """Subscribe to the posts of another user."""
        users.subscribe(principal.name, body.target_user_id)

    @router.delete(SUBSCRIPTION, status_code=204)
    def unsubscribe(principal: Caller, target_user_id: Id) -> None:
        """End a subscription."""
        users.unsubscribe(principal.name, target_user_id)

    of_users: Any = {"authenticate": logins, "schemes": ("Bearer",)}
    known = [("PUT", KEY), ("POST", SUBSCRIBE), ("DELETE", SUBSCRIPTION)]
    known += [(method, path) for path in MINE for method in ("GET", "PUT")]
    access = [Access("POST", path, PUBLIC) for path in (USERS, LOGIN)]
    return router, access + [Access(*line, KNOWN, **of_users) for line in known]


def show_user(user: User) -> dict[str, Any]:
    """Return a user as they see themselves; the subscription key is not shown again."""
    times = {
        name: rfc3339(to_datetime(getattr(user, name))) for name in ("created_at", "updated_at")
    }
    names = ("id", "email", "username", "bio", "image_url", "is_active", "has_subscription_key")
    return {name: getattr(user, name) for name in names} | times
