"""Where in the HTML a template's expressions stand, and which URLs it names itself.

Escaping protects text and quoted attributes. Anywhere else - in a tag, in an attribute without
quotes, in a script - an escaped value can still become markup or code, so nothing may stand there.
The branches of an `if` are each read from where it began, and must meet in the same place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from jinja2 import Environment

URL_ATTRIBUTES: Final = frozenset(
    {
        "action", "background", "cite", "data", "formaction", "href", "manifest", "ping", "poster",
        "src", "xlink:href",
    }
)  # fmt: skip
LINKS: Final = frozenset({"a", "area"})
"""Elements whose href is for readers to follow: nothing is fetched."""
NEVER: Final = frozenset({"http-equiv", "imagesrcset", "srcdoc", "srcset"})
"""Attributes that hold HTML, many URLs at once, or a command: nothing may stand there."""

RAW: Final = ("script", "style")
_SPACE: Final = " \t\r\n\f"
_APART: Final = ("macro", "call", "set", "filter")
_BLOCKS: Final = frozenset({"if", "for", "macro", "call", "filter", "block", "with", "set"})

Token = tuple[str, str]
"""Of an expression: its kind and its text, as Jinja's lexer says them."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the reader is."""

    state: str = "text"
    """`text`, `open` (after <), `tag` (its name), `inside` (a tag), `name` (of an attribute),
    `equals` (before its value), `quoted`, `unquoted`, `comment`, `markup` (after <!), `raw`."""
    element: str = ""
    attribute: str = ""
    quote: str = ""
    value: str = ""
    """What of an attribute's value, or of a raw element, was read; an expression is a NUL."""
    begun: int = 0


class Finding(NamedTuple):
    """Something in the source that is not right."""

    line: int
    message: str


class Named(NamedTuple):
    """A URL that the template itself names."""

    line: int
    url: str
    is_link: bool


class Reading(NamedTuple):
    """What was found in one file."""

    findings: Sequence[Finding]
    urls: Sequence[Named]
    styles: Sequence[tuple[int, str]]
    """Style sheets and style attributes, with the lines that they begin in."""
    elements: frozenset[str]


def read_positions(environment: Environment, source: str) -> Reading:
    """Read the source of an HTML file. Raises TemplateSyntaxError: it cannot be read."""
    reader = _Reader()
    for line, kind, tokens in _pieces(environment, source):
        if kind == "data":
            reader.feed(tokens[0][1], line)
        elif kind == "variable":
            reader.expression(line, tokens)
        else:
            reader.block(line, tokens)
    if reader.place.state != "text":
        reader.find(reader.place.begun or 1, "the file ends inside of a tag or of an element")
    return Reading(reader.findings, reader.urls, reader.styles, frozenset(reader.elements))


def _pieces(environment: Environment, source: str) -> Iterator[tuple[int, str, list[Token]]]:
    """Cut a source into data, expressions (`variable`) and statements (`block`)."""
    inner: list[Token] = []
    begun, kind = 0, ""
    for line, word, text in environment.lex(source):
        if word == "data":
            yield line, "data", [(word, text)]
        elif word in ("variable_begin", "block_begin"):
            inner, begun, kind = [], line, word.removesuffix("_begin")
        elif word in ("variable_end", "block_end"):
            yield begun, kind, inner
        elif kind and word != "whitespace":
            inner.append((word, text))


@dataclass(slots=True)
class _Block:
    """An `if`, a loop or the like that is still open."""

    word: str
    start: Place
    ends: list[Place] = field(default_factory=list)
    is_whole: bool = False


class _Reader:
    """Walks over the HTML of a template, character by character."""

    def __init__(self) -> None:
        self.place = Place()
        self.findings: list[Finding] = []
        self.urls: list[Named] = []
        self.styles: list[tuple[int, str]] = []
        self.elements: set[str] = set()
        self._open: list[_Block] = []

    def find(self, line: int, message: str) -> None:
        self.findings.append(Finding(line, message))

    def block(self, line: int, tokens: Sequence[Token]) -> None:
        word = tokens[0][1] if tokens else ""
        if word in _BLOCKS and not (word == "set" and ("operator", "=") in tokens):
            self._open.append(_Block(word, self.place))
            if word in _APART:
                self.place = Place()
        elif word in ("elif", "else") and self._open:
            block = self._open[-1]
            block.ends.append(self.place)
            block.is_whole = word == "else" and block.word == "if"
            self.place = block.start
        elif word.startswith("end") and self._open:
            self._close(line, self._open.pop())
        elif word in ("include", "import", "from") and self.place.state != "text":
            self.find(line, f"{word} stands inside of a tag; it may stand between elements only")
        elif word in ("autoescape", "do", "extends"):
            self.find(line, f"{word} is not for templates of documents")

    def _close(self, line: int, block: _Block) -> None:
        apart = block.word in _APART
        ways = [self.place, *block.ends]
        if not block.is_whole:
            # Without an else there is a way around the block, and a loop may have no turns.
            ways.append(Place() if apart else block.start)
        if len({(way.state, way.element, way.attribute, way.quote) for way in ways}) > 1:
            why = f"the ways through this {block.word} end in different places of the HTML"
            self.find(line, why)
        if apart:
            self.place = block.start

    def expression(self, line: int, tokens: Sequence[Token]) -> None:
        place, wrong = self.place, ""
        if place.state == "quoted":
            wrong = _in_attribute(place, tokens)
        elif place.state == "raw" and place.element == "style":
            if not _is_call(tokens, "css") and _last_filter(tokens) not in ("css_text", "bare"):
                wrong = "a variable in <style> must end with |css_text or |bare"
        elif place.state == "raw":
            wrong = f"a variable stands in <{place.element}>; put it into a data- attribute"
        elif place.state in ("unquoted", "equals"):
            wrong = "a variable stands in an attribute without quotes; put quotes around it"
        elif place.state == "comment":
            wrong = "a variable stands in an HTML comment; use {# #}"
        elif place.state != "text":
            wrong = "a variable stands inside of a tag; it may be text or a quoted value"
        if wrong:
            self.find(line, wrong)
        if place.state in ("quoted", "unquoted", "raw"):
            self.place = replace(place, value=place.value + "\0")
        elif place.state == "equals":
            self.place = replace(place, state="unquoted", value="\0")

    def feed(self, data: str, line: int) -> None:
        step: dict[str, Callable[[str, int], None]] = {
            "text": self._text, "open": self._opened, "tag": self._tag, "inside": self._inside,
            "name": self._name, "equals": self._equals, "quoted": self._quoted,
            "unquoted": self._unquoted, "comment": self._comment, "markup": self._markup,
            "raw": self._raw,
        }  # fmt: skip
        for character in data:
            step[self.place.state](character, line)
            line += character == "\n"

    def _text(self, character: str, line: int) -> None:
        if character == "<":
            self.place = Place("open", begun=line)

    def _opened(self, character: str, line: int) -> None:
        if character == "!":
            self.place = Place("markup", begun=line)
        elif character.isalpha() or character == "/":
            self.place = Place("tag", element=character.lower(), begun=line)
        else:
            self.place = Place()

    def _tag(self, character: str, line: int) -> None:
        if character in _SPACE or character == ">" or (character == "/" and self.place.element):
            self.place = replace(self.place, state="inside")
            self._inside(character, line)
        else:
            self.place = replace(self.place, element=self.place.element + character.lower())

    def _inside(self, character: str, line: int) -> None:
        if character == ">":
            element = self.place.element
            self.elements.add(element)
            self.place = Place("raw", element=element, begun=line) if element in RAW else Place()
        elif character == "=" and self.place.attribute:
            self.place = replace(self.place, state="equals", begun=line)
        elif character not in _SPACE + "/":
            place = self.place
            self.place = Place("name", place.element, character.lower(), begun=line)

    def _name(self, character: str, line: int) -> None:
        place = self.place
        if character == "=":
            self.place = replace(place, state="equals", begun=line)
        elif character in _SPACE + "/>":
            # The name stays known: an equals sign may follow after spaces.
            self.place = Place("inside", place.element, place.attribute, begun=line)
            self._inside(character, line)
        else:
            self.place = replace(place, attribute=place.attribute + character.lower())

    def _equals(self, character: str, line: int) -> None:
        if character in "\"'":
            self.place = replace(self.place, state="quoted", quote=character, begun=line)
        elif character == ">":
            self.place = Place("inside", self.place.element)
            self._inside(character, line)
        elif character not in _SPACE:
            self.place = replace(self.place, state="unquoted", value=character, begun=line)

    def _quoted(self, character: str, line: int) -> None:
        if character != self.place.quote:
            self.place = replace(self.place, value=self.place.value + character)
        else:
            self._valued()

    def _unquoted(self, character: str, line: int) -> None:
        if character in _SPACE + ">":
            self._valued()
            self._inside(character, line)
        else:
            self.place = replace(self.place, value=self.place.value + character)

    def _valued(self) -> None:
        place = self.place
        if place.attribute in URL_ATTRIBUTES and "\0" not in place.value[:1]:
            self.urls.append(Named(place.begun, place.value, place.element in LINKS))
        elif place.attribute == "srcset":
            for one in place.value.split(","):
                self.urls.append(Named(place.begun, one.strip().partition(" ")[0], False))
        elif place.attribute == "style":
            self.styles.append((place.begun, place.value))
        elif place.attribute == "http-equiv" and place.value.strip().lower() == "refresh":
            self.find(place.begun, "a document that is printed does not go elsewhere by itself")
        self.place = Place("inside", place.element)

    def _comment(self, character: str, line: int) -> None:
        value = (self.place.value + character)[-3:]
        self.place = Place() if value == "-->" else replace(self.place, value=value)

    def _markup(self, character: str, line: int) -> None:
        value = self.place.value + character
        if value == "--":
            self.place = Place("comment", begun=line)
        else:
            self.place = Place() if character == ">" else replace(self.place, value=value[:10])

    def _raw(self, character: str, line: int) -> None:
        place = self.place
        value = place.value + character
        ending = f"</{place.element}>"
        if not value.lower().endswith(ending):
            self.place = replace(place, value=value)
            return
        if place.element == "style":
            self.styles.append((place.begun, value[: -len(ending)]))
        self.place = Place()


def _in_attribute(place: Place, tokens: Sequence[Token]) -> str:
    """Say what is wrong with an expression in the value of an attribute, '' for nothing."""
    name, last = place.attribute, _last_filter(tokens)
    if name.startswith("on") or name in NEVER:
        return f"a variable stands in {name}, where it is more than a text"
    if name == "style" and last != "bare":
        return "a variable in a style attribute must end with |bare"
    if name in URL_ATTRIBUTES and not _is_call(tokens, "asset"):
        begins = not place.value.strip()
        if last != "url" and (begins or last != "urlencode"):
            return f"a variable in {name} must end with {'|url' if begins else '|urlencode'}"
    return ""


def _last_filter(tokens: Sequence[Token]) -> str:
    """Return the filter that all of an expression goes through at last; '' when there is none."""
    depth, top = 0, list[Token]()
    for kind, text in tokens:
        depth -= kind == "operator" and text in ")]}"
        if depth == 0:
            top.append((kind, text))
        depth += kind == "operator" and text in "([{"
    # `a if b else c|url` filters c alone, and `a ~ b|url` b alone.
    if any(k == "name" and t in ("if", "else", "and", "or", "not", "in", "is") for k, t in top):
        return ""
    if any(k == "operator" and t not in ("|", ".", "(", ")", "[", "]") for k, t in top):
        return ""
    if ("operator", "|") not in top:
        return ""
    after = [text for _, text in top[-top[::-1].index(("operator", "|")) :]]
    return after[0] if after[1:] in ([], ["(", ")"], [")"], ["("]) else ""


def _is_call(tokens: Sequence[Token], function: str) -> bool:
    """Tell whether an expression is one call of this function, of a text that is written there."""
    kinds = [kind for kind, _ in tokens]
    return kinds == ["name", "operator", "string", "operator"] and tokens[0][1] == function
