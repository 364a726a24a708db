"""Output options: what is done to a document once it is printed.

Which of them a caller may use is the template's to say (`options` of its manifest), as with page
options.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ulak.services.pdf.options import BadOptions, not_allowed

RELATIONSHIPS: Final = ("Data", "Source", "Alternative", "Supplement", "Unspecified")
"""How an attachment belongs to the document (ISO 32000-2, table 43)."""
PERMISSIONS: Final = ("annotate", "assemble", "copy", "fill", "modify", "print")
"""What whoever opens a document with the user's password may be allowed."""


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


NAMES: Final = ("metadata", "watermark", "append", "attachments", "password")
"""Every option, by the name that requests and manifests have for it."""
NOTHING_MORE: Final = OutputOptions()


class BadOutput(BadOptions):
    """Output options cannot be used."""


def as_json(output: OutputOptions) -> dict[str, Any]:
    """Return what is said, as JSON that `read_output` reads: what is part of a job's key.

    Of a password only what it allows: the secret itself is never written down unsealed.
    """
    said: dict[str, Any] = {}
    if output.metadata != Metadata():
        keywords = list(output.metadata.keywords)
        texts = {
            name: getattr(output.metadata, name)
            for name in ("title", "author", "subject", "language")
        }
        said["metadata"] = {n: v for n, v in {**texts, "keywords": keywords}.items() if v}
    if output.watermark is not None:
        mark = output.watermark
        said["watermark"] = {
            "text": mark.text, "opacity": mark.opacity, "angle": mark.angle, "colour": mark.colour
        }  # fmt: skip
    if output.append:
        said["append"] = [
            {
                "template_name": one.template_name, "variables": dict(one.variables),
                "template_version": one.template_version,
            }
            for one in output.append
        ]  # fmt: skip
    if output.attachments:
        said["attachments"] = [
            {
                "name": one.name, "media_type": one.media_type,
                "data": base64.b64encode(one.data).decode("ascii"),
                "relationship": one.relationship,
                **({"description": one.description} if one.description else {}),
            }
            for one in output.attachments
        ]  # fmt: skip
    if output.password is not None:
        said["password"] = {"allow": list(output.password.allow)}
    return said


def judge_output(output: OutputOptions, allowed: tuple[str, ...]) -> None:
    """Refuse what a template does not let its callers have done.

    Args:
        output: What was said.
        allowed: The options that the template's manifest names.

    Raises:
        BadOutput: naming every option that may not be used.
    """
    refusal = not_allowed(allowed, NAMES)
    wrong = [(name, refusal) for name in as_json(output) if name not in allowed]
    if wrong:
        raise BadOutput(wrong)
