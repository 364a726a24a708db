"""The soak of browsers in its shorter form: a tenth of its jobs, unless all is asked for."""

from collections.abc import Callable

import pytest

from bench.soak.browsers import DISKS, NoDisks, Plan, soak
from tests.services.pdf.browser.scene import roomy_directory


@pytest.mark.shows("P-14", "P-15", "P-16")
def test_every_job_succeeds_while_renderers_browsers_and_drivers_are_lost_and_disks_are_full(
    sized: Callable[[int, int], int],
) -> None:
    plan = Plan(jobs=sized(200, 20), seed=7)
    with roomy_directory() as folder:
        try:
            verdict = soak(plan, folder)
        except NoDisks as error:
            pytest.skip(str(error))
        log = (folder / "workers.log").read_text()
    assert verdict.wrong == [], log
    assert verdict.counts["succeeded"] == plan.jobs
    assert sum(verdict.counts[f"fills of {disk}"] for disk in DISKS) == len(DISKS)
    blows = sum(n for name, n in verdict.counts.items() if name.startswith(("kill", "freeze")))
    assert blows >= sized(20, 5)
