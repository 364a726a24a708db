"""What keeps a document from reaching further than it may: pure functions, without a browser."""

from ulak.services.pdf.security.template_input import sanitize_html_variables, validate_template
from ulak.services.pdf.security.urls import BadUrl, is_public, validate_url

__all__ = ["BadUrl", "is_public", "sanitize_html_variables", "validate_template", "validate_url"]
