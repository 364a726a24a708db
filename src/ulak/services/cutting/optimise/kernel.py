"""The hot loops of the search, compiled by Numba: ruin and recreate on staged cut trees.

State is four tables of whole numbers, each row a list of links: a piece lies in a column, a column
in a strip, a strip in a sheet. Extents are larger by the kerf. Strips lie along y here; a search
that cuts along x first has its extents swapped. Which rows are free says their first field.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numba import njit

FREE: Final = -2
NONE: Final = -1

# Pieces.
COLUMN, POSE, BESIDE = 0, 1, 2
# Columns; strips have the same fields, in their sheet.
OUTER, ACROSS, ALONG, FIRST, NEXT = 0, 1, 2, 3, 4
# Sheets.
USED, FIRST_STRIP = 0, 1

# Rules: what may share a column, and whether parts may be trimmed.
TWO_STAGES, EXACT = 1, 2


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
def begin(table, owners, owner, first):  # type: ignore[no-untyped-def]
    """Return a row for an empty column or strip, the first one of its owner now."""
    row = 0
    while table[row, OUTER] != FREE:
        row += 1
    table[row, OUTER] = owner
    table[row, ACROSS] = 0
    table[row, ALONG] = 0
    table[row, FIRST] = NONE
    table[row, NEXT] = owners[owner, first]
    owners[owner, first] = row
    return row


@compiled
def unlink(row, table, following, owners, owner, first):  # type: ignore[no-untyped-def]
    """Take a row out of the list of its owner."""
    other = owners[owner, first]
    if other == row:
        owners[owner, first] = table[row, following]
        return
    while table[other, following] != row:
        other = table[other, following]
    table[other, following] = table[row, following]


@compiled
def remove(piece, pieces, columns, strips, sheets, widths, heights):  # type: ignore[no-untyped-def]
    """Take a piece out of its column; what is empty then goes too."""
    column = pieces[piece, COLUMN]
    pieces[piece, COLUMN] = NONE
    unlink(piece, pieces, BESIDE, columns, column, FIRST)
    strip = columns[column, OUTER]
    sheet = strips[strip, OUTER]
    before = strips[strip, ALONG]
    if columns[column, FIRST] == NONE:
        unlink(column, columns, NEXT, strips, strip, FIRST)
        columns[column, OUTER] = FREE
        if strips[strip, FIRST] == NONE:
            unlink(strip, strips, NEXT, sheets, sheet, FIRST_STRIP)
            strips[strip, OUTER] = FREE
            sheets[sheet, USED] -= before
            return
    else:
        across = 0
        along = 0
        other = columns[column, FIRST]
        while other != NONE:
            pose = pieces[other, POSE]
            across = max(across, widths[other, pose])
            along += heights[other, pose]
            other = pieces[other, BESIDE]
        columns[column, ACROSS] = across
        columns[column, ALONG] = along
    across = 0
    along = 0
    other = strips[strip, FIRST]
    while other != NONE:
        across += columns[other, ACROSS]
        along = max(along, columns[other, ALONG])
        other = columns[other, NEXT]
    strips[strip, ACROSS] = across
    strips[strip, ALONG] = along
    sheets[sheet, USED] += along - before


@compiled
def insert(  # type: ignore[no-untyped-def]
    piece, pieces, columns, strips, sheets, widths, heights, poses, full, rules, random, blinks,
    inner, outer,
):  # fmt: skip
    """Put a piece where it costs the least room; tell whether there was any. A share of the places,
    `blinks` of a thousand, is overlooked; `inner` and `outer` weigh, in percent, room that is lost
    above a column and beside a strip."""
    least = 1 << 62
    best_pose = 0
    best_kind = NONE
    best_place = NONE
    is_exact = rules & EXACT != 0
    for pose in range(poses[piece]):
        width = widths[piece, pose]
        height = heights[piece, pose]
        for sheet in range(sheets.shape[0]):
            most_across = full[sheet, 0]
            room = full[sheet, 1] - sheets[sheet, USED]
            if width > most_across or height > full[sheet, 1]:
                continue
            strip = sheets[sheet, FIRST_STRIP]
            while strip != NONE:
                high = strips[strip, ALONG]
                free = most_across - strips[strip, ACROSS]
                may_stand = height == high if rules == TWO_STAGES | EXACT else height <= high + room
                if width <= free and may_stand and draw(random, 1000) >= blinks:
                    if height <= high:
                        cost = width * (high - height) * inner
                    else:
                        cost = (height - high) * (most_across - width) * outer
                    if cost < least:
                        least = cost
                        best_pose = pose
                        best_kind = 1
                        best_place = strip
                if rules & TWO_STAGES == 0:
                    column = strips[strip, FIRST]
                    while column != NONE:
                        broad = columns[column, ACROSS]
                        along = columns[column, ALONG] + height
                        if (
                            along <= high + room
                            and width - broad <= free
                            and (not is_exact or width == broad)
                            and draw(random, 1000) >= blinks
                        ):
                            if width <= broad:
                                cost = (broad - width) * height * 100
                            else:
                                cost = (width - broad) * columns[column, ALONG] * 100
                            if along > high:
                                cost += (along - high) * (most_across - broad) * outer
                            elif width > broad:
                                cost += (width - broad) * (high - along) * inner
                            if cost < least:
                                least = cost
                                best_pose = pose
                                best_kind = 0
                                best_place = column
                        column = columns[column, NEXT]
                strip = strips[strip, NEXT]
            if height <= room and draw(random, 1000) >= blinks:
                cost = height * (most_across - width) * outer
                if cost < least:
                    least = cost
                    best_pose = pose
                    best_kind = 2
                    best_place = sheet
    if best_kind == NONE:
        return False
    width = widths[piece, best_pose]
    height = heights[piece, best_pose]
    column = best_place
    if best_kind > 0:
        strip = best_place
        if best_kind == 2:
            strip = begin(strips, sheets, best_place, FIRST_STRIP)
        column = begin(columns, strips, strip, FIRST)
    put(piece, best_pose, column, pieces, columns, strips, sheets, width, height)
    return True


@compiled
def put(piece, pose, column, pieces, columns, strips, sheets, width, height):  # type: ignore[no-untyped-def]
    """Put a piece into a column, which grows by it."""
    pieces[piece, COLUMN] = column
    pieces[piece, POSE] = pose
    pieces[piece, BESIDE] = columns[column, FIRST]
    columns[column, FIRST] = piece
    strip = columns[column, OUTER]
    if width > columns[column, ACROSS]:
        strips[strip, ACROSS] += width - columns[column, ACROSS]
        columns[column, ACROSS] = width
    columns[column, ALONG] += height
    if columns[column, ALONG] > strips[strip, ALONG]:
        sheets[strips[strip, OUTER], USED] += columns[column, ALONG] - strips[strip, ALONG]
        strips[strip, ALONG] = columns[column, ALONG]


@compiled
def gather(columns, strips, sheets, full, area):  # type: ignore[no-untyped-def]
    """Return how much the rests are in one place: the sum of their squares."""
    total = 0.0
    for sheet in range(sheets.shape[0]):
        across = full[sheet, 0]
        rest = float(across) * (full[sheet, 1] - sheets[sheet, USED]) / area
        total += rest * rest
        strip = sheets[sheet, FIRST_STRIP]
        while strip != NONE:
            high = strips[strip, ALONG]
            rest = float(across - strips[strip, ACROSS]) * high / area
            total += rest * rest
            column = strips[strip, FIRST]
            while column != NONE:
                rest = float(columns[column, ACROSS]) * (high - columns[column, ALONG]) / area
                total += rest * rest
                column = columns[column, NEXT]
            strip = strips[strip, NEXT]
    return total


@compiled
def sort(out, count, by, widths, heights, areas, random):  # type: ignore[no-untyped-def]
    """Sort pieces by area, height, width or longest side, the largest first, or at random."""
    keys = np.empty(count, np.int64)
    for place in range(count):
        piece = out[place]
        if by < 4:
            keys[place] = areas[piece]
        elif by < 6:
            keys[place] = heights[piece, 0]
        elif by < 7:
            keys[place] = widths[piece, 0]
        elif by < 9:
            keys[place] = max(widths[piece, 0], heights[piece, 0])
        else:
            keys[place] = draw(random, 1 << 20)
    for place in range(1, count):
        key = keys[place]
        piece = out[place]
        before = place - 1
        while before >= 0 and keys[before] < key:
            keys[before + 1] = keys[before]
            out[before + 1] = out[before]
            before -= 1
        keys[before + 1] = key
        out[before + 1] = piece


@compiled
def empty_column(column, pieces, columns, strips, sheets, widths, heights):  # type: ignore[no-untyped-def]
    """Take out every piece of a column; return how many there were."""
    taken = 0
    piece = columns[column, FIRST]
    while piece != NONE:
        following = pieces[piece, BESIDE]
        remove(piece, pieces, columns, strips, sheets, widths, heights)
        taken += 1
        piece = following
    return taken


@compiled
def ruin(pieces, columns, strips, sheets, widths, heights, random, most):  # type: ignore[no-untyped-def]
    """Take some pieces out: whole strips, whole columns, some of two sheets, or any."""
    number = pieces.shape[0]
    kind = draw(random, 10)
    wanted = 1 + draw(random, most)
    taken = 0
    if kind < 6:
        tries = 4 if kind < 3 else wanted + 4
        while taken < wanted and tries > 0:
            tries -= 1
            piece = draw(random, number)
            if pieces[piece, COLUMN] < 0:
                continue
            column = pieces[piece, COLUMN]
            if kind >= 3:
                taken += empty_column(column, pieces, columns, strips, sheets, widths, heights)
                continue
            column = strips[columns[column, OUTER], FIRST]
            while column != NONE:
                following = columns[column, NEXT]
                taken += empty_column(column, pieces, columns, strips, sheets, widths, heights)
                column = following
    elif kind < 8:
        piece = draw(random, number)
        other = draw(random, sheets.shape[0])
        if pieces[piece, COLUMN] >= 0:
            own = strips[columns[pieces[piece, COLUMN], OUTER], OUTER]
            for _ in range(wanted * 6):
                piece = draw(random, number)
                if pieces[piece, COLUMN] >= 0:
                    sheet = strips[columns[pieces[piece, COLUMN], OUTER], OUTER]
                    if sheet in (own, other):
                        remove(piece, pieces, columns, strips, sheets, widths, heights)
    else:
        for _ in range(wanted):
            piece = draw(random, number)
            if pieces[piece, COLUMN] >= 0:
                remove(piece, pieces, columns, strips, sheets, widths, heights)


@compiled
def anneal(  # type: ignore[no-untyped-def]
    pieces, columns, strips, sheets, widths, heights, poses, areas, full, rules, random, rounds,
    temperature, most_ruined, weight, blinks,
):  # fmt: skip
    """Ruin and recreate for some rounds, or until every piece is placed; return the rounds. The
    cost is the area that is not placed, in plates; `weight` draws rests together."""
    number = pieces.shape[0]
    area = 0.0
    for sheet in range(sheets.shape[0]):
        area = max(area, float(full[sheet, 0]) * full[sheet, 1])
    missing = 0
    for piece in range(number):
        if pieces[piece, COLUMN] == NONE:
            missing += areas[piece]
    cost = missing / area - weight * gather(columns, strips, sheets, full, area)
    kept_pieces = pieces.copy()
    kept_columns = columns.copy()
    kept_strips = strips.copy()
    kept_sheets = sheets.copy()
    out = np.empty(number, np.int64)
    for done in range(rounds):
        if missing == 0:
            return done
        ruin(pieces, columns, strips, sheets, widths, heights, random, most_ruined)
        count = 0
        for piece in range(number):
            if pieces[piece, COLUMN] == NONE:
                out[count] = piece
                count += 1
        sort(out, count, draw(random, 10), widths, heights, areas, random)
        inner = 50 + draw(random, 100)
        outer = 50 + draw(random, 100)
        left = 0
        for place in range(count):
            if not insert(
                out[place], pieces, columns, strips, sheets, widths, heights, poses, full, rules,
                random, blinks, inner, outer,
            ):  # fmt: skip
                left += areas[out[place]]
        new = left / area - weight * gather(columns, strips, sheets, full, area)
        chance = (draw(random, 1 << 24) + 1) / float(1 << 24)
        if new <= cost - temperature * np.log(chance):
            cost = new
            missing = left
            kept_pieces[:] = pieces
            kept_columns[:] = columns
            kept_strips[:] = strips
            kept_sheets[:] = sheets
        else:
            pieces[:] = kept_pieces
            columns[:] = kept_columns
            strips[:] = kept_strips
            sheets[:] = kept_sheets
    return rounds
