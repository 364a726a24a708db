"""Passwords of documents while their jobs wait: sealed by the API, opened by the worker.

A seal is bound to everything else that its job was asked for, and follows from it: the same request
has the same seal, and so the same job key, while nobody without the secret learns the password from
either, nor whether two other documents have the same one. That is what AES-SIV (RFC 5297) is for.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from ulak.errors import BadInput, NotSupported
from ulak.services.pdf.flow import compute_job_key
from ulak.services.pdf.model import PdfErrorCode, PermanentPdfError
from ulak.services.pdf.output import OutputOptions, read_output

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESSIV

    from ulak import Engine
    from ulak.settings import Settings

PURPOSES: Final = ("pdf passwords, first half", "pdf passwords, second half")
"""What the halves of the key are derived for: `identity.derive(purpose)`."""
KEY_BYTES: Final = 64
SEALED: Final = "sealed"
"""The member of a stored password that has the seal."""
# More than two passwords of the longest can need as JSON: the length of a seal tells nothing.
_PLAIN_BYTES: Final = 640


class Sealing:
    """Seals and opens passwords.

    Args:
        key: Of 64 bytes, the same for the API and its workers.

    Raises:
        BadInput: the key has another length.
        NotSupported: cryptography is not installed, or its OpenSSL is too old.
    """

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise BadInput(f"the key of passwords has {len(key)} bytes; {KEY_BYTES} are needed")
        self._cipher = _cipher(key)
        self._key = key

    def seal(
        self, template_name: str, payload: Mapping[str, Any], passwords: Mapping[str, str]
    ) -> dict[str, Any]:
        """Return a job's payload with the passwords in it, sealed to all the rest of it.

        Args:
            template_name: Of the job.
            payload: What its key is made of, `options.output.password` without any secret.
            passwords: By what they are for.
        """
        plain = json.dumps(dict(passwords), ensure_ascii=False).encode().ljust(_PLAIN_BYTES)
        sealed = self._cipher.encrypt(plain, [_bound(template_name, payload)])
        return _with_seal(payload, base64.b64encode(sealed).decode("ascii"))

    def open(self, template_name: str, payload: Mapping[str, Any]) -> dict[str, str]:
        """Return the passwords of a job's payload.

        Raises:
            PermanentPdfError: UNKNOWN: there is no seal, it is another document's, or it was made
                with another secret.
        """
        from cryptography.exceptions import InvalidTag

        seal = payload["options"]["output"]["password"].get(SEALED)
        try:
            sealed = base64.b64decode(seal, validate=True)
            bare = _with_seal(payload, None)
            passwords = json.loads(self._cipher.decrypt(sealed, [_bound(template_name, bare)]))
        except (binascii.Error, InvalidTag, TypeError, ValueError):
            raise _unopened("it was sealed with another secret, or for another document") from None
        return {str(name): str(text) for name, text in passwords.items()}

    def mask(self, digest: str) -> str:
        """Return a digest of a digest that nobody can make without the key."""
        return hmac.digest(self._key, b"mask " + digest.encode(), "sha256").hex()


def sealing_of(engine: Engine, settings: Settings) -> Sealing:
    """Make what seals in the processes that have these settings.

    Raises:
        BadInput: there is no secret.
        NotSupported: cryptography is not installed.
    """
    from ulak import wiring

    identity = wiring.identity_of(engine, settings)
    return Sealing(b"".join(map(identity.derive, PURPOSES)))


def read_stored(
    template_name: str, payload: Mapping[str, Any], sealing: Callable[[], Sealing] | None
) -> OutputOptions:
    """Read the output options of a job's payload, its passwords opened.

    Raises:
        BadOutput: naming every field that cannot be used.
        PermanentPdfError: UNKNOWN: there are passwords, and this process cannot open them; the
            message says what it lacks.
    """
    said = dict(payload["options"]["output"])
    if "password" in said:
        opened = _opening(sealing).open(template_name, payload)
        kept = {name: value for name, value in said["password"].items() if name != SEALED}
        said["password"] = {**kept, **{name: text for name, text in opened.items() if text}}
    return read_output(said)


def _opening(make: Callable[[], Sealing] | None) -> Sealing:
    if make is None:
        raise _unopened("this worker has no secret")
    try:
        return make()
    except (BadInput, NotSupported) as error:
        raise _unopened(str(error)) from None


def _bound(template_name: str, payload: Mapping[str, Any]) -> bytes:
    return compute_job_key(template_name, payload).encode("ascii")


def _with_seal(payload: Mapping[str, Any], seal: str | None) -> dict[str, Any]:
    options = payload["options"]
    output = options["output"]
    password = {name: value for name, value in output["password"].items() if name != SEALED}
    if seal is not None:
        password[SEALED] = seal
    return {**payload, "options": {**options, "output": {**output, "password": password}}}


def _unopened(why: str) -> PermanentPdfError:
    return PermanentPdfError(
        f"the password of the document cannot be read: {why}",
        code=PdfErrorCode.UNKNOWN,
        detail="password_sealed",
    )


def _cipher(key: bytes) -> AESSIV:
    lacks = "passwords need cryptography, with an OpenSSL that has AES-SIV"
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.ciphers.aead import AESSIV
    except ImportError:
        raise NotSupported(f"{lacks}; pip install 'ulak[encryption]'") from None
    try:
        return AESSIV(key)
    except UnsupportedAlgorithm:
        raise NotSupported(f"{lacks}; install one that is newer") from None
