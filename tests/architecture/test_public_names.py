"""The public names are few, typed, documented, and those of docs/reference/."""

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import ulak
from tests.architecture.contract import PUBLIC, public_names
from ulak import errors

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
API = REFERENCE / "api.md"
MOST_NAMES = 34


def documented() -> list[str]:
    """The names that have a heading of their own in the reference, in its order."""
    return re.findall(r"^### `(\w+)`$", API.read_text(encoding="utf-8"), re.M)


def public_functions(name: str) -> Iterator[tuple[str, Callable[..., object]]]:
    """What a public name lets a program call: itself, or its public methods."""
    thing = getattr(ulak, name)
    if inspect.isfunction(thing):
        yield name, thing
    elif inspect.isclass(thing):
        for attribute, value in inspect.getmembers(thing):
            function = inspect.unwrap(value) if callable(value) else value
            if isinstance(value, property):
                function = value.fget
            ours = getattr(function, "__module__", "") or ""
            if not attribute.startswith("_") and inspect.isfunction(function) and "ulak" in ours:
                yield f"{name}.{attribute}", function


def test_there_are_few_public_names() -> None:
    assert len(ulak.__all__) <= MOST_NAMES
    assert len(set(ulak.__all__)) == len(ulak.__all__)


def test_the_reference_describes_exactly_the_public_names() -> None:
    assert sorted(documented()) == sorted(ulak.__all__)


@pytest.mark.parametrize("module", [name for name in PUBLIC if name != "ulak"])
def test_the_reference_describes_exactly_the_names_for_services(module: str) -> None:
    page = (REFERENCE / "services.md").read_text(encoding="utf-8")
    section = page.partition(f"\n## `{module}`\n")[2].partition("\n## ")[0]
    described = re.findall(r"^\| `(\w+)` \| \S", section, re.M)
    names = set(public_names(module) or ())
    if module == "ulak.errors":  # what is described in api.md is not described twice
        names -= {
            name for name in ulak.__all__ if getattr(errors, name, None) is getattr(ulak, name)
        }
    assert described == sorted(names)


@pytest.mark.parametrize("name", ulak.__all__)
def test_a_public_name_says_what_it_promises(name: str) -> None:
    said = inspect.getdoc(getattr(ulak, name))
    assert said
    assert not said.startswith(f"{name}("), "a dataclass without a docstring shows its signature"
    for called, function in public_functions(name):
        assert inspect.getdoc(function), called


@pytest.mark.parametrize("name", ulak.__all__)
def test_a_public_name_is_typed(name: str) -> None:
    for called, function in public_functions(name):
        signature = inspect.signature(function)
        untyped = [
            p.name
            for p in signature.parameters.values()
            if p.annotation is p.empty and p.name not in ("self", "cls")
        ]
        assert untyped == [], called
        assert signature.return_annotation is not signature.empty, called
