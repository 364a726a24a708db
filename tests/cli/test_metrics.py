"""Metrics of processes: `ulak up` shows its API's and its worker's, a worker its own."""

import signal
import socket

import httpx

from tests.cli.test_up import PATIENCE_S, address, greeting, running, until

DONE = 'ulak_moves_total{flow="greet",role="done",state="done"} 1.0'


def test_up_shows_what_its_worker_does(shop):
    shop.submit("greet", "ada")
    with running(shop, "up", "shop:engine", "--port", "0") as process:
        base = address(greeting(process))
        key = shop.ulak("keys", "create", "prometheus", "--role", "viewer").out.strip()
        headers = {"Authorization": f"Bearer {key}"}
        until(lambda: DONE in httpx.get(f"{base}/metrics", headers=headers).text)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0


def test_a_worker_shows_its_metrics_when_it_is_told_to(shop):
    shop.submit("greet", "ada")
    with running(shop, "worker", "shop:engine", "--metrics-port", "0") as process:
        said = greeting(process)
        at = next(line.split()[1] for line in said.splitlines() if "metrics" in line)
        assert at.startswith("http://127.0.0.1:")
        until(lambda: DONE in httpx.get(at).text)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err


def test_a_taken_port_for_metrics_is_one_line(shop):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        answer = shop.run("worker", "shop:engine", "--metrics-port", port)
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith(f"error: cannot show metrics on 127.0.0.1 port {port}")
    assert answer.err.count("\n") == 1
