"""What is done to a document: what a worker hands, as MessagePack, to the process that does it."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import Final

from ulak.services.pdf.output import Attachment, Metadata, Password

FAILED: Final = 3
"""The exit status of a process that could not do it, and says in one word why."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A watermark as it was printed: one line of text on a page of its own."""

    pdf: bytes = field(repr=False)
    _: KW_ONLY
    opacity: float
    angle: float


@dataclass(frozen=True, slots=True)
class Order:
    """Everything that is done to one document, in the order of the fields."""

    pdfs: tuple[bytes, ...] = field(repr=False)
    """The document, and those that follow it."""
    _: KW_ONLY
    mark: Mark | None = None
    metadata: Metadata = field(default_factory=Metadata)
    attachments: tuple[Attachment, ...] = ()
    password: Password | None = None
    seconds: int = 60
    """Of the processor, after which the process that does it is ended by the kernel."""
    memory_bytes: int = 1024 * 1024 * 1024
    """That it may have, what it was handed included."""
