"""Scopes: what cannot be meant is refused when it is written."""

from datetime import timedelta

import pytest

from ulak.errors import BadInput
from ulak.idempotency import Scope


@pytest.mark.shows("I-21")
def test_an_answer_is_kept_for_a_week_by_default() -> None:
    scope = Scope("orders.charge")
    assert scope.ttl == timedelta(seconds=604800)
    assert scope.lease == timedelta(seconds=60)
    assert scope.lock_wait == timedelta(milliseconds=2000)
    assert scope.max_body_bytes == 1048576
    assert scope.mode == "transactional"


@pytest.mark.shows("I-25")
@pytest.mark.parametrize("ttl", [timedelta(days=2), timedelta(days=3)])
def test_a_scope_must_remember_for_longer_than_its_outbox_tries(ttl: timedelta) -> None:
    with pytest.raises(BadInput, match=r"orders\.charge") as raised:
        Scope("orders.charge", ttl=ttl, fed_for=timedelta(days=3))
    assert f"{ttl.total_seconds():.0f} s" in str(raised.value)
    assert "259200 s" in str(raised.value)
    assert Scope("orders.charge", ttl=timedelta(days=3, seconds=1), fed_for=timedelta(days=3))


@pytest.mark.parametrize("name", ["ttl", "lease", "lock_wait"])
@pytest.mark.parametrize("span", [timedelta(), timedelta(seconds=-1)])
def test_a_span_must_be_positive(name: str, span: timedelta) -> None:
    with pytest.raises(BadInput, match=name):
        Scope("orders.charge", **{name: span})  # type: ignore[arg-type]


def test_a_name_may_be_empty_and_must_be_printable() -> None:
    assert Scope("").name == ""
    for name in ("a\nb", "a\0b", "x" * 201):
        with pytest.raises(BadInput, match="printable"):
            Scope(name)
