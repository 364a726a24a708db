"""Mutations of one source: four ways to break a line inside a function.

Left alone are docstrings, annotations, `__repr__`, log lines, `assert`, `raise
NotImplementedError`, blocks for type checkers and text with spaces in it: sentences and SQL.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

KINDS = ("negate", "drop", "constant", "return")


@dataclass(frozen=True, slots=True)
class Mutation:
    """One small change of a source."""

    kind: str
    statement_line: int
    """Where the statement begins: the line that a test must execute."""
    line: int
    """Where the change is."""
    start: int
    end: int
    """The bytes that are replaced."""
    replacement: str
    before: str
    """The changed line as it was ..."""
    after: str
    """... and as it is, both without indentation."""

    def apply(self, source: str) -> str:
        """Return the source with this change."""
        data = source.encode()
        return (data[: self.start] + self.replacement.encode() + data[self.end :]).decode()


def find_mutations(source: str) -> list[Mutation]:
    """Return every mutation of a source, in the order of its lines."""
    scribe = _Scribe(source)
    for node in ast.parse(source).body:
        scribe.visit(node)
    return scribe.found


def is_fit(source: str, mutation: Mutation) -> bool:
    """Tell whether a mutation of a source compiles and differs from it."""
    mutated = mutation.apply(source)
    try:
        compile(mutated, "mutant", "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return ast.dump(ast.parse(mutated)) != ast.dump(ast.parse(source))


class _Scribe(ast.NodeVisitor):
    """Walks a module and writes down what can be changed inside its functions."""

    def __init__(self, source: str) -> None:
        self.found: list[Mutation] = []
        self._data = source.encode()
        self._starts = [0]
        for line in self._data.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._functions: list[ast.AST] = []

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        if node.name == "__repr__":
            return
        self._functions.append(node)
        for statement in node.body:
            self.visit(statement)
        self._functions.pop()

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815 - the name that ast calls

    def visit_If(self, node: ast.If) -> None:
        if not any(_is_named(part, "TYPE_CHECKING") for part in ast.walk(node.test)):
            self.generic_visit(node)

    def generic_visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.stmt) and self._functions and not _is_log_line(node):
            self._statement(node)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
                self.visit(child)

    def _statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.If | ast.While):
            self._negate(node, node.test)
        if _can_be_dropped(node):
            self._add("drop", node, node, "pass")
        if isinstance(node, ast.Return):
            if node.value is not None and not _is_constant(node.value, None):
                self._add("return", node, node, "return None")
        elif _is_simple(node) and node is not self._functions[-1].body[-1]:
            self._add("return", node, node, "return")
        if not isinstance(node, ast.Assert):
            for expression in _own_expressions(node):
                self._expression(node, expression)

    def _expression(self, node: ast.stmt, expression: ast.expr) -> None:
        for part in _walk(expression):
            if isinstance(part, ast.IfExp):
                self._negate(node, part.test)
            elif isinstance(part, ast.comprehension):
                for test in part.ifs:
                    self._negate(node, test)
            elif isinstance(part, ast.Constant):
                swapped = _swap(part.value, is_text=not isinstance(node, ast.Raise))
                if swapped is not None:
                    self._add("constant", node, part, swapped)

    def _negate(self, node: ast.stmt, test: ast.expr) -> None:
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            self._add("negate", node, test, self._text(test.operand))
        else:
            self._add("negate", node, test, f"not ({self._text(test)})")

    def _add(self, kind: str, statement: ast.stmt, part: ast.stmt | ast.expr, text: str) -> None:
        start, end = self._span(part)
        first, last = self._starts[part.lineno - 1], self._starts[part.end_lineno or part.lineno]
        after = (self._data[first:start] + text.encode() + self._data[end:last]).decode()
        before = self._data[first : self._starts[part.lineno]].decode()
        self.found.append(
            Mutation(
                kind,
                statement.lineno,
                part.lineno,
                start,
                end,
                text,
                before.strip(),
                after.strip().splitlines()[0],
            )
        )

    def _span(self, part: ast.stmt | ast.expr) -> tuple[int, int]:
        return (
            self._starts[part.lineno - 1] + part.col_offset,
            self._starts[(part.end_lineno or part.lineno) - 1] + (part.end_col_offset or 0),
        )

    def _text(self, part: ast.expr) -> str:
        start, end = self._span(part)
        return self._data[start:end].decode()


def _is_named(node: ast.AST | None, *names: str) -> bool:
    return (isinstance(node, ast.Name) and node.id in names) or (
        isinstance(node, ast.Attribute) and node.attr in names
    )


def _is_constant(node: ast.AST, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def _is_log_line(node: ast.stmt) -> bool:
    value = node.value if isinstance(node, ast.Expr) else None
    return (
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Attribute)
        and _is_named(value.func.value, "log", "_log", "logger", "logging")
    )


def _is_simple(node: ast.stmt) -> bool:
    """Tell whether a statement does something and goes on with the next."""
    if isinstance(node, ast.Expr):
        return not isinstance(node.value, ast.Constant | ast.Yield | ast.YieldFrom)
    return isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Delete)


def _can_be_dropped(node: ast.stmt) -> bool:
    if isinstance(node, ast.Raise):
        call = node.exc
        name = call.func if isinstance(call, ast.Call) else call
        return not _is_named(name, "NotImplementedError")
    if isinstance(node, ast.AnnAssign) and node.value is None:
        return False
    # A local name that is never set fails whoever reads it: every test would catch that.
    match node:
        case ast.Assign(targets=targets) | ast.Delete(targets=targets):
            return not any(isinstance(target, ast.Name | ast.Tuple) for target in targets)
        case ast.AnnAssign(target=target):
            return not isinstance(target, ast.Name)
        case _:
            return _is_simple(node)


def _own_expressions(node: ast.stmt) -> Iterator[ast.expr]:
    """Yield the expressions of a statement, without those of its body and its annotation."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return
    for name, field in ast.iter_fields(node):
        for value in field if isinstance(field, list) else [field]:
            if isinstance(value, ast.withitem):
                yield value.context_expr
            elif isinstance(value, ast.expr) and name != "annotation":
                yield value


def _walk(expression: ast.AST) -> Iterator[ast.AST]:
    """Walk an expression, without the text of f-strings and the types of casts."""
    yield expression
    if isinstance(expression, ast.JoinedStr):
        return
    children = list(ast.iter_child_nodes(expression))
    if isinstance(expression, ast.Call) and _is_named(expression.func, "cast", "TypeVar"):
        children = children[2:]
    for child in children:
        yield from _walk(child)


def _swap(value: object, *, is_text: bool) -> str | None:
    match value:
        case bool():
            return str(not value)
        case int() | float():
            return repr(value + 1)
        # A word decides something; a sentence or a statement is read by somebody else.
        case str() if is_text and not any(map(str.isspace, value)):
            return '"mutant"' if value != "mutant" else '"other"'
        case _:
            return None
