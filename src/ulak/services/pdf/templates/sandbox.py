"""Where templates run: escaped, strict about names, without a way out, and bounded.

A count bounds them, not a clock: the same template with the same variables ends the same way on
every machine.
"""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final
from urllib.parse import quote

from jinja2 import BaseLoader, StrictUndefined, TemplateNotFound, TemplateRuntimeError, nodes
from jinja2.environment import TemplateModule
from jinja2.filters import FILTERS as DEFAULT_FILTERS
from jinja2.runtime import Context, LoopContext, TemplateReference, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer
from markupsafe import Markup, escape

from ulak.services.pdf.templates.folder import TEXTS, Template
from ulak.services.pdf.templates.formats import Unwritable, Writer, bare, css_text

MOST_STEPS: Final = 1_000_000
"""Turns of all loops of one document together, those of filters over items included."""
MOST_CHARACTERS: Final = 5 * 1024 * 1024
"""Of any text that is put together on the way."""
MOST_IN_STYLE: Final = 2_000
"""Of a text in a style sheet, which is printed in one line, on each page perhaps."""
MOST_BITS: Final = 4_096
"""Of any number that is."""
FILENAME: Final = "<template>/"
"""How the files of a template begin in tracebacks, by which a line is found."""

# A name with a space is out of reach of templates.
_COUNTED: Final = " counted"
_JOINED: Final = " joined"
_BOUNDED: Final = " bounded"
_SLICED: Final = " sliced"
_UNESCAPED: Final = " unescaped"

_KEPT: Final = (
    "abs", "dictsort", "float", "groupby", "int", "items", "list", "map",
    "max", "min", "reject", "rejectattr", "select", "selectattr", "sort", "sum", "unique",
)  # fmt: skip
"""Filters of Jinja that templates have as they are. What is not named here they do not have:
`safe` among it, and whatever makes markup of its own."""
_ON_TEXT: Final = ("first", "last", "length", "reverse", "trim", "truncate")
"""Those that look into a text, and so must see the text itself and not its entities."""

_SCHEME: Final = re.compile(r"(https?|mailto|tel):", re.IGNORECASE)
_IMAGE: Final = re.compile(r"data:image/(png|jpeg|gif|webp);base64,[A-Za-z0-9+/=]*")


class OverLimit(TemplateRuntimeError):
    """A template takes more than a document may."""


class Sandbox(ImmutableSandboxedEnvironment):
    """The environment of one template: its own files, and nothing else.

    A value has items and no methods: `order.items` is the item of that name, never Python's. What
    is none, as a variable that may be absent, prints as nothing, with filters and without.
    """

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, template: Template) -> None:
        super().__init__(
            autoescape=True,
            undefined=StrictUndefined,
            finalize=_shown,
            loader=_Folder(template),
            trim_blocks=True,
            lstrip_blocks=True,
            cache_size=-1,
            auto_reload=False,
        )
        self._here = threading.local()
        filters = _filters(Writer(template.manifest.language))
        self.filters = {name: self._charged(one) for name, one in filters.items()} | {
            _COUNTED: self._counted,
            _JOINED: _joined,
            _BOUNDED: _bounded,
            _SLICED: _sliced,
            _UNESCAPED: _unescaped,
        }
        self.globals = {
            "asset": functools.cache(lambda path: Markup(template.asset(path))),  # noqa: S704
            "css": functools.cache(lambda path: Markup(template.css(path))),  # noqa: S704
            "namespace": Namespace,
            "range": self._range,
        }

    def begin(self) -> None:
        """Begin a rendering in this thread, with all of its turns."""
        self._here.left = MOST_STEPS

    def _spend(self, steps: int = 1) -> None:
        self._here.left -= steps
        if self._here.left < 0:
            raise OverLimit(f"its loops take more than {MOST_STEPS} turns")

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Return an item by its name, or what is undefined."""
        if isinstance(obj, dict):
            return obj[attribute] if attribute in obj else self.undefined(name=attribute)
        inner = (LoopContext, Namespace, TemplateModule, TemplateReference, Undefined)
        if isinstance(obj, inner):
            return super().getattr(obj, attribute)
        return self.undefined(name=attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Return an item by its place, or what is undefined; its name may be a value, so it is
        not told."""
        if isinstance(obj, Undefined):
            return super().getitem(obj, argument)
        try:
            if isinstance(obj, dict | list | tuple):
                return obj[argument]
            if isinstance(obj, str):
                return _raw(obj)[argument]
        except (LookupError, TypeError):
            pass
        return self.undefined("an item is not there")

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute, unless the result would be too large."""
        sizes = [len(one) for one in (left, right) if isinstance(one, str | list | tuple)]
        if operator == "%" and isinstance(left, str):
            raise OverLimit("texts are not formatted with %; use filters")
        if operator == "*" and sizes:
            times = right if isinstance(right, int) else left
            too_large = isinstance(times, int) and sizes[0] * times > MOST_CHARACTERS
        elif sizes:
            too_large = sum(sizes) > MOST_CHARACTERS
        else:
            too_large = _bits(operator, left, right) > MOST_BITS
        if too_large:
            raise OverLimit(f"{operator!r} makes more than a document may hold")
        return super().call_binop(context, operator, left, right)

    def call(*arguments: Any, **named: Any) -> Any:
        """Call a macro or a function, and bound what it answers."""
        answer = ImmutableSandboxedEnvironment.call(*arguments, **named)
        return _bounded(answer) if isinstance(answer, str) else answer

    def _generate(self, source: nodes.Template, *arguments: Any, **named: Any) -> str:
        return super()._generate(_Rewriting().visit(source), *arguments, **named)

    def _counted(self, items: Iterable[Any] | None) -> Iterator[Any]:
        for item in _unescaped(_shown(items)):
            self._spend()
            yield item

    def _charged(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Let a filter that walks over items take as many turns as a loop would."""

        @functools.wraps(function)  # with Jinja's marks, which stand on the function
        def charged(*arguments: Any, **named: Any) -> Any:
            # Not begun while the template is compiled: what is computed then stands in its source.
            if hasattr(self._here, "left"):
                for argument in arguments:
                    if isinstance(argument, list | tuple | dict | range):
                        self._spend(len(argument))
            return function(*arguments, **named)

        return charged

    def _range(self, *bounds: int) -> range:
        try:
            made = range(*bounds)
            size = len(made)
        except (TypeError, ValueError, OverflowError):
            raise OverLimit("range takes from one to three whole numbers") from None
        self._spend(size)
        return made


class _Rewriting(NodeTransformer):
    """Puts a bound around everything that can grow while a template runs, and shows texts as they
    are to what compares them or looks into them: an escaped one would differ."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 - the visitor's name
        self.generic_visit(node)
        node.iter = _through(_COUNTED, node.iter)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802 - as above
        self.generic_visit(node)
        parts = nodes.List(node.nodes, lineno=node.lineno, environment=node.environment)
        return _through(_JOINED, parts)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802 - as above
        self.generic_visit(node)
        if not isinstance(node.arg, nodes.Slice):
            return node
        # Jinja slices without asking the environment.
        ends = [
            end or nodes.Const(None, lineno=node.lineno, environment=node.environment)
            for end in (node.arg.start, node.arg.stop, node.arg.step)
        ]
        return _through(_SLICED, node.node, *ends)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802 - as above
        self.generic_visit(node)
        node.expr = _through(_UNESCAPED, node.expr)
        for operand in node.ops:
            operand.expr = _through(_UNESCAPED, operand.expr)
        return node

    def visit_AssignBlock(self, node: nodes.AssignBlock) -> nodes.Node:  # noqa: N802 - as above
        self.generic_visit(node)
        # The innermost filter of a block has no node below it.
        node.filter = nodes.Filter(
            node.filter, _BOUNDED, [], [], None, None, lineno=node.lineno,
            environment=node.environment,
        )  # fmt: skip
        return node


class _Folder(BaseLoader):
    """Loads the texts of one template, as they were when it was read."""

    def __init__(self, template: Template) -> None:
        self._template = template

    def get_source(
        self, environment: Any, template: str
    ) -> tuple[str, str | None, Callable[[], bool] | None]:
        if template not in self._template.files or not template.endswith(TEXTS):
            raise TemplateNotFound(template)
        return self._template.text(template), FILENAME + template, None


def safe_url(value: Any) -> Markup:
    """Return a value that may stand where a URL does: http, https, mailto, tel, `#part`, or an
    image as data:; nothing of none. Raises Unwritable: it is none of these."""
    if value is None:
        return Markup("")
    text = _raw(value)
    hidden = any(c <= " " or c == "\\" or "\x7f" <= c <= "\x9f" for c in text)
    if hidden or not (_SCHEME.match(text) or text.startswith("#") or _IMAGE.fullmatch(text)):
        raise Unwritable("|url was given what is no http, https, mailto or tel URL")
    return escape(text)


def _filters(writer: Writer) -> dict[str, Callable[..., Any]]:
    kept: dict[str, Callable[..., Any]] = {name: DEFAULT_FILTERS[name] for name in _KEPT}
    raw = {name: _on_raw(DEFAULT_FILTERS[name]) for name in _ON_TEXT}
    ours: dict[str, Callable[..., Any]] = {
        "bare": _on_raw(bare),
        "capitalize": _on_raw(writer.capitalize),
        "css_text": _css_text,
        "date": _on_raw(writer.date),
        "default": _default,
        "escape": lambda value: escape(_shown(value)),
        "join": _join,
        "lower": _on_raw(writer.lower),
        "money": _on_raw(writer.money),
        "number": _on_raw(writer.number),
        "percent": _on_raw(writer.percent),
        "replace": _replace,
        "round": _round,
        "title": _on_raw(writer.title),
        "upper": _on_raw(writer.upper),
        "url": safe_url,
        "urlencode": lambda value: quote(_raw(value), safe=""),
    }
    every = kept | raw | ours
    return every | {"count": every["length"], "d": every["default"], "e": every["escape"]}


def _shown(value: Any) -> Any:
    """Return what is printed of a value: of none, which Python would name, nothing."""
    return "" if value is None else value


def _default(value: Any, default_value: Any = "", boolean: bool = False) -> Any:
    is_absent = value is None or isinstance(value, Undefined)
    return default_value if is_absent or (boolean and not value) else value


def _raw(value: Any) -> str:
    """Return a text as it was before it was escaped."""
    return str(value.unescape()) if isinstance(value, Markup) else str(_shown(value))


def _unescaped(value: Any) -> Any:
    return _raw(value) if isinstance(value, Markup) else value


def _sliced(value: Any, start: Any, stop: Any, step: Any) -> Any:
    if isinstance(value, Undefined):
        str(value)  # says which name is missing
    return _unescaped(value)[start:stop:step]


def _on_raw(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let a filter see the text itself; what it answers is escaped again, once."""

    # Jinja's marks (`pass_environment`) stand on the function, and the value is then the second.
    passed = hasattr(function, "jinja_pass_arg")

    @functools.wraps(function)
    def filtered(*arguments: Any, **named: Any) -> Any:
        place = 1 if passed else 0
        value = arguments[place]
        if isinstance(value, Undefined):
            str(value)  # says which name is missing
        if value is None:
            return None
        return function(*arguments[:place], _unescaped(value), *arguments[place + 1 :], **named)

    return filtered


def _css_text(value: Any) -> Markup:
    # Two quotes, and between them letters, digits and backslashes: nothing that ends a style
    # element, which is the only place that `positions` lets it stand in.
    text = _raw(value)
    if len(text) > MOST_IN_STYLE:
        raise OverLimit(f"|css_text takes up to {MOST_IN_STYLE} characters")
    return Markup(css_text(text))  # noqa: S704


def _join(values: Iterable[Any], between: Any = "", attribute: str | None = None) -> Markup:
    if attribute is not None:
        values = [one[attribute] for one in values]
    return _joined([part for one in values for part in (between, one)][1:])


def _joined(parts: Iterable[Any]) -> Markup:
    texts = [escape(str(part) if isinstance(part, Undefined) else _shown(part)) for part in parts]
    if sum(map(len, texts)) > MOST_CHARACTERS:
        raise OverLimit("a text is longer than a document may be")
    return Markup("").join(texts)


def _bounded(text: Any) -> Any:
    if len(text) > MOST_CHARACTERS:
        raise OverLimit("a text is longer than a document may be")
    return text


def _replace(value: Any, old: Any, new: Any) -> str:
    text, old, new = _raw(value), _raw(old), _raw(new)
    if text.count(old) * len(new) > MOST_CHARACTERS:
        raise OverLimit("a text is longer than a document may be")
    return text.replace(old, new)


def _round(value: Any, digits: int = 0) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= digits <= 15:
        raise Unwritable("|round takes a number, and from 0 to 15 decimals")
    return round(float(value), digits)


def _through(name: str, node: nodes.Node, *arguments: nodes.Expr) -> nodes.Filter:
    where = {"lineno": node.lineno, "environment": node.environment}
    return nodes.Filter(node, name, list(arguments), [], None, None, **where)


def _bits(operator: str, left: Any, right: Any) -> int:
    """Tell how large a whole number can become."""
    if not isinstance(left, int) or not isinstance(right, int):
        return 0
    if operator == "**":
        return left.bit_length() * max(0, right)
    return left.bit_length() + right.bit_length()
