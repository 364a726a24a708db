"""How templates write values: numbers, money, dates and capitals, in English and in Turkish."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from typing import Any, Final

from jinja2 import TemplateRuntimeError

MOST_DIGITS: Final = 12
_LONGEST: Final = 64
_POINTS: Final = {"en": (",", "."), "tr": (".", ",")}
_MONTHS: Final = {
    "en": (
        "January", "February", "March", "April", "May", "June", "July", "August", "September",
        "October", "November", "December",
    ),
    "tr": (
        "Ocak", "Şubat", "Mart", "Nisan", "May\u0131s", "Haziran", "Temmuz", "Ağustos", "Eylül",
        "Ekim", "Kas\u0131m", "Aral\u0131k",
    ),
}  # fmt: skip
_SIGNS: Final = {"EUR": "€", "GBP": "£", "JPY": "¥", "RUB": "₽", "TRY": "₺", "USD": "$"}
_WITHOUT_CENTS: Final = ("JPY",)


class Unwritable(TemplateRuntimeError):
    """A value is none that can be written so. The message holds no value."""


@dataclass(frozen=True, slots=True)
class Writer:
    """Writes values in English or Turkish, as the Unicode locale data (CLDR) for `en-GB` and `tr`;
    a library of all languages is larger than the rest of the service."""

    language: str

    def number(self, value: Any, digits: int | None = None) -> str:
        """Write a number with its thousands apart, by default with the decimals that it has."""
        amount = _decimal(value, "number")
        if digits is None:
            exponent = amount.normalize().as_tuple().exponent
            digits = min(max(0, -exponent if isinstance(exponent, int) else 0), MOST_DIGITS)
        text = f"{_rounded(amount, digits):,f}"
        thousands, point = _POINTS[self.language]
        swapped = text.translate({ord(","): thousands, ord("."): point})
        # A minus sign as wide as a digit, so that columns stand straight.
        return swapped.replace("-", "\N{MINUS SIGN}")

    def money(self, value: Any, currency: str = "TRY") -> str:
        """Write an amount with its currency's sign before it, to the cent."""
        sign = _SIGNS.get(currency, f"{currency}\N{NO-BREAK SPACE}")
        text = self.number(_decimal(value, "money"), 0 if currency in _WITHOUT_CENTS else 2)
        minus = "\N{MINUS SIGN}" if text.startswith("\N{MINUS SIGN}") else ""
        return f"{minus}{sign}{text.removeprefix(minus)}"

    def percent(self, value: Any, digits: int | None = None) -> str:
        """Write a number of hundredths: 18 is 18%, or %18."""
        text = self.number(_decimal(value, "percent"), digits)
        return f"%{text}" if self.language == "tr" else f"{text}%"

    def date(self, value: Any, style: str = "long") -> str:
        """Write a day that is given as 2026-11-15: `long` as 15 November 2026, `short` as
        15.11.2026 or 15/11/2026, `month` as November 2026; a time after it is left out."""
        day = _day(value)
        month = _MONTHS[self.language][day.month - 1]
        if style == "long":
            return f"{day.day} {month} {day.year}"
        if style == "month":
            return f"{month} {day.year}"
        if style == "short":
            between = "." if self.language == "tr" else "/"
            return between.join((f"{day.day:02}", f"{day.month:02}", f"{day.year:04}"))
        raise Unwritable("|date knows the styles long, short and month")

    def upper(self, value: str) -> str:
        """Write in capitals: of i, in Turkish, one with a dot."""
        return (value.replace("i", "İ") if self.language == "tr" else value).upper()

    def lower(self, value: str) -> str:
        """Write in small letters: of I, in Turkish, one without a dot."""
        if self.language == "tr":
            value = value.replace("İ", "i").replace("I", "\u0131")
        return value.lower()

    def capitalize(self, value: str) -> str:
        """Write the first letter in capitals and the rest small."""
        return self.upper(value[:1]) + self.lower(value[1:])

    def title(self, value: str) -> str:
        """Write each word's first letter in capitals and the rest small."""
        return " ".join(map(self.capitalize, value.split(" ")))


def bare(value: Any) -> str:
    """Write a number as programs read it, for attributes and style: 1234.5."""
    text = f"{_rounded(_decimal(value, 'bare'), 4):f}"
    return text.rstrip("0").rstrip(".")


def css_text(value: Any) -> str:
    """Write a text as a string of CSS, with everything but letters and digits escaped."""
    # Six hexadecimal digits need no space after them, which would be part of the text.
    inner = (c if c.isascii() and c.isalnum() else f"\\{ord(c):06x}" for c in str(value))
    return f'"{"".join(inner)}"'


def _decimal(value: Any, asked: str) -> Decimal:
    try:
        if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal):
            raise InvalidOperation
        text = str(value)
        amount = Decimal(text)
        if len(text) > _LONGEST or not amount.is_finite() or abs(amount.adjusted()) > _LONGEST:
            raise InvalidOperation
    except InvalidOperation:
        raise Unwritable(f"|{asked} was given what is no number") from None
    return amount


def _rounded(amount: Decimal, digits: Any) -> Decimal:
    if not isinstance(digits, int) or not 0 <= digits <= MOST_DIGITS:
        raise Unwritable(f"a number has from 0 to {MOST_DIGITS} decimals")
    try:
        rounded = amount.quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP)
    except InvalidOperation:
        raise Unwritable("a number has more digits than can be written") from None
    return abs(rounded) if rounded == 0 else rounded


def _day(value: Any) -> date:
    try:
        return datetime.fromisoformat(str(value)).date()
    except ValueError:
        raise Unwritable("|date was given what is no day; write it as 2026-11-15") from None
