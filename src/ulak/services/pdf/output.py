"""Output options of a request: what is done to a document once it is printed, and how passwords
are sealed while a job waits.

Which options a caller may use is said by `options` of a template's manifest.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ulak.errors import BadInput, NotSupported
from ulak.services.pdf.flow import compute_job_key
from ulak.services.pdf.model import (
    BadOptions,
    PdfErrorCode,
    PermanentPdfError,
    not_allowed,
    read_text,
)

if TYPE_CHECKING:
    from ulak import Engine
    from ulak.settings import Settings

RELATIONSHIPS: Final = ("Data", "Source", "Alternative", "Supplement", "Unspecified")
"""How an attachment belongs to the document (ISO 32000-2, table 43)."""
PERMISSIONS: Final = ("annotate", "assemble", "copy", "fill", "modify", "print")
LONGEST_WATERMARK: Final = 60
"""Characters: more could not be read across a page."""
MOST_KEYWORDS: Final = 50
MOST_APPENDED: Final = 20
MOST_ATTACHMENTS: Final = 20
LONGEST_NAME: Final = 120
"""Characters of an attachment's name: with its bytes, less than any file system takes."""
LONGEST_PASSWORD: Final = 127
"""Bytes of UTF-8: what AES-256 of PDF 2.0 takes, the rest would be cut in silence."""

Wrong = list[tuple[str, str]]
"""Fields, and for each why it cannot be used."""

_LANGUAGE: Final = re.compile(r"[A-Za-z]{2,3}(?:-[A-Za-z0-9]{2,8}){0,4}", re.ASCII)
_MEDIA_TYPE: Final = re.compile(r"[A-Za-z0-9][\w!#$&^.+-]{0,63}/[A-Za-z0-9][\w!#$&^.+-]{0,63}")
_COLOUR: Final = re.compile(r"#[0-9A-Fa-f]{6}")
NAMES: Final = ("metadata", "watermark", "append", "attachments", "password")
PURPOSES: Final = ("pdf passwords, first half", "pdf passwords, second half")
"""What the halves of the key are derived for: `identity.derive(purpose)`."""
KEY_BYTES: Final = 64
SEALED: Final = "sealed"
"""The member of a stored password that has the seal."""
# More than two passwords of the longest can need as JSON: the length of a seal tells nothing.
_PLAIN_BYTES: Final = 640


@dataclass(frozen=True, slots=True)
class Metadata:
    """What a document says about itself; '' leaves it as its HTML has it."""

    title: str = ""
    author: str = ""
    subject: str = ""
    keywords: tuple[str, ...] = ()
    language: str = ""


@dataclass(frozen=True, slots=True)
class Watermark:
    """A text across every page."""

    text: str = field(repr=False)
    opacity: float = 0.15
    angle: float = 45.0
    """Degrees; positive ones rise from left to right."""
    colour: str = "#000000"


@dataclass(frozen=True, slots=True)
class Appended:
    """A document that follows."""

    template_name: str
    variables: Mapping[str, Any] = field(repr=False)
    template_version: str = ""
    """The digest of its template's files when the job was made; '' where nobody has looked."""


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file inside of the PDF."""

    name: str
    media_type: str
    data: bytes = field(repr=False)
    relationship: str = "Unspecified"
    description: str = ""


@dataclass(frozen=True, slots=True)
class Password:
    """What opens a document (`user`), and what opens it with every right (`owner`)."""

    user: str = field(default="", repr=False)
    owner: str = field(default="", repr=False)
    allow: tuple[str, ...] = PERMISSIONS


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """What a request wants done to the printed document."""

    metadata: Metadata = Metadata()
    watermark: Watermark | None = None
    append: tuple[Appended, ...] = ()
    attachments: tuple[Attachment, ...] = ()
    password: Password | None = None


NOTHING_MORE: Final = OutputOptions()


class BadOutput(BadOptions):
    """Output options cannot be used."""

    part = "output"


def as_json(output: OutputOptions) -> dict[str, Any]:
    """Return what is said, as JSON that `read_output` reads: what is part of a job's key.

    Of a password only what it allows: the secret itself is never written down unsealed.
    """
    said: dict[str, Any] = {}
    if output.metadata != Metadata():
        said["metadata"] = {name: value for name, value in asdict(output.metadata).items() if value}
    if output.watermark is not None:
        said["watermark"] = asdict(output.watermark)
    if output.append:
        said["append"] = [asdict(one) for one in output.append]
    if output.attachments:
        said["attachments"] = [_attachment_as_json(one) for one in output.attachments]
    if output.password is not None:
        said["password"] = {"allow": list(output.password.allow)}
    return said


def _attachment_as_json(attachment: Attachment) -> dict[str, Any]:
    said = asdict(attachment) | {"data": base64.b64encode(attachment.data).decode("ascii")}
    return {name: value for name, value in said.items() if value or name != "description"}


def judge_output(output: OutputOptions, allowed: tuple[str, ...]) -> None:
    """Refuse what a template does not let its callers have done. Raises BadOutput: naming every
    option that may not be used."""
    refusal = not_allowed(allowed, NAMES)
    wrong = [(name, refusal) for name in as_json(output) if name not in allowed]
    if wrong:
        raise BadOutput(wrong)


def read_output(said: Mapping[str, Any]) -> OutputOptions:
    """Read output options as a request has them. Raises BadOutput: naming every field that is
    unknown or cannot be used."""
    wrong: Wrong = []
    found: dict[str, Any] = {}
    for name, value in said.items():
        if name in _READERS:
            found[name] = _READERS[name](name, value, wrong)
        else:
            wrong.append((name, "there is no such option"))
    if wrong:
        raise BadOutput(wrong)
    return OutputOptions(**found)


def _read_object(kind: type[Any], place: str, said: Any, wrong: Wrong) -> Any:
    """Read an object field by field, and note what is wrong with it; None when something is."""
    if not isinstance(said, Mapping):
        wrong.append((place, "write an object"))
        return None
    found: dict[str, Any] = {}
    so_far, readers = len(wrong), _FIELDS[kind]
    for name, value in said.items():
        if name not in readers:
            shown = str(name)[:100] if str(name).isidentifier() else "a field"
            wrong.append((f"{place}.{shown}", "there is no such field"))
        elif value is not None:
            try:
                found[name] = readers[name](value)
            except ValueError as error:
                wrong.append((f"{place}.{name}", str(error)))
    needed = [one.name for one in fields(kind) if one.default is MISSING]
    wrong += [(f"{place}.{name}", "it is missing") for name in needed if said.get(name) is None]
    return kind(**found) if len(wrong) == so_far else None


def _read_list(
    kind: type[Any], most: int, what: str, place: str, said: Any, wrong: Wrong
) -> tuple[Any, ...]:
    if not isinstance(said, list | tuple) or not 1 <= len(said) <= most:
        wrong.append((place, f"write a list of 1 to {most} {what}"))
        return ()
    return tuple(_read_object(kind, f"{place}.{n}", one, wrong) for n, one in enumerate(said))


def _metadata(place: str, said: Any, wrong: Wrong) -> Metadata | None:
    if said == {}:
        wrong.append((place, "say at least one of title, author, subject, keywords, language"))
    found: Metadata | None = _read_object(Metadata, place, said, wrong)
    return found


def _attachments(place: str, said: Any, wrong: Wrong) -> tuple[Attachment | None, ...]:
    found = _read_list(Attachment, MOST_ATTACHMENTS, "files", place, said, wrong)
    # Whoever unpacks them may do so where capitals make no difference.
    names = [None if one is None else one.name.casefold() for one in found]
    for number, name in enumerate(names):
        if name is not None and name in names[:number]:
            wrong.append((f"{place}.{number}.name", "two attachments have this name"))
    return found


def _password(place: str, said: Any, wrong: Wrong) -> Password | None:
    found: Password | None = _read_object(Password, place, said, wrong)
    if isinstance(said, Mapping) and not said.get("user") and not said.get("owner"):
        wrong.append((place, "say user, owner or both"))
    elif found is not None and found.user == found.owner:
        wrong.append((f"{place}.owner", "it is the user's too, who would have every right"))
    return found


def _short_text(said: Any) -> str:
    text = read_text(said)
    if len(text) > LONGEST_WATERMARK:
        raise ValueError(f"it has more than {LONGEST_WATERMARK} characters")
    return text


def _keywords(said: Any) -> tuple[str, ...]:
    if not isinstance(said, list | tuple) or len(said) > MOST_KEYWORDS:
        raise ValueError(f"write a list of up to {MOST_KEYWORDS} texts")
    found = tuple(dict.fromkeys(map(read_text, said)))
    if any("," in one or ";" in one for one in found):
        # They stand in one text with commas between them.
        raise ValueError("a keyword has no comma and no semicolon")
    return found


def _language(said: Any) -> str:
    text = read_text(said)
    if not _LANGUAGE.fullmatch(text):
        raise ValueError("write a language as tr or en-GB")
    return text


def _like(pattern: re.Pattern[str], advice: str) -> Callable[[Any], str]:
    def read(said: Any) -> str:
        if not isinstance(said, str) or not pattern.fullmatch(said):
            raise ValueError(advice)
        return said.lower()

    return read


def _within(lowest: float, highest: float) -> Callable[[Any], float]:
    def read(said: Any) -> float:
        is_number = isinstance(said, int | float) and not isinstance(said, bool)
        if not is_number or not lowest <= said <= highest:
            raise ValueError(f"write a number from {lowest} to {highest}")
        return float(said)

    return read


def _object(said: Any) -> Mapping[str, Any]:
    if not isinstance(said, Mapping):
        raise ValueError("write an object")
    return said


def _file_name(said: Any) -> str:
    text = read_text(said)
    if len(text) > LONGEST_NAME or len(text.encode("utf-8", "replace")) > 2 * LONGEST_NAME:
        raise ValueError(f"it has more than {LONGEST_NAME} characters")
    if text.startswith(".") or any(sign in text for sign in '/\\:*?"<>|'):
        raise ValueError("a file's name begins with no dot and holds none of / \\ : * ? \" < > |")
    return text


def _bytes(said: Any) -> bytes:
    try:
        if not isinstance(said, str):
            raise ValueError
        return base64.b64decode(said, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("write the bytes in base64") from None


def _relationship(said: Any) -> str:
    if said not in RELATIONSHIPS:
        raise ValueError(f"write one of {', '.join(RELATIONSHIPS)}")
    return str(said)


def _permissions(said: Any) -> tuple[str, ...]:
    if not isinstance(said, list | tuple) or any(one not in PERMISSIONS for one in said):
        raise ValueError(f"write a list of what is allowed: {', '.join(PERMISSIONS)}")
    return tuple(sorted(set(said)))


def _secret(said: Any) -> str:
    # Readers normalise what is typed (SASLprep); what that changes could never be typed again.
    is_text = isinstance(said, str) and said.isprintable()
    if not is_text or unicodedata.normalize("NFKC", said) != said:
        raise ValueError("write a text of characters that can be typed")
    if not 1 <= len(said.encode("utf-8", "surrogatepass")) <= LONGEST_PASSWORD:
        raise ValueError(f"write 1 to {LONGEST_PASSWORD} bytes")
    return str(said)


_FIELDS: Final[Mapping[type[Any], Mapping[str, Callable[[Any], Any]]]] = {
    Metadata: {
        "title": read_text, "author": read_text, "subject": read_text, "keywords": _keywords,
        "language": _language,
    },
    Watermark: {
        "text": _short_text, "opacity": _within(0.01, 1), "angle": _within(-90, 90),
        "colour": _like(_COLOUR, "write a colour as #aa0000"),
    },
    Appended: {"template_name": read_text, "variables": _object, "template_version": str},
    Attachment: {
        "name": _file_name, "data": _bytes,
        "media_type": _like(_MEDIA_TYPE, "write a media type as application/xml"),
        "relationship": _relationship, "description": read_text,
    },
    Password: {"user": _secret, "owner": _secret, "allow": _permissions},
}  # fmt: skip
_READERS: Final[Mapping[str, Callable[[str, Any, Wrong], Any]]] = {
    "metadata": _metadata,
    "watermark": partial(_read_object, Watermark),
    "append": partial(_read_list, Appended, MOST_APPENDED, "documents"),
    "attachments": _attachments,
    "password": _password,
}


class Sealing:
    """Seals and opens passwords by a key of 64 bytes, the same for the API and its workers.

    A seal is bound to everything else that its job was asked for, and follows from it: the same
    request has the same seal and job key, while nobody without the key learns the password, nor
    whether two documents have the same one. That is what AES-SIV (RFC 5297) is for.

    Raises:
        BadInput: the key has another length.
        NotSupported: cryptography is not installed, or its OpenSSL is too old.
    """

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise BadInput(f"the key of passwords has {len(key)} bytes; {KEY_BYTES} are needed")
        lacks = "passwords need cryptography, with an OpenSSL that has AES-SIV"
        try:
            from cryptography.exceptions import UnsupportedAlgorithm
            from cryptography.hazmat.primitives.ciphers.aead import AESSIV
        except ImportError:
            raise NotSupported(f"{lacks}; pip install 'ulak[encryption]'") from None
        try:
            self._cipher = AESSIV(key)
        except UnsupportedAlgorithm:
            raise NotSupported(f"{lacks}; install one that is newer") from None
        self._key = key

    def seal(
        self, template_name: str, payload: Mapping[str, Any], passwords: Mapping[str, str]
    ) -> dict[str, Any]:
        """Return a job's payload with the passwords in it, sealed to all the rest of it: to
        `options.output.password` without any secret too."""
        plain = json.dumps(dict(passwords), ensure_ascii=False).encode().ljust(_PLAIN_BYTES)
        sealed = self._cipher.encrypt(plain, [compute_job_key(template_name, payload).encode()])
        return _with_seal(payload, base64.b64encode(sealed).decode("ascii"))

    def open(self, template_name: str, payload: Mapping[str, Any]) -> dict[str, str]:
        """Return the passwords of a job's payload. Raises PermanentPdfError: UNKNOWN: there is no
        seal, it is another document's, or it was made with another secret."""
        from cryptography.exceptions import InvalidTag

        seal = payload["options"]["output"]["password"].get(SEALED)
        try:
            sealed = base64.b64decode(seal, validate=True)
            bound = compute_job_key(template_name, _with_seal(payload, None)).encode()
            passwords = json.loads(self._cipher.decrypt(sealed, [bound]))
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
        PermanentPdfError: UNKNOWN: there are passwords, and this process cannot open them.
    """
    said = dict(payload["options"]["output"])
    if "password" in said:
        try:
            if sealing is None:
                raise NotSupported("this worker has no secret")
            opener = sealing()
        except (BadInput, NotSupported) as error:
            raise _unopened(str(error)) from None
        opened = opener.open(template_name, payload)
        kept = {name: value for name, value in said["password"].items() if name != SEALED}
        said["password"] = {**kept, **{name: text for name, text in opened.items() if text}}
    return read_output(said)


def _with_seal(payload: Mapping[str, Any], seal: str | None) -> dict[str, Any]:
    options = payload["options"]
    output = options["output"]
    password = {name: value for name, value in output["password"].items() if name != SEALED}
    if seal is not None:
        password[SEALED] = seal
    return {**payload, "options": {**options, "output": {**output, "password": password}}}


def _unopened(why: str) -> PermanentPdfError:
    message = f"the password of the document cannot be read: {why}"
    return PermanentPdfError(message, code=PdfErrorCode.UNKNOWN, detail="password_sealed")
