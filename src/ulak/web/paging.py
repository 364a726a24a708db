"""Lists in pages: how large a page may be, and whether another one follows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Final, TypeVar

from pydantic import Field

Item = TypeVar("Item")
Cursor = TypeVar("Cursor")

USUAL_PAGE: Final = 100
LARGEST_PAGE: Final = 1000

PageSize = Annotated[int, Field(ge=1, le=LARGEST_PAGE, description="How many at most.")]
"""The `limit` of a list."""


def paged(
    read: Callable[[int], Sequence[Item]], limit: int, cursor: Callable[[Item], Cursor]
) -> tuple[Sequence[Item], Cursor | None]:
    """Return a page and what the next one begins after; None when this is the last.

    Args:
        read: Reads at most so many items.
        limit: How many a page has.
        cursor: Tells what a page begins after that follows an item.
    """
    found = read(limit + 1)  # one more than asked tells whether there is another page
    page = found[:limit]
    return page, cursor(page[-1]) if len(found) > limit else None
