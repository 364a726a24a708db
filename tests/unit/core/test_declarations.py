"""A declaration that cannot work is refused before anything runs, and the sentence mends it."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from ulak.core.flow import Flow
from ulak.core.lifecycle import SAME, Lifecycle
from ulak.core.policy import SUBMITTER, Backoff, Dedup, Limit, LimitTerms, Until
from ulak.errors import FlowError

HOUR = timedelta(hours=1)
TWO = {"a": ["b"], "b": ["done"]}


def work(run: object) -> None: ...


def undo(run: object) -> None: ...


async def async_work(run: object) -> None: ...


@dataclass
class Card:
    number: str


@dataclass
class GiftCard(Card):
    motto: str


def two(life: dict | None = None, moves: dict | None = None, **options: object) -> Flow:
    """A flow with the stages "a" and "b" that then is done; each test spoils one thing of it."""
    flow: Flow = Flow("orders", Lifecycle("a", moves or TWO, **(life or {})), **options)
    flow.stage("a")(work)
    flow.stage("b")(work)
    return flow


def bare(moves: dict, **life: object) -> Flow:
    return Flow("orders", Lifecycle(next(iter(moves)), moves, **life))


def staged(moves: dict, *states: str, **options: object) -> Flow:
    """A flow with stages for these states; the options go to the first of them."""
    flow = bare(moves)
    for n, state in enumerate(states):
        flow.stage(state, **(options if n == 0 else {}))(work)
    return flow


def limited_state(**life: object) -> Flow:
    """A flow whose first stage has a busy state with a slot of its own."""
    flow: Flow = Flow("orders", Lifecycle("a", DURING, **life))
    flow.stage("a", during="running", limit=Limit(1, of="state"))(work)
    flow.stage("b")(work)
    return flow


def preceded(moves: dict, *functions: Callable, **options: object) -> Flow:
    """A flow of whose first stage something is called before."""
    flow = staged(moves, "a", "b", **options)
    for function in functions:
        flow.declared.stages[0].before(function)
    return flow


def gated(**options: object) -> Flow:
    flow = bare({"review": ["approved"], "approved": ["done"]})
    flow.stage("approved")(work)
    flow.gate(**{"state": "review", "choices": {"yes": "approved"}, **options})
    return flow


def waiting(life: dict | None = None, **options: object) -> Flow:
    moves = {"a": ["paid"], "paid": ["done"], "done": ["gone"], "gone": ["a"]}
    flow: Flow = Flow("orders", Lifecycle("a", moves, done=["done", "gone"], **(life or {})))
    flow.stage("paid")(work)
    flow.wait(**{"state": "a", **options})
    if options.get("state", "a") != "a":
        flow.stage("a")(work)
    return flow


def undone(life: dict | None = None, moves: dict | None = None) -> Flow:
    flow: Flow = Flow("orders", Lifecycle("a", moves or TWO, **(life or {})))
    flow.stage("a")(work).undo(undo)
    flow.stage("b")(work)
    return flow


def undo_that_waits(wait: Any) -> Flow:
    flow = bare({"a": ["done"]})
    flow.stage("a")(work).undo(wait=wait)(undo)
    return flow


def isolated_lambda() -> Flow:
    flow = bare({"a": ["done"]})
    flow.stage("a", isolate="process")(lambda run: None)
    return flow


def isolated_async() -> Flow:
    flow = bare({"a": ["done"]})
    flow.stage("a", isolate="process")(async_work)
    return flow


def transactional_async() -> Flow:
    flow = bare({"a": ["done"]})
    flow.stage("a", transaction=True)(async_work)
    return flow


def two_undos() -> Flow:
    flow = bare({"a": ["done"]})
    stage = flow.stage("a")(work)
    stage.undo(undo)
    stage.undo(undo)
    return flow


def gate_and_stage() -> Flow:
    flow = gated()
    flow.stage("review")(work)
    return flow


def declared_after_the_check() -> Flow:
    flow = two()
    assert flow.table
    flow.stage("c")
    flow.gate("c", choices={})
    return flow


DURING = {"a": ["running"], "running": ["b"], "b": ["done"]}

BAD: dict[str, tuple[Callable[[], Flow], list[str]]] = {
    "undo that waits too long": (
        lambda: undo_that_waits(timedelta(hours=1)),
        ["orders", 'undo of "a"', "1:00:00", "0:15:00", "say less"],
    ),
    "undo that waits for a text": (
        lambda: undo_that_waits("soon"),
        ["orders", 'wait= of the undo of "a"', "soon"],
    ),
    "flow name": (lambda: Flow("two words", Lifecycle("a", TWO)), ["'two words'", "letters"]),
    "queue name": (lambda: two(queue="a/b"), ["orders", "'a/b'", "letters"]),
    "state name": (lambda: bare({"a b": ["done"]}), ["orders", "'a b'", "letters"]),
    "version": (lambda: two(version=0), ["orders", "count from 1"]),
    "initial without moves": (
        lambda: Flow("orders", Lifecycle("start", TWO)),
        ["orders", '"start"', "has no moves", "give it a line"],
    ),
    "initial is an end": (
        lambda: bare({"held": ["a"], "a": ["done"]}),
        ["orders", '"held"', "cannot begin", "begin in a state"],
    ),
    "no success": (lambda: two({"done": []}), ["orders", "no state means success", "done="]),
    "two roles": (
        lambda: two({"failed": "done"}),
        ["orders", '"done"', "both done and failed", "one role"],
    ),
    "unknown target": (
        lambda: staged({"a": ["shipped"]}, "a"),
        ["orders", '"shipped"', "does not know", "done="],
    ),
    "unreachable state": (
        lambda: staged({**TWO, "c": ["done"]}, "a", "b", "c"),
        ["orders", 'nothing leads to "c"', "add a move"],
    ),
    "unreachable success": (
        lambda: two({"done": ["done", "sold"]}),
        ["orders", 'nothing leads to "sold"', "add a move"],
    ),
    "dead end": (
        lambda: staged(TWO, "a"),
        ["orders", 'nothing leads out of "b"', "add a stage, a gate or a wait"],
    ),
    "stage for an unknown state": (
        lambda: staged(TWO, "a", "b", "x"),
        ["orders", '"x"', "its states are", '"a"'],
    ),
    "stage for an end": (
        lambda: staged({**TWO, "done": ["a"]}, "a", "b", "done"),
        ["orders", '"done" is done', "never run"],
    ),
    "stage for the undoing state": (
        lambda: staged_in_undoing(),
        ["orders", '"back" is undoing', "never run"],
    ),
    "two stages": (lambda: staged(TWO, "a", "b", "a"), ["orders", '"a" has two stages']),
    "stage without a move": (
        lambda: staged({"a": ["b"], "b": []}, "a", "b"),
        ["orders", '"b"', "no move leads out", "add one"],
    ),
    "during shared": (
        lambda: shared_during(),
        ["orders", '"running"', '"a"', '"b"', "belongs to one stage"],
    ),
    "during not in the table": (
        lambda: staged(TWO, "a", "b", during="running"),
        ["orders", '"a" to "running"', "add it"],
    ),
    "during with a stage of its own": (
        lambda: staged(DURING, "a", "b", "running", during="running"),
        ["orders", '"running" is a during state', "name of its own"],
    ),
    "during that nothing leaves": (
        lambda: staged({"a": ["running"], "running": []}, "a", during="running"),
        ["orders", 'nothing leads out of "running"', "add the move"],
    ),
    "to is not a move": (
        lambda: staged(TWO, "a", "b", to="done"),
        ["orders", '"a" goes to "done"', 'may move to "b"'],
    ),
    "only bad ways": (
        lambda: staged({"a": ["failed", "held"]}, "a"),
        ["orders", '"a" has no way on', "to="],
    ),
    "timeout": (
        lambda: staged(TWO, "a", "b", timeout=timedelta(0)),
        ["orders", '"a"', "timeout", "longer"],
    ),
    "limit": (lambda: staged(TWO, "a", "b", limit=Limit(0)), ["orders", '"a"', "Limit(0)"]),
    "limit of what": (
        lambda: staged(DURING, "a", "b", during="running", limit=Limit(1, of="states")),  # type: ignore[arg-type]
        ["orders", '"a"', "of='states'", '"state"'],
    ),
    "limit of a state without one": (
        lambda: staged(TWO, "a", "b", limit=Limit(1, of="state")),
        ["orders", '"a"', "no busy state", "during="],
    ),
    "limited state with another way in": (
        lambda: staged({**DURING, "b": ["running", "done"]}, "a", "b", to=None,
                       during="running", limit=Limit(1, of="state")),
        ["orders", '"b" may move to "running"', 'move to "a" instead'],
    ),
    "release into a limited state": (
        lambda: limited_state(release_to="running"),
        ["orders", 'release_to="running"', "only its stage", 'name "a"'],
    ),
    "retry into a limited state": (
        lambda: limited_state(retry_to="running"),
        ["orders", 'retry_to="running"', "only its stage", 'name "a"'],
    ),
    "before without a busy state": (
        lambda: preceded(TWO, work),
        ["orders", '"a"', "a before", "during="],
    ),
    "before of another kind": (
        lambda: preceded(DURING, async_work, during="running"),
        ["orders", '"a"', "async", "a plain def"],
    ),
    "two functions before": (
        lambda: preceded(DURING, work, work, during="running"),
        ["orders", '"a"', "two functions before", "keep one"],
    ),
    "isolation": (
        lambda: staged(TWO, "a", "b", isolate="thread"),
        ["orders", '"a"', "'thread'", '"process"'],
    ),
    "async in a process": (isolated_async, ["orders", '"a"', "async", "plain def"]),
    "lambda in a process": (isolated_lambda, ["orders", '"a"', "top of a module", "move it"]),
    "transaction in a process": (
        lambda: staged(TWO, "a", "b", isolate="process", transaction=True),
        ["orders", '"a"', "transaction=True", "keep one"],
    ),
    "async transaction": (
        transactional_async,
        ["orders", '"a"', "transaction=True", "async", "plain def"],
    ),
    "stage queue": (lambda: staged(TWO, "a", "b", queue="no queue"), ["orders", '"a"', "letters"]),
    "stage retry": (
        lambda: staged(TWO, "a", "b", retry=Backoff(-1)),
        ["orders", '"a"', "not negative"],
    ),
    "flow retry": (
        lambda: two(retry=Backoff(delays=[-HOUR])),
        ["orders", "retry=", "negative delay"],
    ),
    "undo retry": (
        lambda: two(undo_retry=Backoff(factor=0.5)),
        ["orders", "undo_retry=", "factor"],
    ),
    "operator retry": (
        lambda: two(operator_retry=Backoff(first=-HOUR)),
        ["orders", "operator_retry=", "negative delay"],
    ),
    "gate in an unknown state": (
        lambda: gated(state="audit"),
        ["orders", '"audit"', "not in the table", '"review"'],
    ),
    "gate in an end": (lambda: gated(state="held"), ["orders", '"held"', "asks nobody"]),
    "gate without choices": (lambda: gated(choices={}), ["orders", '"review"', "no choices"]),
    "choice is not a move": (
        lambda: gated(choices={"yes": "done"}),
        ["orders", '"review"', '"yes"', '"done"', 'may move to "approved"'],
    ),
    "gate deadline without an end": (
        lambda: gated(deadline=HOUR),
        ["orders", '"review"', "deadline=", "on_expiry="],
    ),
    "gate deadline of nothing": (
        lambda: gated(deadline=timedelta(0), on_expiry="failed"),
        ["orders", '"review"', "some time"],
    ),
    "gate expires nowhere": (
        lambda: gated(deadline=HOUR, on_expiry="done"),
        ["orders", '"review"', '"done"', 'may move to "approved"'],
    ),
    "refusal is no choice": (
        lambda: gated(refusals={"no"}),
        ["orders", '"review"', '"no"', "add it or drop"],
    ),
    "gate and stage": (gate_and_stage, ["orders", '"review"', "two ways", "keep one"]),
    "wait in an unknown state": (
        lambda: waiting(state="x", after=HOUR, to="paid"),
        ["orders", '"x"', "not in the table", '"paid"'],
    ),
    "wait for nothing": (lambda: waiting(to="paid"), ["orders", '"a"', "signal= or after="]),
    "signal leads nowhere": (lambda: waiting(signal="go"), ["orders", '"a"', '"go"', "add to="]),
    "signal to an end": (
        lambda: waiting(state="done", signal="go", to="gone"),
        ["orders", '"done"', "never hear", "done"],
    ),
    "wait deadline without an end": (
        lambda: waiting(signal="go", to="paid", deadline=HOUR),
        ["orders", '"a"', "on_expiry="],
    ),
    "wait of no time": (
        lambda: waiting(after=timedelta(0), to="paid"),
        ["orders", '"a"', "some time"],
    ),
    "wait leads off the table": (
        lambda: waiting(after=HOUR, to="done"),
        ["orders", '"a"', '"done"', "may move to"],
    ),
    "wait brings an end back to life": (
        lambda: waiting(state="gone", after=HOUR, to="a"),
        ["orders", '"gone"', '"a"', "final state"],
    ),
    "release to an end": (
        lambda: two({"release_to": "done"}),
        ["orders", 'release_to="done"', "work goes on", '"a"'],
    ),
    "retry to an unknown state": (
        lambda: two({"retry_to": "x"}),
        ["orders", 'retry_to="x"', "work goes on", '"a"'],
    ),
    "release into undoing": (
        lambda: undone({"undoing": "back", "release_to": "back"}),
        ["orders", 'release_to="back"', "work goes on", '"a"'],
    ),
    "retry SAME with undos": (
        lambda: undone({"retry_to": SAME}),
        ["orders", "retry_to=SAME", '"a"', "name a state"],
    ),
    "undoing without an undo": (
        lambda: two({"undoing": "back"}),
        ["orders", 'undoing="back"', "no stage has an undo", "declare one"],
    ),
    "undone without an undo": (
        lambda: two({"undone": "rolled_back"}),
        ["orders", 'undone="rolled_back"', "no stage has an undo", "declare one"],
    ),
    "two undos": (two_undos, ["orders", '"a"', "two undos", "keep one"]),
    "retry_via": (
        lambda: two(retry_via="x"),
        ["orders", 'retry_via="x"', "not a state", '"failed"'],
    ),
    "key freed on the way": (
        lambda: two(dedup=Dedup(until=["b", "failed"])),
        ["orders", '"b"', "second job", "final states only"],
    ),
    "key never freed": (
        lambda: two(dedup=Dedup(until=["done"])),
        ["orders", '"failed"', "never be submitted again", "until="],
    ),
    "key kept for ever": (
        lambda: two(dedup=Dedup(until=Until.FORGOTTEN)),
        ["orders", "for ever", "keep="],
    ),
    "until is one text": (
        lambda: two(dedup=Dedup(until="failed")),
        ["orders", '"failed"', "list of states"],
    ),
    "error of two classes": (
        lambda: two(permanent={KeyError}, holds_on={KeyError}),
        ["orders", "KeyError", "permanent", "holds_on", "choose one"],
    ),
    "error is no class": (
        lambda: two(transient=["KeyError"]),
        ["orders", "transient", "'KeyError'", "not an exception class"],
    ),
    "max_lapses": (lambda: two(max_lapses=0), ["orders", "max_lapses=0", "1 or more"]),
    "expires": (lambda: two(expires=timedelta(0)), ["orders", "expires=", "some time"]),
    "secret": (
        lambda: two(payload=Card, secret={"pin"}),
        ["orders", "'pin'", "Card", "rename it"],
    ),
    "no steps": (lambda: Flow.steps("orders"), ["orders", "at least one function"]),
    "too late": (declared_after_the_check, ["orders", "already registered", "before connecting"]),
}  # fmt: skip


def staged_in_undoing() -> Flow:
    flow = undone({"undoing": "back"}, {**TWO, "back": ["failed"]})
    flow.stage("back")(work)
    return flow


def shared_during() -> Flow:
    flow = bare({"a": ["running", "b"], "b": ["running"], "running": ["done"]})
    flow.stage("a", during="running")(work)
    flow.stage("b", during="running")(work)
    return flow


@pytest.mark.shows("E-7")
@pytest.mark.parametrize("kind", BAD)
def test_a_bad_declaration_is_refused_with_flow_state_and_cure(kind: str) -> None:
    make, words = BAD[kind]
    with pytest.raises(FlowError) as refused:
        assert make().table
    sentence = str(refused.value)
    missing = [word for word in words if word not in sentence]
    assert not missing, f"{sentence!r} lacks {missing}"
    assert refused.value.code == "flow-invalid"


@pytest.mark.shows("E-7")
def test_at_least_thirty_kinds_of_bad_declarations_are_told_apart() -> None:
    def sentence(kind: str) -> str:
        with pytest.raises(FlowError) as refused:
            assert BAD[kind][0]().table
        return str(refused.value)

    assert len({sentence(kind) for kind in BAD}) >= 30


def cutting_flow() -> Flow:
    cutting: Flow = Flow(
        "cutting",
        Lifecycle(
            initial="NEW",
            moves={
                "NEW": ["PREPARED"], "PREPARED": ["OPTI_IMPORTED"],
                "OPTI_IMPORTED": ["OPTI_RUNNING"], "OPTI_RUNNING": ["OPTI_DONE"],
                "OPTI_DONE": ["XML_READY"], "XML_READY": ["DELIVERED"], "DELIVERED": ["DONE"],
            },
            done="DONE", held="HOLD", failed="FAILED", release_to="NEW", retry_to="NEW",
        ),
        dedup=Dedup(key=str, until=Until.FAILED_FOR_GOOD),
        operator_retry=Backoff(delays=[timedelta(minutes=m) for m in (1, 3, 9)]),
        permanent={ValueError},
        holds_on={KeyError},
    )  # fmt: skip
    for state in ("NEW", "PREPARED", "OPTI_DONE", "XML_READY", "DELIVERED"):
        cutting.stage(state)(work)
    optimise = cutting.stage(
        "OPTI_IMPORTED", during="OPTI_RUNNING", to="OPTI_DONE", limit=Limit(1),
        timeout=timedelta(minutes=20),
    )(async_work)  # fmt: skip
    optimise.undo(undo)
    return cutting


@pytest.mark.shows("E-1", "E-3")
def test_every_state_of_the_cutting_flow_has_the_role_that_its_declaration_gives_it() -> None:
    places = cutting_flow().table.places
    assert {state: place.role for state, place in places.items()} == {
        "NEW": "ready", "PREPARED": "ready", "OPTI_IMPORTED": "ready", "OPTI_RUNNING": "busy",
        "OPTI_DONE": "ready", "XML_READY": "ready", "DELIVERED": "ready", "DONE": "done",
        "HOLD": "held", "FAILED": "failed", "cancelled": "cancelled", "expired": "expired",
    }  # fmt: skip
    assert places["OPTI_RUNNING"].stage is places["OPTI_IMPORTED"].stage
    assert places["OPTI_IMPORTED"].during == "OPTI_RUNNING"
    assert places["OPTI_RUNNING"].during is None


@pytest.mark.shows("E-9")
def test_a_stage_takes_what_it_is_given_and_the_flow_fills_the_rest() -> None:
    table = cutting_flow().table
    busy = table.places["OPTI_RUNNING"]
    assert (busy.to, busy.slot) == ("OPTI_DONE", "cutting/OPTI_IMPORTED")
    assert busy.timeout_us == 20 * 60 * 1_000_000
    assert busy.lane == "cutting/loop/cutting@1#OPTI_IMPORTED"
    assert table.places["NEW"].to == "PREPARED"
    assert table.places["NEW"].timeout_us == 15 * 60 * 1_000_000
    assert table.places["NEW"].lane == "cutting/thread/cutting@1#NEW"
    assert table.limits == {"cutting/OPTI_IMPORTED": LimitTerms(1)}
    assert table.entries == {"OPTI_IMPORTED": "OPTI_RUNNING"}


@pytest.mark.shows("E-1", "E-11")
def test_a_gate_of_the_design_builds_and_several_states_share_a_role() -> None:
    onboarding: Flow = Flow(
        "onboarding",
        Lifecycle(
            "in_review", {"in_review": ["approved", "refused"], "approved": ["published"]},
            done=["published", "refused"],
        ),
    )  # fmt: skip
    onboarding.stage("approved")(work)
    review = onboarding.gate(
        "in_review", choices={"approve": "approved", "refuse": "refused"}, by={"operator"},
        not_by=SUBMITTER, deadline=timedelta(days=3), on_expiry="refused",
    )  # fmt: skip
    places = onboarding.table.places
    assert places["in_review"].gate is review
    assert places["in_review"].role == "held"
    assert {s for s, p in places.items() if p.role == "done"} == {"published", "refused"}


@pytest.mark.shows("E-8")
def test_steps_expand_to_an_ordinary_lifecycle() -> None:
    flow: Flow = Flow.steps("mail", work, ("send", async_work), retry=5)
    assert flow.lifecycle == Lifecycle("work", {"work": ["send"], "send": ["done"]})
    assert flow.table.places["send"].to == "done"
    assert flow.table.places["work"].retry == Backoff(5)


def test_states_that_only_a_release_reaches_are_reached() -> None:
    flow = bare(
        {"a": ["done"], "mend": ["mended"], "mended": ["done"]}, release_to="mend"
    )  # fmt: skip
    for state in ("a", "mend", "mended"):
        flow.stage(state)(work)
    assert ("held", "mend") in flow.table.legal


def test_a_secret_may_be_a_field_of_a_base_class() -> None:
    assert two(payload=GiftCard, secret={"number"}).table


def test_a_key_that_is_kept_for_a_while_needs_no_state_that_frees_it() -> None:
    assert two(dedup=Dedup(until=["done"], keep=HOUR)).table
    assert two(dedup=Dedup(until=Until.FORGOTTEN, keep=HOUR)).table


@pytest.mark.shows("E-5")
def test_an_operators_retry_goes_to_the_same_state_by_default_and_to_the_start_with_undos() -> None:
    assert two().table.retry_to == SAME
    assert undone().table.retry_to == "a"
