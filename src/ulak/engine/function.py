"""Durable jobs made of plain functions, calls of them, and jobs that follow the end of others."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Coroutine
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypeVar, overload

from ulak.clock import Duration, Instant
from ulak.core.flow import Flow, FlowOptions, names, pool_of
from ulak.core.intake import Submission
from ulak.core.job import JobRow, NewJob
from ulak.core.lifecycle import Lifecycle
from ulak.core.policy import Backoff, Limit, Rate
from ulak.core.run import Run
from ulak.engine.new_jobs import fit, make_job
from ulak.engine.view import Job
from ulak.engine.view import R as T
from ulak.errors import BadInput, FlowError
from ulak.store import codec

if TYPE_CHECKING:
    from ulak.engine.kernel import Kernel

A = ParamSpec("A")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

STAGE_OPTIONS = ("timeout", "limit", "rate", "isolate", "transaction", "queue")

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class JobOptions(FlowOptions, total=False):
    """The options of a job function, for type checkers: those of a flow and of its stage."""

    timeout: Duration
    limit: Limit | None
    rate: Rate | None
    isolate: Literal["process"] | None


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """A flow with its payload, or a job function with its arguments, ready to be submitted.

    Type checkers know `Call[int]`, a call of a function that returns an int.
    """

    flow: Flow[Any]
    payload: Any


class JobFunction(Generic[A, R_co]):
    """A function that can still be called, and submitted as a durable job.

    With `transaction=True` its first argument is the connection, which no submit names.
    """

    def __init__(
        self,
        function: Callable[..., R_co],
        flow: Flow[Any],
        signature: inspect.Signature,
        read: Callable[[Any], tuple[list[Any], dict[str, Any]]],
    ) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.flow = flow
        self._signature = signature
        self._read = read

    def __call__(self, *args: A.args, **kwargs: A.kwargs) -> R_co:
        return self.function(*args, **kwargs)

    @overload
    def bind(
        self: JobFunction[A, Coroutine[Any, Any, T]], *args: A.args, **kwargs: A.kwargs
    ) -> Call[T]: ...
    @overload
    def bind(self, *args: A.args, **kwargs: A.kwargs) -> Call[R_co]: ...
    def bind(self, *args: A.args, **kwargs: A.kwargs) -> Call[Any]:
        """Keep arguments for a submit; `BadInput` if the function cannot be called with them."""
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise BadInput(f"{self.flow.name}{self._signature}: {error}") from None
        return Call(self.flow, {"args": list(args), "kwargs": dict(kwargs)})

    def bind_plain(self, arguments: Any) -> Call:
        """Bind arguments as JSON carries them: an object by name, an array by position. `BadInput`:
        the function cannot be called with them, or not with their types."""
        bind: Callable[..., Call] = self.bind
        if arguments is None:
            call = bind()
        elif isinstance(arguments, dict):
            call = bind(**arguments)
        elif isinstance(arguments, list):
            call = bind(*arguments)
        else:
            raise BadInput(
                f"{self.flow.name}{self._signature}: write its arguments as an object, by name, "
                "or as an array, by position"
            )
        try:
            self._read(call.payload)
        except BadInput as error:
            raise BadInput(f"{self.flow.name}{self._signature}: {error}") from None
        return call

    def __repr__(self) -> str:
        return f"<job {self.flow.name}{self._signature}>"


def make_function(
    function: Callable[..., R], *, name: str | None, retry: int | Backoff, options: dict[str, Any]
) -> JobFunction[..., R]:
    """Expand a function into a flow of one stage: queued, then done."""
    staged = {k: options.pop(k) for k in STAGE_OPTIONS if k in options}
    lifecycle = Lifecycle("queued", {"queued": ["done"]})
    flow: Flow[Any] = Flow(name or function.__name__, lifecycle, retry=retry, **options)
    takes_connection = bool(staged.get("transaction"))
    signature = _signature_of(function, flow.name, takes_connection=takes_connection)
    call = _caller(function, signature)
    if pool_of(function) == "loop":

        async def run_async(run: Run[Any]) -> Any:
            args, kwargs = call(run.payload)
            return await function(*args, **kwargs)  # type: ignore[misc]

        stage: Callable[[Run[Any]], Any] = run_async
    else:

        def run_plain(run: Run[Any]) -> Any:
            args, kwargs = call(run.payload)
            if takes_connection:
                args = [run.connection, *args]
            return function(*args, **kwargs)

        stage = run_plain
    # Drawings show the function's name, and a child finds the stage by it.
    stage.__module__, stage.__name__ = function.__module__, function.__name__
    stage.__qualname__ = function.__qualname__
    flow.stage("queued", **staged)(stage)
    return JobFunction(function, flow, signature, call)


def _signature_of(
    function: Callable[..., Any], name: str, *, takes_connection: bool
) -> inspect.Signature:
    signature = inspect.signature(function)
    if not takes_connection:
        return signature
    parameters = list(signature.parameters.values())
    if not parameters or parameters[0].kind not in _POSITIONAL:
        raise FlowError(
            f"{name}: with transaction=True the first argument of the function is the "
            f"connection, as in def {name}(connection, ...)"
        )
    return signature.replace(parameters=parameters[1:])


def _caller(
    function: Callable[..., Any], signature: inspect.Signature
) -> Callable[[Any], tuple[list[Any], dict[str, Any]]]:
    """Return how stored arguments become the annotated types of the function again."""

    @functools.cache
    def hints() -> dict[str, Any]:
        try:
            return typing.get_type_hints(function)
        except (NameError, TypeError):
            return {}

    def call(payload: Any) -> tuple[list[Any], dict[str, Any]]:
        bound = signature.bind(*payload["args"], **payload["kwargs"])
        kinds = hints()
        for parameter in signature.parameters.values():
            plain = parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
            if plain and parameter.name in kinds and parameter.name in bound.arguments:
                value = bound.arguments[parameter.name]
                bound.arguments[parameter.name] = codec.convert(value, kinds[parameter.name])
        return list(bound.args), dict(bound.kwargs)

    return call


def named_call(kernel: Kernel, name: str, payload: Any, *, version: int | None = None) -> Call[Any]:
    """Return what `engine.submit` takes for a flow that is known by its name alone.

    Args:
        kernel: Where the flow is registered.
        name: Its name.
        payload: What the flow declares; of a job function its arguments, as an object by name
            or as an array by position.
        version: One of its versions; without it the newest.

    Raises:
        BadInput: there is no such flow or version, or a function cannot be called so.
    """
    versions = {f.version: f for f in kernel.flows if f.name == name}
    if not versions:
        known = sorted({f.name for f in kernel.flows})
        raise BadInput(f"there is no flow {name!r}; there are {names(known) if known else 'none'}")
    if version is not None and version not in versions:
        there = ", ".join(map(str, sorted(versions)))
        raise BadInput(f"{name} has no version {version}; registered are {there}")
    flow = versions[max(versions) if version is None else version]
    function = kernel.functions.get(flow)
    return Call(flow, payload) if function is None else function.bind_plain(payload)


@dataclass(frozen=True, slots=True)
class OnEnd:
    """Submit a job in the commit that ends another: `Flow(on_end=OnEnd(notify, payload=f))`.

    However the job ends, by its stage, an operator, a date or its last undo, one is submitted for
    each round and each final state. It has the tenant of the job that ended, and is not refused
    by an admission. If `payload` raises, the job ends all the same, with the event
    `on-end-failed`.

    Args:
        flow: The flow or the job function to submit.
        payload: A pure function of the ended job and its code (None when it ended well). It
            returns the payload, or `function.bind(...)`, or None to submit nothing.
    """

    flow: Flow[Any] | JobFunction[..., Any]
    _: KW_ONLY
    payload: Callable[[Job, str | None], Any]

    @property
    def target(self) -> Flow[Any]:
        """The flow of the job that follows."""
        return self.flow.flow if isinstance(self.flow, JobFunction) else self.flow

    def complaint(self) -> str | None:
        """Return what is wrong with the declaration, if anything is."""
        if not isinstance(self.flow, Flow | JobFunction):
            return f"on_end= submits {self.flow!r}, which is no flow; give a flow or a job function"
        if not callable(self.payload) or inspect.iscoroutinefunction(self.payload):
            return (
                f"on_end= makes its payload with {self.payload!r}; give a plain function of the "
                "job and its code"
            )
        return None

    def make(self, ended: JobRow, now: Instant, *, commit_id: bytes) -> NewJob | None:
        """Make the job that follows this end, or None for none."""
        made = self.payload(Job(ended), ended.code)
        if made is None:
            return None
        if isinstance(self.flow, JobFunction) and not isinstance(made, Call):
            made = self.flow.bind(made)
        if isinstance(made, Call):
            if made.flow is not self.target:
                raise BadInput(f"{made.flow!r} was bound, and {self.target!r} is submitted")
            made = made.payload
        submission = Submission(tenant=ended.tenant)
        return make_job(self.target, fit(self.target, made), submission, now, commit_id=commit_id)
