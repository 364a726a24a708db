"""What callers send to have something done to the printed document: `options.output`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from ulak.kit.bodies import Body


class PdfMetadata(Body):
    """What the PDF says about itself, in place of what its HTML says."""

    title: str | None = Field(None, examples=["Invoice 1847"])
    author: str | None = Field(None, examples=["Ada Lovelace"])
    subject: str | None = None
    keywords: list[str] | None = Field(None, examples=[["invoice", "2026"]])
    language: str | None = Field(None, examples=["tr"])


class PdfWatermark(Body):
    """A text across every page."""

    text: str = Field(description="One line of up to 60 characters.", examples=["DRAFT"])
    opacity: float | None = Field(None, description="From 0.01 to 1; 0.15 by default.")
    angle: float | None = Field(None, description="Degrees, from -90 to 90; 45 by default.")
    colour: str | None = Field(None, examples=["#aa0000"])


class PdfAppended(Body):
    """A document that follows the first one."""

    template_name: str = Field(description="The name of a template that is allowed.")
    variables: dict[str, Any] = Field(description="What that template is filled with.")


class PdfAttachment(Body):
    """A file inside of the PDF."""

    name: str = Field(examples=["invoice.xml"])
    media_type: str = Field(examples=["application/xml"])
    data: str = Field(description="Its bytes in base64.", repr=False)
    relationship: Literal["Data", "Source", "Alternative", "Supplement", "Unspecified"] | None = (
        Field(None, description="How it belongs to the document; `Unspecified` by default.")
    )
    description: str | None = None


class PdfPassword(Body):
    """What opens the PDF; neither is ever stored in clear."""

    user: str | None = Field(None, description="Opens it.", repr=False)
    owner: str | None = Field(None, description="Opens it with every right.", repr=False)
    allow: list[Literal["annotate", "assemble", "copy", "fill", "modify", "print"]] | None = Field(
        None, description="What may be done without the owner's; everything by default."
    )


class PdfOutputOptions(Body):
    """What is done to the printed document; each only where the template allows it."""

    metadata: PdfMetadata | None = None
    watermark: PdfWatermark | None = None
    append: list[PdfAppended] | None = Field(
        None, description="Documents that follow, in this order, with their outlines."
    )
    attachments: list[PdfAttachment] | None = None
    password: PdfPassword | None = Field(None, description="Encrypts the PDF with AES-256.")
