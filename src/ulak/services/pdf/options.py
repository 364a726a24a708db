"""What the options of a request have in common, of the page and of the output: texts, and how they
are refused."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from ulak.errors import BadInput

LONGEST: Final = 1_000
"""Characters of a text: a selector, an expression, a title; a guess."""


class BadOptions(BadInput):
    """Options cannot be used.

    Args:
        wrong: For each field what is wrong with it, as `append.0.variables`; never a value.
    """

    def __init__(self, wrong: list[tuple[str, str]]) -> None:
        super().__init__("; ".join(f"{place}: {message}" for place, message in wrong))
        self.wrong = wrong


def not_allowed(allowed: Iterable[str], known: Iterable[str]) -> str:
    """Say that a template does not allow an option, and which of those that are known it does."""
    usable = [name for name in known if name in allowed]
    advice = f"its callers may say {', '.join(usable)}" if usable else "there is none"
    return f"the template does not allow this option; {advice}"


def read_text(said: Any) -> str:
    """Read a text that people can read, without the space around it.

    Raises:
        ValueError: it is something else.
    """
    if not isinstance(said, str) or not said.strip():
        raise ValueError("write a text")
    if len(said) > LONGEST:
        raise ValueError(f"it has more than {LONGEST} characters")
    if not said.isprintable():
        raise ValueError("it holds a character that cannot be printed")
    return said.strip()
