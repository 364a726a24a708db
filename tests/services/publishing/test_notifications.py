"""Each subscriber gets one notification, whatever receivers, workers and the clock do."""

from __future__ import annotations

import asyncio
import logging
import threading
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.services.publishing.blog import (
    AMPLE_S,
    ANOTHER_SECRET,
    ARTICLE,
    AUTHOR,
    DROPS,
    HANGS,
    Blog,
    key_of,
    receiving,
    wait_for_a_lock,
    work,
)
from tests.services.publishing.plant import serving
from tests.services.publishing.site import MOSTLY_SQLITE
from ulak import RetryLater
from ulak.services.publishing import notifications, users
from ulak.services.publishing.events import step
from ulak.services.publishing.notifications import DeliveriesFailed, Notifications
from ulak.services.publishing.push_notificator import make_push_notificator
from ulak.testing import faults
from ulak.testing.secret_scan import Scanner

MAX_TRIES = 4
NOBODY = "http://127.0.0.1:9/api/v1/notify"
"""Nothing listens there."""
LEASE = timedelta(seconds=3 * AMPLE_S)

OpenBlog = Callable[..., Blog]


@pytest.fixture
def open_blog(url: str) -> Iterator[OpenBlog]:
    """Start a process on the same store."""
    made: list[Blog] = []

    def start(push_url: str = NOBODY, **options: Any) -> Blog:
        made.append(Blog(url, push_url, **options))
        return made[-1]

    yield start
    for blog in made:
        blog.close()


def names(number: int) -> list[str]:
    return [f"s{n:05}" for n in range(number)]


def ends(again: RetryLater | None) -> tuple[timedelta, bool]:
    """Return when the task is to come again, and whether that spends a try of it."""
    assert again is not None
    return again.after, again.spend_attempt


def shown_by(address: str, everybody: Iterable[str]) -> dict[str, list[dict[str, str]]]:
    """Return what the stand-in has got for each subscriber."""
    with httpx.Client(base_url=address, trust_env=False) as client:

        def read(name: str) -> list[dict[str, str]]:
            return list(client.get("/api/v1/notifications", params={"token": key_of(name)}).json())

        return {name: read(name) for name in everybody}


# --- who gets what ------------------------------------------------------------------


@pytest.mark.shows("S-36", "S-42")
def test_each_subscriber_gets_one_push_however_often_the_task_is_delivered(
    open_blog: OpenBlog,
) -> None:
    app = make_push_notificator(per_minute=0)
    with serving(app) as address:
        blog = open_blog(f"{address}/api/v1/notify")
        everybody = names(45)
        blog.add(*everybody)
        for _ in range(3):
            assert blog.run() is None
        assert blog.rows() == dict.fromkeys(everybody, ("sent", 1))
        for (push,) in shown_by(address, everybody).values():
            assert push["message"] == f"Пользователь {AUTHOR} выпустил новый пост: Первая зап..."


@pytest.mark.shows("S-36")
@pytest.mark.parametrize("url", MOSTLY_SQLITE, indirect=True)
def test_a_push_has_the_key_of_its_subscriber_and_of_the_delivery(open_blog: OpenBlog) -> None:
    with receiving() as receiver:
        blog = open_blog(receiver.url, notify_message="{author_id}: {title}")
        blog.add("ada")
        assert blog.run() is None
        (push,) = receiver.pushes
        assert (push.name, push.idempotency_key) == ("ada", "article-1:ada")
        assert push.message == f"{AUTHOR}: {ARTICLE['title']}"


@pytest.mark.shows("S-37")
def test_subscribers_are_those_of_the_first_run(open_blog: OpenBlog) -> None:
    with receiving({"ada": [500]}) as receiver:
        blog = open_blog(receiver.url)
        blog.add("ada")
        again = blog.run()
        blog.clock.advance(timedelta(seconds=1))
        blog.add("late")
        assert ends(again) == (timedelta(seconds=1), True)
        assert blog.run() is None
        assert receiver.told() == ["ada", "ada"]
        assert set(blog.rows()) == {"ada"}


@pytest.mark.shows("S-37")
def test_an_article_without_subscribers_is_notified_for_good(open_blog: OpenBlog) -> None:
    with receiving() as receiver:
        blog = open_blog(receiver.url)
        assert blog.run() is None
        blog.clock.advance(timedelta(seconds=1))
        blog.add("late")
        assert blog.run() is None
        assert (receiver.told(), blog.rows()) == ([], {})


@pytest.mark.shows("S-37")
def test_a_subscriber_without_a_key_is_skipped_with_a_warning(
    open_blog: OpenBlog, caplog: pytest.LogCaptureFixture
) -> None:
    with receiving() as receiver:
        blog = open_blog(receiver.url)
        blog.add("ada", "cy")
        blog.add("bob", has_key=False)
        with caplog.at_level(logging.WARNING, "ulak.publishing"):
            assert blog.run() is None
        assert blog.statuses() == {"ada": "sent", "bob": "skipped", "cy": "sent"}
        assert sorted(receiver.told()) == ["ada", "cy"]
        (line,) = (r for r in caplog.records if r.name == "ulak.publishing")
        facts = vars(line)
        assert (facts["subscriber_id"], facts["why"]) == ("bob", "no subscription key is set")


@pytest.mark.shows("S-37")
@pytest.mark.parametrize("url", MOSTLY_SQLITE, indirect=True)
def test_a_key_that_was_set_under_another_secret_is_skipped_and_says_so(
    open_blog: OpenBlog,
) -> None:
    with receiving() as receiver:
        open_blog().add("ada")
        blog = open_blog(receiver.url, secret_key=ANOTHER_SECRET)
        assert blog.run() is None
        assert (receiver.told(), blog.statuses()) == ([], {"ada": "skipped"})
        statement = "SELECT last_error FROM {schema}.publishing_notifications"
        ((why,),) = blog.users.tables.read(statement)
        assert "SECRET_KEY" in why


@pytest.mark.shows("S-37")
def test_who_unsubscribes_or_is_deactivated_before_their_turn_is_skipped(
    open_blog: OpenBlog,
) -> None:
    with receiving({"ada": [HANGS]}) as receiver, ThreadPoolExecutor(1) as threads:
        # One at a time, so that the others wait for their turn.
        blog = open_blog(receiver.url, notify_concurrency=1)
        blog.add("ada", "bob", "cy", "dan")
        running = threads.submit(blog.run)
        receiver.wait_for(1)
        blog.users.unsubscribe("bob", AUTHOR)
        blog.users.set_active("cy", False)
        receiver.let_go()
        assert running.result(AMPLE_S) is None
        expected = {"ada": "sent", "bob": "skipped", "cy": "skipped", "dan": "sent"}
        assert blog.statuses() == expected
        assert receiver.told() == ["ada", "dan"]


# --- what receivers do --------------------------------------------------------------


@pytest.mark.shows("S-38")
@pytest.mark.parametrize("status", [400, 401, 404, 410, 422])
@pytest.mark.parametrize("url", MOSTLY_SQLITE, indirect=True)
def test_what_a_receiver_refuses_is_final(open_blog: OpenBlog, status: int) -> None:
    with receiving({"ada": [status]}) as receiver:
        blog = open_blog(receiver.url)
        blog.add("ada", "bob")
        assert blog.run() is None
        assert blog.run() is None
        assert blog.statuses() == {"ada": "failed", "bob": "sent"}
        assert sorted(receiver.told()) == ["ada", "bob"]


@pytest.mark.shows("S-38", "S-40")
@pytest.mark.parametrize("answer", [500, 503, 408, 425, 429, 302, DROPS])
@pytest.mark.parametrize("url", MOSTLY_SQLITE, indirect=True)
def test_what_passes_is_tried_again_for_that_subscriber_alone(
    open_blog: OpenBlog, answer: int
) -> None:
    with receiving({"bob": [answer, answer, answer]}) as receiver:
        blog = open_blog(receiver.url)
        blog.add("ada", "bob", "cy")
        for attempt, delay in enumerate((1, 2, 4), 1):
            assert ends(blog.run(attempt=attempt)) == (timedelta(seconds=delay), True)
            blog.clock.advance(timedelta(seconds=delay))
        assert blog.run(attempt=4) is None
        assert Counter(receiver.told()) == {"ada": 1, "bob": 4, "cy": 1}
        assert blog.rows() == {"ada": ("sent", 1), "bob": ("sent", 4), "cy": ("sent", 1)}
        assert len({push.idempotency_key for push in receiver.pushes}) == 3


@pytest.mark.shows("S-38")
@pytest.mark.parametrize("url", MOSTLY_SQLITE, indirect=True)
def test_who_does_not_answer_in_time_is_tried_again(open_blog: OpenBlog) -> None:
    with receiving({"ada": [HANGS]}) as receiver:
        hasty = open_blog(receiver.url, push_timeout_s=0.1)
        hasty.add("ada")
        assert ends(hasty.run()) == (timedelta(seconds=1), True)
        assert hasty.rows() == {"ada": ("pending", 1)}
        blog = open_blog(receiver.url, clock=hasty.clock)
        blog.clock.advance(timedelta(seconds=1))
        assert blog.run() is None
        assert blog.rows() == {"ada": ("sent", 2)}


@pytest.mark.shows("S-38")
@pytest.mark.parametrize("url", MOSTLY_SQLITE, indirect=True)
def test_429_waits_as_long_as_it_says_and_spends_no_try(open_blog: OpenBlog) -> None:
    with receiving({"ada": [(429, 30)] * 6}) as receiver:
        blog = open_blog(receiver.url)
        blog.add("ada")
        for _ in range(6):
            assert ends(blog.run()) == (timedelta(seconds=30), False)
            blog.clock.advance(timedelta(seconds=30))
        assert blog.run() is None
        assert blog.rows() == {"ada": ("sent", 1)}


@pytest.mark.shows("S-38")
@pytest.mark.parametrize("url", MOSTLY_SQLITE, indirect=True)
def test_a_receiver_that_says_429_for_more_than_a_day_fails_as_others_do(
    open_blog: OpenBlog,
) -> None:
    with receiving({"ada": [(429, 30)] * 9}) as receiver:
        blog = open_blog(receiver.url)
        blog.add("ada")
        assert ends(blog.run()) == (timedelta(seconds=30), False)
        blog.clock.advance(timedelta(days=1))
        for _ in range(3):
            again = blog.run()
            assert again is not None
            blog.clock.advance(again.after)
        with pytest.raises(DeliveriesFailed, match="429"):
            blog.run()


@pytest.mark.shows("S-17", "S-38")
@pytest.mark.parametrize("url", MOSTLY_SQLITE, indirect=True)
def test_retry_after_wins_over_the_delay_when_it_is_longer(open_blog: OpenBlog) -> None:
    with receiving({"ada": [(503, 60), (503, 1)]}) as receiver:
        blog = open_blog(receiver.url)
        blog.add("ada")
        assert ends(blog.run()) == (timedelta(seconds=60), True)
        blog.clock.advance(timedelta(seconds=60))
        assert ends(blog.run(attempt=2)) == (timedelta(seconds=2), True)


@pytest.mark.shows("S-38")
@pytest.mark.parametrize("url", MOSTLY_SQLITE, indirect=True)
def test_receivers_that_hang_delay_nobody_else(open_blog: OpenBlog) -> None:
    with receiving({"s00000": [HANGS], "s00001": [HANGS]}) as receiver:
        blog = open_blog(receiver.url, notify_concurrency=3)
        blog.add(*names(40))
        with ThreadPoolExecutor(1) as threads:
            running = threads.submit(blog.run)
            receiver.wait_for(40)  # while two of three places hang
            assert not running.done()
            receiver.let_go()
            assert running.result(AMPLE_S) is None
        assert set(blog.statuses().values()) == {"sent"}
        assert len(receiver.told()) == 40


@pytest.mark.shows("S-17", "S-40")
def test_a_dead_push_service_makes_a_dead_letter_and_a_redrive_sends_what_is_left(
    open_blog: OpenBlog,
) -> None:
    dead = open_blog(NOBODY)
    dead.add(*names(5))
    delays = []
    for attempt in range(1, MAX_TRIES):
        after, spends = ends(dead.run(attempt=attempt))
        delays.append(after)
        assert spends
        dead.clock.advance(after)
    assert delays == [timedelta(seconds=n) for n in (1, 2, 4)]
    with pytest.raises(DeliveriesFailed, match="5 of the subscribers of article article-1"):
        dead.run(attempt=MAX_TRIES)
    assert set(dead.rows().values()) == {("failed", MAX_TRIES)}
    # The same round gives no more tries; the next one, which an operator begins, does.
    with pytest.raises(DeliveriesFailed):
        dead.run(attempt=MAX_TRIES)
    with receiving({"s00000": [500]}) as receiver:
        blog = open_blog(receiver.url, clock=dead.clock)
        assert ends(blog.run(round=2)) == (timedelta(seconds=1), True)
        blog.clock.advance(timedelta(seconds=1))
        assert blog.run(round=2, attempt=2) is None
        assert set(blog.statuses().values()) == {"sent"}
        assert Counter(receiver.told()) == {"s00000": 2} | dict.fromkeys(names(5)[1:], 1)


@pytest.mark.shows("S-38")
def test_who_waits_is_not_lost_with_a_neighbour_that_is_dead(open_blog: OpenBlog) -> None:
    with receiving({"ada": [500] * 9, "bob": [(429, 600)]}) as receiver:
        blog = open_blog(receiver.url)
        blog.add("ada", "bob", "cy")
        spent = []
        for attempt in range(1, MAX_TRIES + 1):
            again = blog.run(attempt=attempt)
            assert again is not None
            spent.append(again.spend_attempt)
            blog.clock.advance(again.after)
        # The task has one try left, with which it says that ada got nothing.
        assert spent == [True, True, True, False]
        with pytest.raises(DeliveriesFailed, match="1 of the subscribers"):
            blog.run(attempt=MAX_TRIES)
        expected = {"ada": ("failed", MAX_TRIES), "bob": ("sent", 1), "cy": ("sent", 1)}
        assert blog.rows() == expected
        assert Counter(receiver.told()) == {"ada": MAX_TRIES, "bob": 2, "cy": 1}


@pytest.mark.shows("S-38")
@pytest.mark.parametrize("url", MOSTLY_SQLITE, indirect=True)
def test_an_answer_without_an_end_is_not_read(open_blog: OpenBlog) -> None:
    sent = 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal sent
        if scope["type"] != "http":
            return
        await send({"type": "http.response.start", "status": 201, "headers": []})
        gone = asyncio.ensure_future(_until_gone(receive))
        while not gone.done():
            await send({"type": "http.response.body", "body": bytes(4096), "more_body": True})
            sent += 4096
            await asyncio.sleep(0)

    with serving(app) as address:
        blog = open_blog(address)
        blog.add("ada")
        assert blog.run() is None
        assert blog.statuses() == {"ada": "sent"}
        assert sent >= 64 * 1024


async def _until_gone(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


@pytest.mark.shows("S-37")
@pytest.mark.parametrize("url", MOSTLY_SQLITE, indirect=True)
def test_a_worker_that_stops_begins_nothing_more_and_loses_nothing(open_blog: OpenBlog) -> None:
    with receiving({"s00000": [HANGS], "s00010": [HANGS]}) as receiver:
        blog = open_blog(receiver.url, notify_concurrency=2)
        blog.add(*names(30))
        stopping = threading.Event()
        with ThreadPoolExecutor(1) as threads:
            running = threads.submit(blog.run, stop=stopping.is_set)
            receiver.wait_for(11)  # both places hang
            stopping.set()
            receiver.let_go()
            again = running.result(AMPLE_S)
        assert ends(again) == (timedelta(), False)
        assert Counter(blog.statuses().values()) == {"sent": 11, "pending": 19}
        assert blog.run() is None
        assert Counter(receiver.told()) == dict.fromkeys(names(30), 1)


# --- many, at once and one after the other -----------------------------------------


@pytest.mark.shows("S-36", "R-5")
def test_two_workers_at_once_claim_each_delivery_once(open_blog: OpenBlog) -> None:
    # The first ten are answered when they are all there: of one worker there are never six.
    with receiving(hold=10) as receiver:
        workers = [open_blog(receiver.url, notify_concurrency=5) for _ in range(2)]
        workers[0].add(*names(60))
        with ThreadPoolExecutor(2) as threads:
            ended = [threads.submit(worker.run) for worker in workers]
            for each in ended:
                each.result(AMPLE_S)
        assert Counter(receiver.told()) == dict.fromkeys(names(60), 1)
        assert workers[0].rows() == dict.fromkeys(names(60), ("sent", 1))
        assert receiver.most_at_once <= 10


@pytest.mark.shows("S-36", "R-5")
def test_two_processes_at_once_claim_each_delivery_once(open_blog: OpenBlog, url: str) -> None:
    with receiving(hold=10) as receiver:
        blog = open_blog(receiver.url)
        blog.add(*names(60))
        with ThreadPoolExecutor(2) as threads:
            children = [threads.submit(faults.run, work, url, receiver.url) for _ in range(2)]
            for child in children:
                ended = child.result(AMPLE_S)
                assert ended.code == 0, ended.errors
        assert Counter(receiver.told()) == dict.fromkeys(names(60), 1)
        assert blog.rows() == dict.fromkeys(names(60), ("sent", 1))


@pytest.mark.shows("S-39", "S-40")
@pytest.mark.parametrize(
    "point",
    [
        "page/1", "claim/1", "push/1",
        *(
            pytest.param(point, marks=pytest.mark.sampled)
            for point in (
                "fan-out/0", "page/0", "fan-out/1", "turn/0", "claim/0", "turn/1", "push/0",
                "wait/1", "judge/0",
            )
        ),
    ],
)  # fmt: skip
def test_a_worker_that_dies_anywhere_leaves_each_subscriber_one_notification(
    open_blog: OpenBlog, url: str, point: str
) -> None:
    app = make_push_notificator(per_minute=0)
    name, side = point.split("/")
    with serving(app) as address:
        push_url = f"{address}/api/v1/notify"
        blog = open_blog(push_url)
        blog.add(*names(7))
        point = step.points(f"notify.{name}")[int(side)]
        crashed = faults.run(work, url, push_url, 3, kill_at=point)
        assert crashed.killed, crashed.errors
        left = Counter(blog.statuses().values())
        # What the dead worker has claimed is waited for, and nothing else.
        if left["processing"]:
            blog.clock.advance(timedelta(seconds=1))
            again = blog.run()
            assert ends(again) == (LEASE - timedelta(seconds=1), False)
            now = Counter(blog.statuses().values())
            assert now == {"sent": 7 - left["processing"], "processing": left["processing"]}
        blog.finish()
        assert set(blog.statuses().values()) == {"sent"}
        assert {len(pushes) for pushes in shown_by(address, names(7)).values()} == {1}


@pytest.mark.shows("S-39")
def test_a_push_whose_mark_was_lost_is_repeated_with_the_same_key(
    open_blog: OpenBlog, url: str
) -> None:
    with receiving() as receiver:
        blog = open_blog(receiver.url)
        blog.add("ada")
        crashed = faults.run(work, url, receiver.url, kill_at=step.points("notify.push")[1])
        assert crashed.killed, crashed.errors
        assert blog.statuses() == {"ada": "processing"}
        assert blog.finish() == 2
        assert [push.idempotency_key for push in receiver.pushes] == ["article-1:ada"] * 2


@pytest.mark.shows("S-36")
def test_a_lease_that_another_worker_has_taken_over_is_not_settled(
    open_blog: OpenBlog,
) -> None:
    with receiving({"ada": [HANGS, 410]}) as receiver, ThreadPoolExecutor(1) as threads:
        slow = open_blog(receiver.url)
        slow.add("ada")
        running = threads.submit(slow.run)
        receiver.wait_for(1)
        slow.clock.advance(LEASE)
        quick = open_blog(receiver.url, clock=slow.clock)
        assert quick.run() is None
        receiver.let_go()
        assert running.result(AMPLE_S) is None
        # The later claim has the last word.
        assert quick.rows() == {"ada": ("failed", 1)}


@pytest.mark.shows("S-37", "S-41")
def test_a_fan_out_that_was_broken_off_goes_on_with_the_same_subscribers(
    open_blog: OpenBlog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifications, "PAGE", 3)
    with receiving() as receiver:
        blog = open_blog(receiver.url)
        blog.add(*names(8))
        execute, pages = blog.users.tables.execute, 0

        def fail_at_third(connection: Any, statement: str, *values: Any) -> Any:
            nonlocal pages
            pages += statement == notifications._FAN_OUT
            if pages == 3:
                raise OSError("the machine is going down")
            return execute(connection, statement, *values)

        with monkeypatch.context() as patch:
            patch.setattr(blog.users.tables, "execute", fail_at_third)
            with pytest.raises(OSError, match="going down"):
                blog.run()
        assert set(blog.rows()) == set(names(6))
        blog.clock.advance(timedelta(seconds=1))
        blog.add("s00009", "a-late-one")
        assert blog.run() is None
        assert Counter(receiver.told()) == dict.fromkeys(names(8), 1)


@pytest.mark.shows("R-16")
def test_who_has_unsubscribed_before_the_claim_gets_nothing(open_blog: OpenBlog) -> None:
    with receiving() as receiver:
        blog = open_blog(receiver.url, notify_concurrency=2)
        everybody = names(120)
        blog.add(*everybody)
        too_late: list[str] = []
        status = """
            SELECT status FROM {schema}.publishing_notifications
            WHERE article_id = ? AND subscriber_id = ?
        """
        blog.notifications._fan_out(
            notifications._Work(ARTICLE["id"], AUTHOR, b"", MAX_TRIES)
        )  # so that each has a row whose status tells whether it was claimed

        def leave() -> None:
            for name in reversed(everybody):
                blog.users.unsubscribe(name, AUTHOR)
                if blog.users.tables.read(status, ARTICLE["id"], name)[0][0] == "pending":
                    too_late.append(name)

        with ThreadPoolExecutor(1) as threads:
            running = threads.submit(blog.run)
            receiver.wait_for(2)
            leave()
            assert running.result(AMPLE_S) is None
        assert too_late, "nobody left before their turn"
        assert len(too_late) < 120
        assert not set(too_late) & set(receiver.told())
        assert all(blog.statuses()[name] == "skipped" for name in too_late)
        assert max(Counter(receiver.told()).values()) == 1


@pytest.mark.shows("R-16")
@pytest.mark.parametrize("url", ["postgres"], indirect=True)
@pytest.mark.parametrize("act", ["unsubscribe", "deactivate"])
def test_a_claim_waits_for_an_unsubscribe_that_is_not_committed(
    open_blog: OpenBlog, url: str, act: str
) -> None:
    with receiving() as receiver, ThreadPoolExecutor(1) as threads:
        blog = open_blog(receiver.url)
        blog.add("ada", "bob")
        with blog.users.tables.writing() as connection:
            if act == "unsubscribe":
                blog.users.tables.execute(connection, users._UNSUBSCRIBE, AUTHOR, "ada")
            else:
                blog.users._change(connection, "ada", {"is_active": 0})
            running = threads.submit(blog.run)
            wait_for_a_lock(url)
        assert running.result(AMPLE_S) is None
        assert blog.statuses() == {"ada": "skipped", "bob": "sent"}
        assert receiver.told() == ["bob"]


@pytest.mark.shows("S-41")
@pytest.mark.parametrize("url", MOSTLY_SQLITE, indirect=True)
def test_no_more_are_sent_at_once_than_the_settings_say(open_blog: OpenBlog) -> None:
    with receiving(hold=20) as receiver:
        blog = open_blog(receiver.url)
        blog.add(*names(90))
        assert blog.run() is None
        assert receiver.most_at_once == 20
        assert Counter(receiver.told()) == dict.fromkeys(names(90), 1)


@pytest.mark.shows("S-41")
@pytest.mark.parametrize("url", MOSTLY_SQLITE, indirect=True)
def test_ten_thousand_subscribers_take_no_more_memory_than_a_few(
    open_blog: OpenBlog, monkeypatch: pytest.MonkeyPatch, sized: Callable[[int, int], int]
) -> None:
    told: set[str] = set()
    at_once = most = 0

    async def push(self: Any, client: Any, work: Any, delivery: Any) -> Any:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        for _ in range(3):
            await asyncio.sleep(0)
        assert delivery.id not in told
        told.add(delivery.id)
        at_once -= 1
        return notifications._Reply(delivery, "", 201)

    monkeypatch.setattr(Notifications, "_push", push)
    blog = open_blog()
    many = names(sized(10_000, 1_000))
    for start in range(0, len(many), 1000):
        blog.add(*many[start : start + 1000])
    tracemalloc.start()
    try:
        assert blog.run() is None
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert told == set(many)
    assert Counter(blog.statuses().values()) == {"sent": len(many)}
    assert most == 20
    # Each name of the test's own set is some eighty bytes, in a table of its own.
    assert peak - len(many) * 250 < 2_000_000


# --- secrets ------------------------------------------------------------------------


@pytest.mark.shows("S-36")
def test_no_subscription_key_is_in_a_table_or_a_log(
    open_blog: OpenBlog, url: str, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    with receiving({"ada": [500], "bob": [401], "cy": [DROPS]}) as receiver:
        blog = open_blog(receiver.url)
        blog.add("ada", "bob", "cy", "dan")
        with caplog.at_level(logging.DEBUG):
            blog.finish()
    assert set(blog.statuses().values()) == {"sent", "failed"}
    scanner = Scanner({name: key_of(name) for name in ("ada", "bob", "cy", "dan")})
    said = "\n".join(f"{record.getMessage()} {vars(record)}" for record in caplog.records)
    assert scanner.scan_bytes(said.encode(), "log") == set()
    if url.startswith("sqlite"):
        assert scanner.scan_folder(tmp_path) == []
    else:
        assert scanner.scan_postgres(url) == []
