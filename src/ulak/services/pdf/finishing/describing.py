"""What a document says about itself, and the files inside of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pikepdf import Array, AttachedFileSpec, Dictionary, Name, Pdf, String

from ulak.services.pdf.output import Attachment, Metadata

_DATE: Final = "2000-01-01T00:00:00+00:00"
"""As the other dates of a document (`browser.sameness`): the same document has the same bytes."""


def describe(pdf: Pdf, metadata: Metadata) -> None:
    """Write what is said over what the HTML said, and all of it in XMP too, where both agree."""
    info = pdf.docinfo
    said = {
        Name.Title: metadata.title,
        Name.Author: metadata.author,
        Name.Subject: metadata.subject,
        Name.Keywords: ", ".join(metadata.keywords),
    }
    for name, text in said.items():
        if text:
            info[name] = String(text)
    if metadata.language:
        pdf.Root[Name.Lang] = String(metadata.language)
    texts = {str(name): str(info.get(name, "")) for name in (*said, Name.Creator, Name.Producer)}
    if texts["/Title"]:
        if Name.ViewerPreferences not in pdf.Root:
            pdf.Root[Name.ViewerPreferences] = Dictionary()
        pdf.Root.ViewerPreferences[Name.DisplayDocTitle] = True
    with pdf.open_metadata(set_pikepdf_as_editor=False, update_docinfo=False) as xmp:
        if texts["/Title"]:
            xmp["dc:title"] = texts["/Title"]
        if texts["/Author"]:
            xmp["dc:creator"] = [texts["/Author"]]
        if texts["/Subject"]:
            xmp["dc:description"] = texts["/Subject"]
        if texts["/Keywords"]:
            xmp["pdf:Keywords"] = texts["/Keywords"]
            xmp["dc:subject"] = list(metadata.keywords)
        if Name.Lang in pdf.Root:
            xmp["dc:language"] = [str(pdf.Root.Lang)]
        if texts["/Creator"]:
            xmp["xmp:CreatorTool"] = texts["/Creator"]
        if texts["/Producer"]:
            xmp["pdf:Producer"] = texts["/Producer"]
        xmp["xmp:CreateDate"] = xmp["xmp:ModifyDate"] = _DATE


def attach(pdf: Pdf, attachments: Iterable[Attachment]) -> None:
    """Embed files, each with its checksum and with how it belongs to the document."""
    specs = []
    for one in attachments:
        spec = AttachedFileSpec(
            pdf,
            one.data,
            filename=one.name,
            description=one.description,
            mime_type=one.media_type,
            # Nobody has said when, and the same document has the same bytes.
            creation_date="",
            mod_date="",
        )
        spec.obj[Name.AFRelationship] = Name(f"/{one.relationship}")
        pdf.attachments[one.name] = spec
        specs.append(pdf.attachments[one.name].obj)
    if specs:
        pdf.Root[Name.AF] = pdf.make_indirect(Array(specs))
