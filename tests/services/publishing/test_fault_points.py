"""Every await, HTTP call, submit and transaction of the saga has a point before and after it.

The list of points is read from the sources. Whole sagas, each part a process of its own, must pass
every one of them, in the part in which `test_fault_matrix.py` kills the process there.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

from bench.publishing.blog import Blog
from tests.services.publishing.plays import PLAYS, POINTS, both, cells
from ulak.services import publishing
from ulak.services.publishing.backend import CALLS

FOLDER = Path(publishing.__file__).parent
MODULES = (
    "tasks", "handling", "backend", "queue", "dead_letters", "saga", "articles", "notifications",
)  # fmt: skip
WATCHED = frozenset({"submit", "retry", "expire", "writing", "request", "stream"})
"""Calls that change something, or ask something over HTTP; each await counts as well."""
A_BY_NAME = "step(name)"
"""In `Backend.call`: the step is called as the call is."""

BARE = {
    ("handling", "opened", "async with"): "opens and closes a client; nothing is sent",
    ("notifications", "_deliver", "async with"): "closes a client; nothing is sent",
    ("articles", "publish", "writing"): "the transaction begins in the step `posts.publish`",
    ("handling", "handle", "await"): "awaits the handler that is declared, which is looked at",
    ("tasks", "notify", "await"): "awaits `Notifications.run`, which is looked at",
}
"""What stands in no step, and why that is right."""


class Walk(ast.NodeVisitor):
    """Finds the steps of a module, and what changes something outside of every step."""

    def __init__(self, module: str, own: frozenset[str]) -> None:
        self._module = module
        self._own = own
        self._functions = [""]
        self._is_inside = False
        self.steps: list[str] = []
        self.bare: list[tuple[str, str, str]] = []

    def visit_With(self, node: ast.With) -> None:
        before = self._is_inside
        for item in node.items:
            self.visit(item.context_expr)
            if _calls(item.context_expr, "step"):
                self.steps.append(_name_of(item.context_expr))
                self._is_inside = True
        for each in node.body:
            self.visit(each)
        self._is_inside = before

    def visit_AsyncWith(self, node: ast.AsyncWith) -> None:
        self._note("async with")
        self.generic_visit(node)

    def visit_AsyncFor(self, node: ast.AsyncFor) -> None:
        self._note("async for")
        self.generic_visit(node)

    def visit_Await(self, node: ast.Await) -> None:
        # A coroutine of the saga's own is looked at where it is written.
        if not isinstance(node.value, ast.Call) or _name_called(node.value) not in self._own:
            self._note("await")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Attribute) and node.func.attr in WATCHED:
            self._note(node.func.attr)
        self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._visit_function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._visit_function(node)

    def _visit_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        # Its body runs elsewhere than where it is written.
        before, self._is_inside = self._is_inside, False
        self._functions.append(node.name)
        self.generic_visit(node)
        self._functions.pop()
        self._is_inside = before

    def _note(self, what: str) -> None:
        if not self._is_inside:
            self.bare.append((self._module, self._functions[-1], what))


def _calls(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name


def _name_of(node: ast.expr) -> str:
    assert isinstance(node, ast.Call)
    (said,) = node.args
    return str(said.value) if isinstance(said, ast.Constant) else ast.unparse(node)


def _name_called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)


def read_sources() -> Iterator[Walk]:
    trees = {name: ast.parse((FOLDER / f"{name}.py").read_text()) for name in MODULES}
    own = frozenset(
        node.name
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.AsyncFunctionDef)
    )
    for name, tree in trees.items():
        walk = Walk(name, own)
        walk.visit(tree)
        yield walk


def steps_in_sources() -> list[str]:
    """Every step of the saga, by its name. Of what authors do only `publish` is a part of it."""
    said = list(chain.from_iterable(walk.steps for walk in read_sources()))
    assert said.count(A_BY_NAME) == 1
    said.remove(A_BY_NAME)
    ours = [name for name in said if not name.startswith("posts.") or name == "posts.publish"]
    return [*ours, *CALLS]


def others_in_sources() -> set[str]:
    said = set(chain.from_iterable(walk.steps for walk in read_sources()))
    return said - {A_BY_NAME, *steps_in_sources()}


def test_whatever_changes_something_stands_in_a_step() -> None:
    bare = Counter(chain.from_iterable(walk.bare for walk in read_sources()))
    assert bare == Counter(dict.fromkeys(BARE, 1))


def test_no_two_places_have_the_same_step() -> None:
    assert [name for name, n in Counter(steps_in_sources()).items() if n > 1] == []


def test_the_matrix_has_every_point_of_the_sources() -> None:
    assert set(POINTS) == set(steps_in_sources())


@pytest.mark.parametrize(
    "way",
    # Beside, the same points are passed, by fewer processes.
    [pytest.param("beside", marks=pytest.mark.sampled), "apart"],
)
@pytest.mark.shows("S-7", "S-36")
def test_whole_sagas_pass_every_point_where_the_matrix_kills(blog: Blog, way: str) -> None:
    traces = {name: blog.folder / f"{name}.trace" for name in blog.names}
    blog.start(*blog.names, trace=str(blog.folder / "PART.trace"))
    wrong = [f"{play}: {what}" for play, act in PLAYS.items() for what in act(blog).wrong()]
    assert wrong == []
    for name in blog.names:
        assert blog.stop(name) == 0, blog.folder
    passed = {name: set(path.read_text().splitlines()) for name, path in traces.items()}
    ours = set(both(*(name for name, cell in POINTS.items() if way in cell.ways)))
    others = set(both(*others_in_sources()))
    fired = {point for each in passed.values() for point in each if point.startswith("publishing")}
    assert fired - others == ours
    missed = [str(cell) for cell in cells(way) if cell.point not in passed[cell.part]]
    assert missed == []
