"""What belongs to no job is found in memory too."""

import pytest

from ulak.core.job import Payload
from ulak.ids import to_text
from ulak.store.memory import MemoryStore


@pytest.mark.shows("E-63")
def test_a_payload_without_its_job_is_named() -> None:
    store, nobody = MemoryStore(), b"\x01" * 16
    store.open()
    store._payloads[nobody] = Payload(b"1", 1)
    assert store.scan_orphans() == [f"payload of job {to_text(nobody)}: there is no such job"]
