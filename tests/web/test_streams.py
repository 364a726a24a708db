"""Jobs as they move, over real connections of a real server."""

import asyncio
import gc
import random
import socket
import subprocess
import sys
import textwrap
import time
import tracemalloc
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest

import ulak
import ulak.web
from tests.scenario.doubles import quickest
from tests.web.moving import FLOW, end, move, new_job
from tests.web.people import Known, person
from tests.web.sse import Listener, listening
from ulak.store.sqlite import wakeup
from ulak.web.server import Server, bind
from ulak.web.streams import hub as hubs
from ulak.web.streams import news
from ulak.web.streams import routes as streams


@pytest.fixture
def engine(tmp_path):
    with ulak.connect(f"sqlite:///{tmp_path}/jobs.db?synchronous=NORMAL", flows=[FLOW]) as made:
        yield made


@contextmanager
def serving(engine: ulak.Engine, identity=None):
    """Serve an engine on a port of its own; answers the server and the hub of its streams."""
    app = ulak.web.app(engine, identity=identity)
    server = Server(app, bind("127.0.0.1", 0))
    # The buffers of the system take megabytes: a reader that is slow would be found out late.
    server._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16_384)
    server.start(on_failure=lambda: None)
    try:
        yield server, app.state.hub
    finally:
        server.stop()


@pytest.fixture
def served(engine):
    with serving(engine) as (server, hub):
        yield server.address, hub


async def until(condition, timeout: float = 10) -> None:
    async with asyncio.timeout(timeout):
        while not condition():
            await asyncio.sleep(0.01)


def numbers(told) -> list[int]:
    return [int(event.id) for event in told if event.id is not None]


def stored(engine: ulak.Engine, job: str) -> list[int]:
    """The numbers of every event that the job has."""
    return [event.seq for event in engine.inspect.trail(job, limit=10_000)]


# --- one job --------------------------------------------------------------------


@pytest.mark.shows("E-46")
def test_a_stream_tells_the_trail_then_what_happens_and_ends_with_the_job(engine, served):
    address, _ = served
    job = new_job(engine)
    move(engine, job, 2)

    async def watch():
        async with await Listener.connect(address, f"/jobs/{job}/events") as stream:
            assert stream.status == 200
            assert stream.headers["content-type"].startswith("text/event-stream")
            assert stream.headers["cache-control"] == "no-store"
            assert stream.headers["x-accel-buffering"] == "no"
            told = [await stream.next() for _ in range(3)]
            await asyncio.to_thread(end, engine, job)
            return told + await stream.all()

    *events, last = asyncio.run(watch())
    trail = engine.inspect.trail(job)
    assert [(int(e.id), e.kind) for e in events] == [(line.seq, line.kind) for line in trail]
    assert events[1].data["to_state"] == "there"
    assert events[1].data["actor"] == "ada"
    assert (last.kind, last.id, last.data["state"]) == ("end", None, "done")


@pytest.mark.shows("E-79")
def test_a_stream_is_woken_by_the_moves_of_another_process(engine, served, monkeypatch):
    """Broken by a hub that is rung by its own process alone, and looks for the others' moves."""
    address, _ = served
    monkeypatch.setattr(hubs, "GLANCE_S", 3600.0)
    monkeypatch.setattr(wakeup, "RENEW_MS", 3_600_000)
    job, other = new_job(engine), new_job(engine)

    async def watch(theirs: ulak.Engine):
        async with await Listener.connect(address, f"/jobs/{job}/events") as stream:
            told = [await stream.next(120)]
            reading = asyncio.create_task(stream.all(120))
            await asyncio.to_thread(end, theirs, job)
            while not reading.done():  # the first ring may come before the hub sleeps
                await asyncio.to_thread(move, theirs, other)
                await asyncio.sleep(0.02)
            return told + await reading

    # What another process has: nothing in common but the file.
    with ulak.connect(f"sqlite:///{engine.store.path}?synchronous=NORMAL", flows=[FLOW]) as theirs:
        *_, last = asyncio.run(watch(theirs))
    assert (last.kind, last.data["state"]) == ("end", "done")


def test_a_stream_of_a_job_that_has_ended_tells_its_trail_and_ends(engine, served):
    address, _ = served
    job = new_job(engine)
    move(engine, job, 2 * streams.EVENTS_PER_PAGE)
    end(engine, job)

    async def watch(path, **headers):
        async with await Listener.connect(address, path, **headers) as stream:
            return await stream.all()

    whole = asyncio.run(watch(f"/jobs/{job}/events"))
    assert numbers(whole) == stored(engine, job)
    assert whole[-1].kind == "end"
    last = numbers(whole)[-1]
    assert numbers(asyncio.run(watch(f"/jobs/{job}/events?after={last - 3}"))) == [
        last - 2, last - 1, last,
    ]  # fmt: skip
    # What a browser sends when it comes back goes before what its page once asked for.
    again = asyncio.run(watch(f"/jobs/{job}/events?after=3", last_event_id=str(last)))
    assert [event.kind for event in again] == ["end"]


@pytest.mark.shows("E-46")
def test_two_hundred_watchers_get_every_event(engine, served):
    address, hub = served
    job = new_job(engine)

    async def watch(n: int):
        # Some come before anything happens, others in the middle of it.
        await asyncio.sleep(n % 10 * 0.05)
        async with await Listener.connect(address, f"/jobs/{job}/events") as stream:
            return await stream.all(timeout=120)

    def produce():
        for _ in range(60):
            move(engine, job, 1)
            time.sleep(0.01)

    async def everybody():
        watching = [asyncio.create_task(watch(n)) for n in range(200)]
        await asyncio.to_thread(produce)
        await until(lambda: hub.connected == 200, timeout=120)
        await asyncio.to_thread(end, engine, job)
        return await asyncio.gather(*watching)

    expected = None
    for told in asyncio.run(everybody()):
        expected = expected or stored(engine, job)
        assert numbers(told) == expected
        assert told[-1].kind == "end"
    assert hub.dropped == 0


@pytest.mark.shows("E-46")
@pytest.mark.parametrize("seed", range(3))
def test_whoever_is_cut_off_resumes_without_a_gap_or_a_repeat(engine, served, seed):
    address, _ = served
    dice = random.Random(seed)  # noqa: S311 - a test that can be repeated
    job = new_job(engine)

    async def watch():
        """Read a few events, leave, come back, and so on until the end."""
        seen, is_over = [], False
        while not is_over:
            stay = dice.randrange(1, 12)
            headers = {"last_event_id": seen[-1]} if seen else {}
            async with await Listener.connect(address, f"/jobs/{job}/events", **headers) as stream:
                async for told in stream:
                    is_over = told.kind == "end"
                    seen += [told.id] if told.id else []
                    stay -= 1
                    if not stay or is_over:
                        break
            await asyncio.sleep(dice.choice([0, 0, 0.01, 0.05]))
        return [int(number) for number in seen]

    def produce():
        for _ in range(80):
            move(engine, job, dice.randrange(1, 4))
            time.sleep(dice.choice([0, 0, 0.01]))
        end(engine, job)

    async def everybody():
        producing = asyncio.create_task(asyncio.to_thread(produce))
        seen = await asyncio.gather(*(watch() for _ in range(4)))
        await producing
        return seen

    for seen in asyncio.run(asyncio.wait_for(everybody(), 30)):
        assert seen == stored(engine, job)


# --- slow readers and bounds ----------------------------------------------------


def never_reads(address: str, path: str) -> socket.socket:
    parts = urlsplit(address)
    line = socket.socket()
    line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    line.settimeout(20)
    line.connect((parts.hostname, parts.port))
    line.sendall(f"GET {path} HTTP/1.0\r\nHost: ulak\r\n\r\n".encode())
    return line


def read_all(line: socket.socket) -> bytes:
    whole = bytearray()
    while part := line.recv(1 << 20):
        whole += part
    return bytes(whole)


@pytest.mark.shows("E-46")
def test_a_slow_reader_is_dropped_while_the_others_go_on(engine, served, monkeypatch):
    address, hub = served
    job = new_job(engine)
    monkeypatch.setattr(streams, "LAST_WORD_S", 0.2)
    queued = []
    offer = news.Watcher.offer

    def counted(watcher, news):
        taken = offer(watcher, news)
        queued.append((watcher.queued, watcher._bytes))
        return taken

    monkeypatch.setattr(news.Watcher, "offer", counted)

    def produce():
        for _ in range(1000):
            if hub.dropped and hub.connected == 1:
                break
            move(engine, job, 1, note="x" * 4_000)
        end(engine, job)

    async def watch():
        async with await Listener.connect(address, f"/jobs/{job}/events") as stream:
            await until(lambda: hub.connected == 2)
            producing = asyncio.create_task(asyncio.to_thread(produce))
            told = await stream.all(timeout=30)
            await producing
            return told

    with never_reads(address, f"/jobs/{job}/events") as slow:
        told = asyncio.run(watch())
        assert hub.dropped == 1
        assert numbers(told) == stored(engine, job)
        assert max(items for items, _ in queued) <= news.MOST_QUEUED
        assert max(size for _, size in queued) <= news.MOST_QUEUED_BYTES
        # It finds its connection closed, with the beginning of the trail in it, and resumes.
        got = [int(part.split(b"\n")[0]) for part in read_all(slow).split(b"\nid: ")[1:]]
    assert got == list(range(1, len(got) + 1))
    assert len(got) < len(numbers(told))


@pytest.mark.shows("E-46")
@pytest.mark.parametrize(("readers", "rounds"), [(1, (100, 600)), (200, (20, 80))])
def test_memory_stays_flat_however_much_is_told(engine, served, monkeypatch, readers, rounds):
    """Broken by a hub that keeps what it has told, for everybody or for each who reads."""
    address, hub = served
    job = new_job(engine)
    path = f"/jobs/{job}/events?after=1"
    monkeypatch.setattr(news, "MOST_QUEUED", 40)
    monkeypatch.setattr(news, "EVENTS_PER_LOOK", 20)
    told, kept = [0] * readers, []

    def tell(times: int) -> None:
        """Move the job, and wait for whoever reads: as much is on its way early as late."""
        for _ in range(times // 20):
            wanted = told[0] + 20
            move(engine, job, 20, note="x" * 4_000)
            while min(told) < wanted:
                time.sleep(0.01)

    def produce():
        for times in rounds:
            tell(times)
            gc.collect()
            kept.append(tracemalloc.get_traced_memory()[0])
        end(engine, job)

    async def read(n: int):
        async with await Listener.connect(address, path) as stream:
            async for _ in stream:
                told[n] += 1

    async def watch():
        reading = [asyncio.create_task(read(n)) for n in range(readers)]
        await until(lambda: hub.connected == readers + len(slow))
        await asyncio.gather(asyncio.to_thread(produce), *reading)

    slow = [never_reads(address, path) for _ in range(3)]
    tracemalloc.start()
    try:
        asyncio.run(asyncio.wait_for(watch(), 120))
    finally:
        tracemalloc.stop()
        for line in slow:
            line.close()
    few, many = kept
    more = readers * rounds[1] * 4_000
    assert many - few < more / 10, f"of {more:,} bytes that were told, {many - few:,} were kept"


def test_many_who_watch_one_job_cost_one_read(engine, served, monkeypatch):
    address, hub = served
    job = new_job(engine)
    monkeypatch.setattr(hubs, "GLANCE_S", 0.05)
    reads, looks = [], []
    find_job, look = engine.store.find_job, hub._look_at_jobs

    async def watch():
        async with listening(address, *[f"/jobs/{job}/events"] * 30) as listeners:
            for stream in listeners:
                await stream.next()
            monkeypatch.setattr(engine.store, "find_job", lambda i: reads.append(i) or find_job(i))
            monkeypatch.setattr(hub, "_look_at_jobs", lambda jobs: looks.append(jobs) or look(jobs))
            await until(lambda: len(looks) >= 5)

    asyncio.run(watch())
    assert 4 <= len(reads) <= len(looks)


def test_too_many_streams_are_told_to_come_back(engine, served, monkeypatch):
    address, hub = served
    monkeypatch.setattr(hubs, "MOST_WATCHERS", 2)
    job = new_job(engine)

    async def watch():
        path = f"/jobs/{job}/events"
        async with listening(address, path, path) as open_ones:
            async with await Listener.connect(address, path) as refused:
                assert refused.status == 429
                assert refused.headers["retry-after"] == "5"
                assert (await refused.body())["code"] == "overloaded"
            await open_ones[0].close()
            await until(lambda: hub.connected == 1)
            async with await Listener.connect(address, "/events") as stream:
                assert stream.status == 200

    asyncio.run(watch())


def test_whoever_leaves_leaves_nothing_behind(engine, served):
    address, hub = served
    job = new_job(engine)

    async def watch():
        paths = [f"/jobs/{job}/events", "/events", "/events?tenant=a"] * 5
        async with listening(address, *paths):
            await until(lambda: hub.connected == len(paths))
        await until(lambda: hub.connected == 0)

    asyncio.run(watch())
    assert list(hub.watchers) == []
    assert (hub._jobs, hub._lists, hub._looking) == ({}, {}, None)
    assert not engine.store._watchers


# --- the life of a stream -------------------------------------------------------


def test_a_server_that_stops_ends_its_streams_at_once(engine):
    job = new_job(engine)

    async def watch(server):
        paths = (f"/jobs/{job}/events?after=1", "/events")
        async with listening(server.address, *paths) as listeners:
            stopping = asyncio.create_task(asyncio.to_thread(server.stop))
            told = [await stream.all() for stream in listeners]
            await stopping
            return told

    def stop() -> None:
        with serving(engine) as (server, _):
            told = asyncio.run(watch(server))
        assert [[event.kind for event in stream] for stream in told] == [["stopping"]] * 2

    assert quickest(stop, of=3) < 3


def test_a_quiet_stream_says_that_it_is_alive(engine, served, monkeypatch):
    address, _ = served
    job = new_job(engine)
    monkeypatch.setattr(streams, "HEARTBEAT_S", 0.05)
    monkeypatch.setattr(streams, "CHECK_EVERY_S", 0.05)

    async def watch():
        async with await Listener.connect(address, f"/jobs/{job}/events?after=1") as stream:
            listening = asyncio.create_task(stream.all())
            await until(lambda: len(stream.comments) >= 2)
            listening.cancel()
            return stream.comments

    assert set(asyncio.run(watch())) == {": alive"}


def test_a_credential_that_is_taken_away_ends_its_stream(engine, monkeypatch):
    monkeypatch.setattr(streams, "CHECK_EVERY_S", 0.05)
    known = Known(person("ada", "viewer"), person("bob", "viewer"))
    job = new_job(engine)

    async def watch(address):
        path = f"/jobs/{job}/events?after=1"
        async with (
            await Listener.connect(address, path, authorization="Bearer ada") as ada,
            await Listener.connect(address, path, authorization="Bearer bob") as bob,
        ):
            del known.people["ada"]
            told = await ada.all()
            await asyncio.to_thread(move, engine, job, 1)
            assert (await bob.next()).id == "2"
            return told

    with serving(engine, identity=known) as (server, _):
        assert [event.kind for event in asyncio.run(watch(server.address))] == ["refused"]


def test_a_foreign_tenants_job_cannot_be_watched(engine):
    known = Known(person("ann", "viewer", "a"), person("bob", "service"))
    own, foreign = new_job(engine, tenant="a"), new_job(engine, tenant="b")

    async def ask(address, path, who="ann"):
        headers = {"authorization": f"Bearer {who}"}
        async with await Listener.connect(address, path, **headers) as stream:
            return stream.status, (None if stream.status == 200 else (await stream.body())["code"])

    with serving(engine, identity=known) as (server, _):
        for path, answer in [
            (f"/jobs/{own}/events", (200, None)),
            (f"/jobs/{foreign}/events", (404, "job-not-found")),
            ("/events?tenant=a", (200, None)),
            ("/events?tenant=b", (403, "forbidden")),
            (f"/jobs/{own}/events?after=x", (422, "bad-input")),
            (f"/jobs/{own}/events?from=1", (422, "bad-input")),
            ("/jobs/7/events", (422, "bad-input")),
            ("/events?colour=red", (422, "bad-input")),
        ]:
            assert asyncio.run(ask(server.address, path)) == answer, path
        assert asyncio.run(ask(server.address, "/events", "eve")) == (401, "unauthenticated")


# --- lists ----------------------------------------------------------------------


@pytest.mark.shows("E-46")
def test_whoever_comes_back_to_a_list_is_told_to_read_it_again(engine, served):
    address, _ = served

    async def watch():
        async with await Listener.connect(address, "/events?flow=to-and-fro") as stream:
            job = await asyncio.to_thread(new_job, engine)
            hint = await stream.next()
            assert (hint.kind, hint.data) == (
                "changed",
                {"counts": [{"flow": "to-and-fro", "version": 1, "state": "here", "role": "held",
                             "jobs": 1}]},
            )  # fmt: skip
        headers = {"last_event_id": hint.id}
        async with await Listener.connect(address, "/events", **headers) as stream:
            assert (await stream.next()).kind == "reread"
            await asyncio.to_thread(move, engine, job, 1)
            counts = (await stream.next()).data["counts"]
            assert {(row["state"], row["jobs"]) for row in counts} == {("here", 0), ("there", 1)}

    asyncio.run(watch())


def test_hints_are_few_however_much_happens(engine, served):
    address, _ = served

    def produce(stop):
        while time.monotonic() < stop:
            new_job(engine)

    async def watch():
        async with await Listener.connect(address, "/events") as stream:
            began = time.monotonic()
            await asyncio.to_thread(produce, began + 1.5)
            hints = []
            while sum(hints) < (await asyncio.to_thread(engine.inspect.counts))[0].jobs:
                hints.append((await stream.next()).data["counts"][0]["jobs"] - sum(hints))
            return len(hints), time.monotonic() - began

    hints, took = asyncio.run(watch())
    assert 1 <= hints <= 2 * took + 2


def test_a_tenant_is_told_of_its_own_jobs_only(engine):
    known = Known(person("ann", "viewer", "a"))

    async def watch(address):
        headers = {"authorization": "Bearer ann"}
        async with await Listener.connect(address, "/events", **headers) as stream:
            await asyncio.to_thread(new_job, engine, tenant="b")
            own = await asyncio.to_thread(new_job, engine, tenant="a")
            hint = await stream.next()
            assert (hint.kind, hint.data) == ("changed", {"jobs": [own]})
            await asyncio.to_thread(new_job, engine, tenant="b")
            with pytest.raises(TimeoutError):
                await stream.next(timeout=1.0)

    with serving(engine, identity=known) as (server, _):
        asyncio.run(watch(server.address))


# --- two processes --------------------------------------------------------------

MOVER = """
    import sys
    from tests.web.moving import FLOW, end, move
    import ulak

    with ulak.connect(sys.argv[1], flows=[FLOW]) as engine:
        engine.inspect.counts()
        print("ready", flush=True)
        for line in sys.stdin:
            (end if line == "end\\n" else move)(engine, sys.argv[2])
            print("done", flush=True)
"""


@contextmanager
def mover(url: str, job: str):
    """Another process that moves a job whenever it is told to."""
    arguments = [sys.executable, "-c", textwrap.dedent(MOVER), url, job]
    with subprocess.Popen(
        arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout.readline() == "ready\n"

        def tell(what: str) -> None:
            child.stdin.write(f"{what}\n")
            child.stdin.flush()
            assert child.stdout.readline() == "done\n"

        yield tell
        child.stdin.close()


@pytest.mark.shows("E-46")
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_what_another_process_does_is_told_within_about_a_second(store, tmp_path, request):
    url = f"sqlite:///{tmp_path}/jobs.db"
    if store == "postgres":
        url = request.getfixturevalue("postgres_url")

    async def watch(address, job, tell):
        waits = []
        async with (
            await Listener.connect(address, f"/jobs/{job}/events?after=1") as stream,
            await Listener.connect(address, "/events") as listing,
        ):
            for what in ("move", "move", "end"):
                await asyncio.to_thread(tell, what)
                began = time.monotonic()
                await stream.next()
                assert (await listing.next()).kind == "changed"
                waits.append(time.monotonic() - began)
            assert (await stream.next()).kind == "end"
        return waits

    with ulak.connect(url, flows=[FLOW]) as engine, serving(engine) as (server, _):
        job = new_job(engine)
        with mover(url, job) as tell:
            waits = asyncio.run(watch(server.address, job, tell))
    assert max(waits) < 2.5
