"""Templates: folders that become documents. Knows no browser, so that every process may use it.

A template is a folder with `manifest.toml` (see `folder`), `template.html`, and, if wanted,
`sample.json`, style sheets, more HTML to include, and assets:

    <style>{{ css("style.css") }}</style>          a style sheet, its files inlined
    <img src="{{ asset('logo.svg') }}">            a file as a data: URL
    <a href="{{ link|url }}">{{ name }}</a>         a value as a URL, its scheme checked
    {{ total|money("TRY") }} {{ day|date }}        in the language of the manifest
    <rect width="{{ width|bare }}"/>               a number as programs read it
    @page { @top-left { content: {{ title|css_text }} } }

Variables stand in text or in quoted attributes, nowhere else; values have items and no methods.
`ulak pdf check` says what is wrong.
"""

from ulak.services.pdf.templates.catalogue import SHIPPED, Templates
from ulak.services.pdf.templates.folder import Template
from ulak.services.pdf.templates.program import Complaint, check

__all__ = ["SHIPPED", "Complaint", "Template", "Templates", "check"]
