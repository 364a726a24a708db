"""The machine's clock: what leases on SQLite end by."""

import time
from pathlib import Path

import pytest

from ulak.clock import SystemClock


@pytest.mark.shows("E-24")
@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="only Linux counts its uptime")
def test_uptime_is_counted_from_the_start_of_the_machine_and_not_from_1970() -> None:
    before = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000
    boot, us = SystemClock().uptime()
    after = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000
    assert before <= us <= after
    assert boot == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
