"""What strangers cost: large and half-sent bodies of nobody known, and guesses of passwords.

The server, the senders and whoever measures are processes of their own.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import statistics
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from fastapi import FastAPI

import ulak
import ulak.web
from bench.measure import ROOT, Figure, scratch
from bench.served import Place, serve, served
from ulak.auth.identity import Identity
from ulak.engine.worker import settle_in

SENDERS = 32
LARGE = 7_800_000
SECONDS = 20.0
PROBES = 2_000
MOST_MS, MOST_OF_IDLE = 50.0, 5
MOST_MIB = 150
GUESSERS, LOGINS, LOGIN_S = 16, 20, 5.0
USER, PASSWORD = "ada", "correct horse battery staple"
COMMAND = "python -m bench.figures strangers"

HALVES = (
    b"POST /jobs HTTP/1.1\r\nHost: x\r\nContent-Type: app",
    b"POST /jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 7800000\r\n\r\n{",
    b"POST /auth/login HTTP/1.1\r\nHost: x\r\nContent-Length: 60000\r\n\r\n{",
)


# --- the server, in a process of its own ------------------------------------------


def run(url: str) -> None:
    """Be the server, of an installation with one user."""
    engine = ulak.connect(url)

    def make(identity: Identity) -> FastAPI:
        identity.create_user(USER, PASSWORD, roles=["viewer"], actor="bench")
        return ulak.web.app(engine, identity=identity)

    settle_in()
    serve(engine, make)


# --- the senders, in a process of their own ------------------------------------------


async def send(host: str, port: int, seconds: float) -> None:
    """Send half of the time large bodies, half of the time halves of requests."""
    ends_at = time.monotonic() + seconds
    head = f"POST /jobs HTTP/1.1\r\nHost: x\r\nContent-Length: {LARGE}\r\n\r\n".encode()
    body = b" " * LARGE

    async def one(n: int) -> None:
        while time.monotonic() < ends_at:
            with suppress(OSError, TimeoutError):
                reader, writer = await asyncio.open_connection(host, port)
                async with asyncio.timeout(ends_at - time.monotonic()):
                    if n % 2:
                        writer.write(HALVES[n // 2 % len(HALVES)])
                        await reader.read()  # until the server has enough of it
                    else:
                        writer.write(head)
                        writer.write(body)
                        await writer.drain()
                        await reader.read(65536)
                writer.close()

    await asyncio.gather(*(one(n) for n in range(SENDERS)))


# --- figures ----------------------------------------------------------------------


def probe(place: Place, probes: int) -> float:
    """Return the 99th percentile of answers of `/health/live`, in milliseconds."""
    took = []
    connection = http.client.HTTPConnection(place.host, place.port)
    for _ in range(probes):
        began = time.perf_counter()
        connection.request("GET", "/health/live")
        answer = connection.getresponse()
        answer.read()
        took.append((time.perf_counter() - began) * 1e3)
        assert answer.status == 200
        time.sleep(0.005)
    connection.close()
    return statistics.quantiles(took, n=100)[98]


def resident_mib(process: int) -> float:
    """Return how much memory a process has."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def send_figures(place: Place, seconds: float, probes: int) -> list[Figure]:
    """Ask whether the server lives, and how large it is, beside the senders."""
    idle_ms = probe(place, probes)
    idle_mib = most_mib = resident_mib(place.process.pid)
    words = [f"{place.host}:{place.port}", "--send", str(seconds)]
    sending = subprocess.Popen([sys.executable, "-m", "bench.strangers", *words], cwd=ROOT)
    has_ended = threading.Event()

    def watch() -> None:
        nonlocal most_mib
        while not has_ended.wait(0.05):
            most_mib = max(most_mib, resident_mib(place.process.pid))

    watching = threading.Thread(target=watch)
    watching.start()
    time.sleep(1)
    loaded_ms = probe(place, probes)
    sending.wait(seconds + 30)
    has_ended.set()
    watching.join()
    bound = max(MOST_MS, MOST_OF_IDLE * idle_ms)
    return [
        Figure(
            f"`/health/live` beside {SENDERS} anonymous senders of large and half-sent bodies, p99",
            f"<= {bound:.0f} ms", f"{loaded_ms:.1f} ms (idle {idle_ms:.1f} ms)",
            loaded_ms <= bound, COMMAND,
        ),
        Figure(
            f"memory of the server beside {SENDERS} anonymous senders, above idle",
            f"<= {MOST_MIB} MiB", f"{most_mib - idle_mib:.0f} MiB (idle {idle_mib:.0f} MiB)",
            most_mib - idle_mib <= MOST_MIB, COMMAND,
        ),
    ]  # fmt: skip


def log_in(place: Place, source: str, name: str, password: str) -> int:
    """Return the status of a login from an address."""
    connection = http.client.HTTPConnection(
        place.host, place.port, timeout=60, source_address=(source, 0)
    )
    body = json.dumps({"name": name, "password": password})
    connection.request("POST", "/auth/login", body, {"Content-Type": "application/json"})
    status = connection.getresponse().status
    connection.close()
    return status


def login_figure(place: Place, logins: int = LOGINS) -> Figure:
    """Log in beside guessers, each of them at an address of its own."""
    has_ended = threading.Event()
    guessed = [0] * GUESSERS

    def guess(n: int) -> None:
        while not has_ended.is_set():
            log_in(place, f"127.0.1.{n + 1}", USER if n % 2 else f"user{guessed[n]}", "a guess")
            guessed[n] += 1

    guessers = [threading.Thread(target=guess, args=(n,)) for n in range(GUESSERS)]
    for each in guessers:
        each.start()
    time.sleep(0.2)
    took, right = [], 0
    for _ in range(logins):
        began = time.monotonic()
        right += log_in(place, "127.0.0.1", USER, PASSWORD) == 200
        took.append(time.monotonic() - began)
    has_ended.set()
    for each in guessers:
        each.join()
    within = sum(each <= LOGIN_S for each in took)
    said = f"the slowest {max(took):.2f} s; {sum(guessed):,} guesses"
    return Figure(
        f"correct logins beside {GUESSERS} guessers from {GUESSERS} addresses, within "
        f"{LOGIN_S:g} s each",
        f"{logins} of {logins}",
        f"{min(right, within)} of {logins} ({said})",
        right == within == logins, COMMAND,
    )  # fmt: skip


def strangers_figures(seconds: float = SECONDS, probes: int = PROBES) -> list[Figure]:
    """On SQLite, which the server starts with."""
    with scratch() as folder, served("bench.strangers", [f"sqlite:///{folder / 's.db'}"]) as place:
        return [*send_figures(place, seconds, probes), login_figure(place)]


def main() -> None:
    """Be the server, or the senders."""
    parser = argparse.ArgumentParser(prog="bench.strangers", description=__doc__)
    parser.add_argument("where")
    parser.add_argument("--send", type=float, metavar="SECONDS", help="send to HOST:PORT")
    given = parser.parse_args()
    if given.send is None:
        run(given.where)
        return
    host, _, port = given.where.rpartition(":")
    asyncio.run(send(host, int(port), given.send))


if __name__ == "__main__":
    main()
