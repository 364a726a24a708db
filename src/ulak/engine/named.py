"""A submission in words: the name of a flow and a payload as JSON carries it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ulak.core.flow import Flow, names
from ulak.engine.function import Call
from ulak.errors import BadInput

if TYPE_CHECKING:
    from ulak.engine.kernel import Kernel


def named_call(kernel: Kernel, flow: str, payload: Any, *, version: int | None = None) -> Call:
    """Return what `engine.submit` takes for a flow that is known by its name alone.

    Args:
        kernel: Where the flow is registered.
        flow: Its name.
        payload: What the flow declares; of a job function its arguments, as an object by name
            or as an array by position.
        version: One of its versions; without it the newest.

    Raises:
        BadInput: there is no such flow or version, or a function cannot be called so.
    """
    found = _named(kernel, flow, version)
    function = kernel.functions.get(found)
    return Call(found, payload) if function is None else function.bind_plain(payload)


def _named(kernel: Kernel, name: str, version: int | None) -> Flow[Any]:
    versions = {f.version: f for f in kernel.flows if f.name == name}
    if not versions:
        known = sorted({f.name for f in kernel.flows})
        raise BadInput(f"there is no flow {name!r}; there are {names(known) if known else 'none'}")
    if version is None:
        return versions[max(versions)]
    if version not in versions:
        there = ", ".join(map(str, sorted(versions)))
        raise BadInput(f"{name} has no version {version}; registered are {there}")
    return versions[version]
