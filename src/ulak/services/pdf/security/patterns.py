"""Regular expressions that take linear time: for texts that a stranger chooses.

Python's own matcher backtracks, and holds the interpreter while it does: one `(a+)+` in an
allow-list and one long URL would stop the worker and all its jobs. RE2 cannot: what would need
backtracking (look-around, references back, atomic groups) it refuses when the pattern is read, that
is, at start.
"""

from __future__ import annotations

from typing import Any, Final

from ulak.errors import BadInput

MOST_MEMORY: Final = 1024 * 1024
"""A guess: far more than an ordinary pattern takes; a counted repeat like `(x{999}){9}` ends
here."""


class Pattern:
    """A regular expression, matched whole.

    Raises:
        BadInput: the pattern cannot be read, or needs what takes more than linear time.
    """

    __slots__ = ("_matcher", "text")

    def __init__(self, text: str) -> None:
        # Here and not above: whoever has no patterns needs no matcher.
        import re2  # type: ignore[import-untyped]

        options = re2.Options()
        options.log_errors, options.max_mem = False, MOST_MEMORY
        self.text = text
        try:
            self._matcher: Any = re2.compile(text, options)
        except re2.error as error:
            said = error.args[0].decode() if isinstance(error.args[0], bytes) else str(error)
            raise BadInput(f"URL pattern {text!r} cannot be read: {said}") from None

    def fullmatch(self, text: str) -> bool:
        """Tell whether all of a text is matched."""
        return self._matcher.fullmatch(text) is not None
