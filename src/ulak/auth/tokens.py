"""Tokens: what a login is worth until it expires. JWT with HS256, and nothing else.

A token names the credential that it was made by, and its version: whoever reads it compares both
with what is stored, so a token ends with its credential.
"""

from __future__ import annotations

import hmac
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Final

from ulak.auth.kept import kept_secrets
from ulak.auth.principal import Principal
from ulak.clock import SECOND, Instant
from ulak.errors import BadInput, NotSupported, Unauthenticated

if TYPE_CHECKING:
    from types import ModuleType


SHORTEST_SECRET: Final = 32
"""How many characters the secret has at least that tokens are signed with."""

_ALGORITHM = "HS256"
_ISSUER = "ulak"
# How every JWT begins: the first letters of {"... in base64.
_BEGINNING = "eyJ"


@dataclass(frozen=True, slots=True)
class Claims:
    """What a token says."""

    principal: Principal
    _: KW_ONLY
    kind: str
    id: str
    version: int
    issued_at: Instant
    expires_at: Instant


class Tokens:
    """Makes and reads the tokens of one secret. Raises `BadInput`: the secret is too short."""

    def __init__(self, secret: str) -> None:
        if len(secret) < SHORTEST_SECRET:
            raise BadInput(
                f"the secret of tokens has {len(secret)} characters; {SHORTEST_SECRET} or more "
                "are needed"
            )
        self._secret = secret.encode("utf-8", "surrogatepass")

    def derive(self, purpose: str) -> bytes:
        """Return a secret for another purpose, from which nobody learns this one."""
        return hmac.digest(self._secret, f"ulak {purpose}".encode(), "sha256")

    def make(self, claims: Claims) -> str:
        """Write and sign a token; times are cut to whole seconds."""
        who = claims.principal
        return str(
            _jwt().encode(
                {
                    "iss": _ISSUER,
                    "sub": who.name,
                    "tenant": who.tenant,
                    "roles": sorted(who.roles),
                    "scopes": sorted(who.scopes),
                    "credential": {
                        "kind": claims.kind, "id": claims.id, "version": claims.version
                    },
                    "iat": claims.issued_at // SECOND,
                    "exp": claims.expires_at // SECOND,
                },
                self._secret,
                algorithm=_ALGORITHM,
            )
        )  # fmt: skip

    def read(self, text: str, now: Instant) -> Claims:
        """Return what a token says. Raises `Unauthenticated`: it is not whole, not ours, or has
        expired by `now`."""
        jwt = _jwt()
        try:
            # Times are compared with the store's clock below, not with this machine's.
            said = jwt.decode(
                text, self._secret, algorithms=[_ALGORITHM], issuer=_ISSUER,
                options={"verify_exp": False, "verify_iat": False, "verify_nbf": False},
            )  # fmt: skip
            credential = said["credential"]
            kind, id = str(credential["kind"]), str(credential["id"])
            principal = Principal(
                str(said["sub"]), tenant=said["tenant"], roles=frozenset(said["roles"]),
                scopes=frozenset(said["scopes"]), credential=f"{kind}/{id}",
            )  # fmt: skip
            claims = Claims(
                principal, kind=kind, id=id, version=int(credential["version"]),
                issued_at=int(said["iat"]) * SECOND, expires_at=int(said["exp"]) * SECOND,
            )  # fmt: skip
        except (jwt.InvalidSignatureError, jwt.InvalidIssuerError):
            raise Unauthenticated(
                "this token was not made here, or with another secret", reason="unknown"
            ) from None
        except (jwt.PyJWTError, KeyError, TypeError, ValueError):
            raise Unauthenticated("this is no token of ulak", reason="malformed") from None
        if claims.expires_at <= now:
            raise Unauthenticated("the login has expired; log in again", reason="expired")
        return claims


def is_token(credential: str) -> bool:
    return credential.startswith(_BEGINNING) and credential.count(".") == 2


def _jwt() -> ModuleType:
    try:
        import jwt
    except ImportError as error:
        raise NotSupported(
            f"tokens need PyJWT, which is not installed ({error}); pip install 'ulak[web]'"
        ) from None
    return jwt


SECRETS_FILE: Final = "secrets.json"


def kept_secret(folder: Path) -> str:
    """Return the secret that is kept in a folder; make both, if they are not there. Raises
    `BadInput` as `kept_secrets`."""
    kept = kept_secrets(
        folder / SECRETS_FILE, lambda: {"secret": token_hex(SHORTEST_SECRET)},
        what="the secret of tokens", instead="ULAK_SECRET",
    )  # fmt: skip
    return kept["secret"]
