"""Identities: ordered by time, read and written as text, never twice."""

import random
import threading
import uuid

import pytest

import ulak
from ulak.errors import BadInput
from ulak.ids import CommitIds, from_text, time_ordered_id, to_text, unguessable_id

NOW = 1_794_710_270_113_245


@pytest.mark.shows("E-53")
def test_an_id_is_a_uuid_of_version_seven_in_sixteen_bytes_and_text_at_the_edge() -> None:
    made = time_ordered_id(NOW)
    read = uuid.UUID(bytes=made)
    assert (read.version, read.variant) == (7, uuid.RFC_4122)
    assert int.from_bytes(made[:6], "big") == NOW // 1000
    assert to_text(made) == str(read)
    assert from_text(to_text(made)) == made


@pytest.mark.shows("E-53")
def test_ids_of_later_moments_come_later_even_within_a_millisecond() -> None:
    ids = [time_ordered_id(NOW + n) for n in range(0, 3000, 3)]
    assert ids == sorted(ids)


@pytest.mark.shows("E-53")
def test_an_id_that_is_a_capability_tells_nothing() -> None:
    read = uuid.UUID(bytes=unguessable_id())
    assert (read.version, read.variant) == (4, uuid.RFC_4122)


def test_the_programs_own_seed_does_not_make_ids_meet() -> None:
    random.seed(7)
    first = time_ordered_id(NOW)
    random.seed(7)
    assert time_ordered_id(NOW) != first


@pytest.mark.parametrize("text", ["7", "", "0192e4a0-5b6c-7d10-8a4e-0f2b6c9d1e3", None, 7])
def test_what_is_not_an_id_is_refused_with_an_example(text: object) -> None:
    with pytest.raises(BadInput, match="an id looks like"):
        from_text(text)  # type: ignore[arg-type]


def test_commit_ids_asked_by_many_threads_are_never_the_same() -> None:
    new, made = CommitIds(), list[bytes]()

    def ask() -> None:
        made.extend([new() for _ in range(5000)])

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == len(made) == 20_000
    assert {len(one) for one in made} == {16}


@pytest.mark.shows("E-53")
@pytest.mark.parametrize(("unguessable", "version"), [(True, 4), (False, 7)])
def test_a_flow_says_whether_its_ids_are_capabilities(unguessable: bool, version: int) -> None:
    def work(run: ulak.Run[None]) -> None: ...

    flow: ulak.Flow[None] = ulak.Flow.steps("open", work, unguessable_ids=unguessable)
    with ulak.connect("memory://", flows=[flow]) as engine:
        assert uuid.UUID(engine.submit(flow).id).version == version
