"""Runners that are killed at every point of a delivery: the next one finishes it, once."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.services.cutting.conftest import make_cutting
from tests.services.cutting.dispatch import Dispatch, FakeRun, live, look, wait_until
from ulak.services.cutting import delivery
from ulak.services.cutting.delivery import step as steps
from ulak.testing import faults

FIRST = [
    (step, side) for step in ("write", "intent", "place", "end") for side in ("before", "after")
]
AGAIN = [(step, side) for step in ("take", "end") for side in ("before", "after")]


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.sampled)])
def urls(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Sequence[str]]:
    """A store for each point, so that all may wait for the lapse of a lease at once."""
    n = len(FIRST)
    if request.param == "sqlite":
        yield [f"sqlite:///{tmp_path / f'{k}.db'}" for k in range(n)]
        return
    with ExitStack() as stack:
        lend = request.getfixturevalue("databases").lend
        yield [stack.enter_context(lend(make_cutting)) for _ in range(n)]


def test_every_point_is_killed_at() -> None:
    written = set(re.findall(r'step\("(\w+)"\)', Path(delivery.__file__).read_text()))
    assert written == {step for step, _ in (*FIRST, *AGAIN)}


@pytest.mark.shows("C-56", "C-70")
@pytest.mark.timeout(300)
def test_a_plan_is_cut_once_whatever_point_its_runner_dies_at(
    urls: Sequence[str], tmp_path: Path
) -> None:
    with ExitStack() as stack:
        told = []
        for point, url in zip(FIRST, urls, strict=True):
            dispatch = begin(stack, url, tmp_path / "-".join(point))
            job = dispatch.submit(*dispatch.make_plans("plan"))
            told.append((point, dispatch, job))
        kill(told)
        for _, dispatch, _ in told:
            stack.enter_context(dispatch.working())
        finish(told)
        for point, dispatch, job in told:
            assert dispatch.notes(job) == ["cutting.delivery-intent", "cutting.ack"], point
            assert dispatch.rows(job) == [(0, 1, "acked")], point


@pytest.mark.shows("C-57", "C-70")
@pytest.mark.timeout(300)
def test_a_plan_that_is_sent_again_is_cut_once_whatever_point_its_runner_dies_at(
    urls: Sequence[str], tmp_path: Path
) -> None:
    with ExitStack() as stack:
        told = []
        for point, url in zip(AGAIN, urls, strict=False):
            dispatch = begin(stack, url, tmp_path / "-".join(point), saws=False)
            plans = dispatch.make_plans("plan")
            job = dispatch.submit(*plans)
            look(dispatch, FakeRun(dispatch, job, round=0), *plans)
            told.append((point, dispatch, job))
        kill(told)
        for _, dispatch, _ in told:
            stack.enter_context(dispatch.working())
        for _, dispatch, _ in told:
            # Else the saw takes the first file, which is as good.
            wait_until(lambda here=dispatch: "plan_d1.xml" not in here.names("inbox"))
            stack.enter_context(dispatch.sawing())
        finish(told)
        for point, dispatch, job in told:
            assert dispatch.rows(job) == [(0, 1, "withdrawn"), (0, 2, "acked")], point
            kinds = ["delivery-intent", "withdrawn", "delivery-intent", "ack"]
            assert dispatch.notes(job) == [f"cutting.{kind}" for kind in kinds], point


Told = Sequence[tuple[tuple[str, str], Dispatch, str]]


def begin(stack: ExitStack, url: str, folder: Path, *, saws: bool = True) -> Dispatch:
    folder.mkdir()
    dispatch = Dispatch(url, folder)
    stack.callback(dispatch.close)
    if saws:
        stack.enter_context(dispatch.sawing())
    return dispatch


def kill(told: Told) -> None:
    """Let a child work on each of these jobs, and die at its point."""
    for (step, side), dispatch, _ in told:
        point = steps.points(step)[side == "after"]
        ended = faults.run(live, dispatch.url, dispatch.folder, kill_at=point)
        assert ended.killed, (point, ended)


def finish(told: Told) -> None:
    """Wait until other runners have finished all, and look at what the saw has cut."""
    for point, dispatch, job in told:
        assert dispatch.wait(job).state == "DELIVERED", point
        assert [name for name in dispatch.names("inbox") if name.endswith(".xml")] == [], point
        (plan,) = dispatch.engine.inspect.payload(job)["plans"]
        assert dispatch.cuts() == [plan[2]], point
