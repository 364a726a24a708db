"""Orders of the optimiser, made from the rows of import files, of whole orders, and of instances.

Whatever only the reading of whole orders needs is imported when it is called: the program of
mode E starts without it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from zipfile import BadZipFile

from openpyxl import load_workbook
from openpyxl.utils.exceptions import InvalidFileException

from ulak.kit.texts import read_number
from ulak.services.cutting.optimise.model import Order, OrderPart, Stock, Unsolvable
from ulak.services.cutting.workbook import FIRST_DATA_ROW, SHEET, TAGS

if TYPE_CHECKING:
    from ulak.services.cutting.rules import Rules

_DESCRIPTION: Final = re.compile(r"(?:GOVDE|ARKALIK)_(.*)_TRIM_(\d+\.\d\d)", re.DOTALL)
_LEAST, _LARGEST = Decimal("0.01"), Decimal(100_000)
"""In mm, of any size; far more than a saw can hold."""

OFFCUT: Final = "offcut "
"""How the name of a plate begins that is from the store; its number follows."""

Cells = Sequence[Any]
"""A row of an import file: the twelve columns of `TAGS`."""


def read_import(path: Path, settings: Mapping[str, Any]) -> Order:
    """Return the order of an import file; `settings` are those of `plans.make_settings`.

    Raises:
        Unsolvable: the file cannot be used, and which row is why.
    """
    # Not by `ulak.kit.workbooks`, which bounds what people send: this file is ours.
    try:
        book = load_workbook(path, read_only=True, data_only=True)
        sheet = book[SHEET]
        rows = [*sheet.iter_rows(min_row=FIRST_DATA_ROW, max_col=len(TAGS), values_only=True)]
        book.close()
    except (OSError, LookupError, ValueError, TypeError, SyntaxError, BadZipFile) as error:
        raise Unsolvable(f"it is no workbook with a sheet {SHEET}: {error}") from error
    except InvalidFileException as error:
        raise Unsolvable(str(error)) from error
    note = _read_note(book.properties.description)
    thickness = read_number(note.get("thickness_mm"))
    offcuts = settings.get("offcuts", {}).get(path.name, ())
    return make_order(enumerate(rows, FIRST_DATA_ROW), settings, thickness, offcuts)


def make_order(
    rows: Iterable[tuple[int, Cells]], settings: Mapping[str, Any], thickness: Decimal | None,
    offcuts: Iterable[tuple[str, str, str]] = (),
) -> Order:  # fmt: skip
    """Return the order of numbered rows of an import file; rows without a value are left out.
    `offcuts` have a name, width and height each.

    Without a `thickness` each sheet is cut alone. Raises `Unsolvable`, which names the row.
    """
    parts, found = list[OrderPart](), None
    for number, row in rows:
        if all(cell is None for cell in row):
            continue
        try:
            part, trim = _read_row(row)
        except ValueError as error:
            raise Unsolvable(f"row {number}: {error}: {row}") from error
        parts.append(part)
        found = found or (str(row[0]), trim)
    if found is None:
        raise Unsolvable("there are no parts in it")
    stack = Decimal(settings.get("stack_mm", 0))
    width, height = (Decimal(side) for side in settings["plate_mm"])
    offcut = [Decimal(side) for side in settings.get("offcut_mm", (300, 100))]
    has_grain = any(part.grain in (1, 2) for part in parts)
    stock = [Stock(width, height)]
    for name, *sides in offcuts:
        across, up = map(Decimal, sides)
        # The grain of one that lies otherwise than the plates would be the wrong one.
        if min(across, up) > 2 * found[1] and not (
            has_grain and (up >= across) != (height >= width)
        ):
            # Half of the price of new plates, a guess: an order takes what it can of them.
            stock.append(Stock(across, up, 1, int(across * up * 5000), name))
    return Order(
        parts, tuple(stock), material=found[0], trim=found[1],
        trimmed_sides=frozenset(settings["trimmed_sides"]), kerf=Decimal(settings["kerf_mm"]),
        stages=settings.get("stages", 3), first_cut=settings.get("first_cut", ""),
        trimming=settings.get("trimming", True),
        grain_axis=settings["grain_axis"], deduct_bands=settings["deduct_bands"],
        milling=Decimal(settings["milling_mm"]), thickness=thickness or Decimal(18),
        stack_height=stack if thickness else Decimal(0),
        offcut=(offcut[0], offcut[1]),
    )  # fmt: skip


def read_orders(payload: Mapping[str, Any], rules: Rules) -> dict[str, Order]:
    """Return an order for each batch of a whole order, by the batch's mark; `payload` is what
    `parse_order` returns.

    Whether a plate holds every part is for the search to say. Raises `HoldCode`: a part has a
    thickness, a band or a grain that the rules do not know; `Unsolvable`.
    """
    from ulak.services.cutting.plans import make_settings
    from ulak.services.cutting.transform import prepare

    if not payload.get("plate_size") and rules.default_plate_size is None:
        raise Unsolvable("order and rules name no plate size")
    settings = make_settings(payload, rules)
    endless = {"width_mm": float(_LARGEST), "height_mm": float(_LARGEST)}
    prepared = prepare(
        {**payload, "plate_size": endless}, rules,
        customer_known=lambda phone: True, check_template=lambda: None,
    )  # fmt: skip
    return {
        batch.mark: make_order(
            enumerate((row.cells for row in batch.rows), 1), settings, Decimal(batch.thickness)
        )
        for batch in prepared.batches
    }


def read_stock(text: str) -> Stock:
    """Return the plates that a text as `2100x2800`, or `900x600:3` for three of them, stands for.

    Raises `ValueError`, with what is wrong.
    """
    size, _, quantity = text.lower().partition(":")
    width, cross, height = size.partition("x")
    with suppress(ValueError):
        if cross and (not quantity or int(quantity) > 0):
            return Stock(_size(width), _size(height), int(quantity) if quantity else None)
    raise ValueError(f"{text!r} is no plate; write 2100x2800 in mm, and :3 behind it for three")


def _read_row(row: Cells) -> tuple[OrderPart, Decimal]:
    """Return the part of a row, and the trim of its plates, which stands in its description."""
    named = _DESCRIPTION.fullmatch(str(row[5]))
    if named is None:
        raise ValueError("P_IDESC is not of the form GOVDE_id_TRIM_10.00")
    length, width = _size(row[1]), _size(row[2])
    quantity, grain = map(read_number, row[3:5])
    if quantity is None or quantity < 1 or quantity % 1 or grain not in (0, 1, 2, 3):
        raise ValueError("a quantity is a whole number from 1, a grain 0, 1, 2 or 3")
    up, lo, sx, dx = (_size(band, least=Decimal(0)) if band else Decimal(0) for band in row[6:10])
    part = OrderPart(named[1], named[0], length, width, int(quantity), int(grain), (up, lo, sx, dx))
    return part, _size(named[2], least=Decimal(0))


def _size(value: object, *, least: Decimal = _LEAST) -> Decimal:
    """Return a size in mm. Raises `ValueError`."""
    size = read_number(value)
    if size is None or not least <= size <= _LARGEST:
        raise ValueError(f"{value!r} is no size in mm")
    return size


def _read_note(text: str | None) -> Mapping[str, Any]:
    """Return what `import_note` wrote; nothing of a file that another program made."""
    try:
        note = json.loads(text or "{}")
    except ValueError:
        return {}
    return note if isinstance(note, dict) else {}
