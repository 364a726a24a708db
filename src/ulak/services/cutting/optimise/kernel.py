"""The hot loops of the search, compiled by Numba: ruin and recreate on staged cut trees.

A piece lies in a column, a column in a strip, a strip on a sheet; each row says in which one, or
that it is free. Extents are larger by the kerf. Strips lie along y here: a search that cuts along x
first has its extents swapped.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numba import njit

FREE: Final = -1

# Fields of the tables; a piece has a pose, columns and strips have extents.
OUTER, POSE = 0, 1
ACROSS, ALONG = 1, 2

MOST_RUINED: Final = 10
WEIGHT: Final = 0.1
"""Of rests that lie together, beside the area that has no place."""
BLINKS: Final = 20
"""Of a thousand places so many are overlooked."""


class Places(NamedTuple):
    """Where everything lies."""

    pieces: np.ndarray
    columns: np.ndarray
    strips: np.ndarray
    used: np.ndarray
    """How far the strips of each sheet reach."""
    ends: np.ndarray
    """Which columns and which strips are free up to the end of their tables."""


class Facts(NamedTuple):
    """What a search finds."""

    widths: np.ndarray
    """Of each piece in each pose."""
    heights: np.ndarray
    poses: np.ndarray
    """How many poses each piece has."""
    keys: np.ndarray
    """By what pieces may be sorted, one line for each way; the first has their areas."""
    full: np.ndarray
    """Width and height of each sheet."""
    is_two_stage: bool
    """A column has one piece."""
    is_exact: bool
    """No piece may be smaller than what is cut for it."""


def compiled(function: Any) -> Any:
    """Compile a function; where no folder can keep what was compiled, for this process alone."""
    try:
        return njit(cache=True)(function)
    except RuntimeError:
        return njit(function)


@compiled
def draw(random, most):  # type: ignore[no-untyped-def]
    """Return a number below `most`, by xorshift."""
    x = random[0]
    x ^= (x << 13) & 0xFFFFFFFF
    x ^= x >> 17
    x ^= (x << 5) & 0xFFFFFFFF
    random[0] = x
    return x % most


@compiled
def measure(places, facts):  # type: ignore[no-untyped-def]
    """Find every extent anew, from where the pieces lie; what is empty is free."""
    pieces, columns, strips, used, ends = places
    columns[:, ACROSS:] = 0
    strips[:, ACROSS:] = 0
    used[:] = 0
    ends[:] = 0
    for piece in range(len(pieces)):
        column = pieces[piece, OUTER]
        if column != FREE:
            pose = pieces[piece, POSE]
            columns[column, ACROSS] = max(columns[column, ACROSS], facts.widths[piece, pose])
            columns[column, ALONG] += facts.heights[piece, pose]
    for column in range(len(columns)):
        if columns[column, ALONG] == 0:
            columns[column, OUTER] = FREE
            continue
        strip = columns[column, OUTER]
        strips[strip, ACROSS] += columns[column, ACROSS]
        strips[strip, ALONG] = max(strips[strip, ALONG], columns[column, ALONG])
        ends[0] = column + 1
    for strip in range(len(strips)):
        if strips[strip, ALONG] == 0:
            strips[strip, OUTER] = FREE
            continue
        used[strips[strip, OUTER]] += strips[strip, ALONG]
        ends[1] = strip + 1


@compiled
def begin(table, outer):  # type: ignore[no-untyped-def]
    """Return a free row, which lies in another one from now on."""
    row = 0
    while table[row, OUTER] != FREE:
        row += 1
    table[row, OUTER] = outer
    return row


@compiled
def put(piece, pose, column, places, facts):  # type: ignore[no-untyped-def]
    """Put a piece into a column, which grows by it, as its strip and its sheet may do."""
    pieces, columns, strips, used, _ = places
    pieces[piece, OUTER] = column
    pieces[piece, POSE] = pose
    strip = columns[column, OUTER]
    wider = facts.widths[piece, pose] - columns[column, ACROSS]
    if wider > 0:
        columns[column, ACROSS] += wider
        strips[strip, ACROSS] += wider
    columns[column, ALONG] += facts.heights[piece, pose]
    higher = columns[column, ALONG] - strips[strip, ALONG]
    if higher > 0:
        strips[strip, ALONG] += higher
        used[strips[strip, OUTER]] += higher


@compiled
def insert(piece, places, facts, random, blinks, inner, outer):  # type: ignore[no-untyped-def]
    """Put a piece where it costs the least room; tell whether there was any. `inner` and `outer`
    weigh, in percent, room that is lost above a column and beside a strip."""
    _, columns, strips, used, ends = places
    full = facts.full
    least = 1 << 62
    best_pose = best_column = best_strip = best_sheet = FREE
    for pose in range(facts.poses[piece]):
        width = facts.widths[piece, pose]
        height = facts.heights[piece, pose]
        for column in range(0 if facts.is_two_stage else ends[0]):
            strip = columns[column, OUTER]
            if strip == FREE:
                continue
            sheet = strips[strip, OUTER]
            high = strips[strip, ALONG]
            along = columns[column, ALONG] + height
            wider = width - columns[column, ACROSS]
            if (
                along > high + full[sheet, 1] - used[sheet]
                or wider > full[sheet, 0] - strips[strip, ACROSS]
                or (facts.is_exact and wider != 0)
                or draw(random, 1000) < blinks
            ):
                continue
            cost = 100 * (wider * columns[column, ALONG] if wider > 0 else -wider * height)
            if along > high:
                cost += (along - high) * (full[sheet, 0] - columns[column, ACROSS]) * outer
            elif wider > 0:
                cost += wider * (high - along) * inner
            if cost < least:
                least = cost
                best_pose, best_column = pose, column
        for strip in range(ends[1]):
            sheet = strips[strip, OUTER]
            if sheet == FREE or width > full[sheet, 0] - strips[strip, ACROSS]:
                continue
            higher = height - strips[strip, ALONG]
            if (
                higher > full[sheet, 1] - used[sheet]
                or (facts.is_two_stage and facts.is_exact and higher != 0)
                or draw(random, 1000) < blinks
            ):
                continue
            cost = -higher * width * inner
            if higher > 0:
                cost = higher * (full[sheet, 0] - width) * outer
            if cost < least:
                least = cost
                best_pose, best_column, best_strip = pose, FREE, strip
        for sheet in range(len(used)):
            if width > full[sheet, 0] or height > full[sheet, 1] - used[sheet]:
                continue
            cost = height * (full[sheet, 0] - width) * outer
            if cost < least and draw(random, 1000) >= blinks:
                least = cost
                best_pose, best_column, best_strip, best_sheet = pose, FREE, FREE, sheet
    if best_pose == FREE:
        return False
    if best_column == FREE:
        if best_strip == FREE:
            best_strip = begin(strips, best_sheet)
            ends[1] = max(ends[1], best_strip + 1)
        best_column = begin(columns, best_strip)
        ends[0] = max(ends[0], best_column + 1)
    put(piece, best_pose, best_column, places, facts)
    return True


@compiled
def recreate(places, facts, random, way, blinks, inner, outer):  # type: ignore[no-untyped-def]
    """Give a place to pieces that have none, the largest first by a way of sorting them; return the
    area of those that find none."""
    keys = facts.keys[way]
    out = np.flatnonzero(places.pieces[:, OUTER] == FREE)
    for place in range(1, len(out)):
        piece, before = out[place], place - 1
        while before >= 0 and keys[out[before]] < keys[piece]:
            out[before + 1] = out[before]
            before -= 1
        out[before + 1] = piece
    left = 0
    for piece in out:
        if not insert(piece, places, facts, random, blinks, inner, outer):
            left += facts.keys[0, piece]
    return left


@compiled
def ruin(places, random):  # type: ignore[no-untyped-def]
    """Take some pieces out: whole strips, whole columns, some of two sheets, or any."""
    pieces, columns, strips, used, _ = places
    kind = draw(random, 10)
    wanted = 1 + draw(random, MOST_RUINED)
    tries = 4 if kind < 3 else wanted + 4 if kind < 6 else 6 * wanted if kind < 8 else wanted
    one, other = draw(random, len(used)), draw(random, len(used))
    taken = 0
    for _ in range(tries):
        piece = draw(random, len(pieces))
        column = pieces[piece, OUTER]
        if column == FREE:
            continue
        strip = columns[column, OUTER]
        if kind >= 6:
            if kind >= 8 or strips[strip, OUTER] in (one, other):
                pieces[piece, OUTER] = FREE
            continue
        for each in range(len(pieces)):
            own = pieces[each, OUTER]
            if own == column or (kind < 3 and own != FREE and columns[own, OUTER] == strip):
                pieces[each, OUTER] = FREE
                taken += 1
        if taken >= wanted:
            break


@compiled
def gather(places, facts, area):  # type: ignore[no-untyped-def]
    """Return how much the rests are in one place: the sum of their squares."""
    _, columns, strips, used, ends = places
    total = 0.0
    for sheet in range(len(used)):
        rest = facts.full[sheet, 0] * (facts.full[sheet, 1] - used[sheet]) / area
        total += rest * rest
    for strip in range(ends[1]):
        if strips[strip, OUTER] != FREE:
            across = facts.full[strips[strip, OUTER], 0]
            rest = (across - strips[strip, ACROSS]) * strips[strip, ALONG] / area
            total += rest * rest
    for column in range(ends[0]):
        if columns[column, OUTER] != FREE:
            high = strips[columns[column, OUTER], ALONG]
            rest = columns[column, ACROSS] * (high - columns[column, ALONG]) / area
            total += rest * rest
    return total


@compiled
def copy(source, target):  # type: ignore[no-untyped-def]
    """Make two tables of places equal."""
    target.pieces[:] = source.pieces
    target.columns[:] = source.columns
    target.strips[:] = source.strips
    target.used[:] = source.used
    target.ends[:] = source.ends


@compiled
def anneal(places, facts, kept, random, rounds, temperature):  # type: ignore[no-untyped-def]
    """Ruin and recreate for some rounds, or until every piece is placed; return the rounds. The
    cost is the area that is not placed, in plates, less what rests that lie together are worth.
    `kept` is room for places."""
    area = float((facts.full[:, 0] * facts.full[:, 1]).max())
    missing = facts.keys[0][places.pieces[:, OUTER] == FREE].sum()
    cost = missing / area - WEIGHT * gather(places, facts, area)
    copy(places, kept)
    for done in range(rounds):
        if missing == 0:
            return done
        ruin(places, random)
        measure(places, facts)
        way, inner, outer = draw(random, len(facts.keys)), draw(random, 100), draw(random, 100)
        left = recreate(places, facts, random, way, BLINKS, 50 + inner, 50 + outer)
        new = left / area - WEIGHT * gather(places, facts, area)
        chance = (draw(random, 1 << 24) + 1) / float(1 << 24)
        if new <= cost - temperature * np.log(chance):
            cost = new
            missing = left
            copy(places, kept)
        else:
            copy(kept, places)
    return rounds
