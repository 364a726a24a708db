"""A handler is forgotten in the order in which everybody locks deliveries: heads first."""

from typing import Any

import pytest

from ulak.store.postgres import PostgresStore
from ulak.store.postgres.pipeline import Pipeline
from ulak.store.protocol import HandlerRow
from ulak.store.sql.outbox import DISCARD_ALL, HOLD_HEADS


@pytest.mark.shows("E-70")
def test_the_heads_of_a_handler_are_locked_before_its_deliveries_are_discarded(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    said, send = list[str](), Pipeline.send

    def noted(self: Pipeline, statement: str, *facts: Any, **more: Any) -> None:
        said.append(statement)
        send(self, statement, *facts, **more)

    store.keep_handlers([HandlerRow("mail", "paid")])
    monkeypatch.setattr(Pipeline, "send", noted)
    assert store.forget_handler("mail", "ada", "") == 0
    assert [each for each in said if each in (HOLD_HEADS, DISCARD_ALL)] == [HOLD_HEADS, DISCARD_ALL]
