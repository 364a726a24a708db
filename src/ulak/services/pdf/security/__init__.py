"""What keeps a document from reaching further than it may: pure functions, without a browser."""

from ulak.services.pdf.security.addresses import is_public
from ulak.services.pdf.security.escaping import sanitize_html_variables
from ulak.services.pdf.security.names import validate_template
from ulak.services.pdf.security.urls import BadUrl, validate_url

__all__ = [
    "BadUrl",
    "is_public",
    "sanitize_html_variables",
    "validate_template",
    "validate_url",
]
