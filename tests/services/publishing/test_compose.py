"""`docker-compose.yml` and what belongs to it: true of the program, and run without containers."""

import re
import shlex
import shutil
import sys
from configparser import RawConfigParser
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer
import yaml

from bench.ports import reserve_port
from tests.services.publishing.gateway import nginx
from tests.services.publishing.parts import (
    ROOT,
    Parts,
    publish_one,
    pushes,
    until,
)
from tests.services.publishing.test_keys import keys_in
from ulak.control.guard import VARIABLES
from ulak.errors import BadInput
from ulak.service import get_service
from ulak.services.publishing.settings import WORKERS, load
from ulak.settings import describe_settings as describe
from ulak.settings import variable

COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if "build" in service}
OWN_KEYS = {f"INTERNAL_API_KEY_{worker.upper()}" for worker in WORKERS}
KNOWN = {*describe(load({})), *OWN_KEYS}
# Where nothing is said, these are declared beside each handler.
DEFAULTS = replace(load({}), saga_max_retries=3, notify_max_retries=3, retry_jitter=True)
A_DEFAULT = re.compile(r"\$\{(\w+):-(.*)\}")
GUARD = frozenset(VARIABLES)
COMMENTED = re.compile(r"^#?([A-Z_]+)=(.*)$", re.M)
PUSH_KEY = "a-key-of-grace"


def environ_of(service: dict[str, Any], said: dict[str, str]) -> dict[str, str]:
    """The environment of a container, where `.env` says this."""
    found = {}
    for name, text in service["environment"].items():
        written = A_DEFAULT.fullmatch(str(text))
        found[name] = said.get(written[1], written[2]) if written else str(text)
    return found


@pytest.mark.shows("S-43")
def test_the_services_are_named_as_specified_and_run_from_one_image():
    assert set(SERVICES) == {
        "backend", "users-api", "worker", "saga-worker", "dlq-worker", "push-notificator",
        "redis", "api-gateway",
    }  # fmt: skip
    assert set(SERVICES) - set(OURS) == {"redis", "api-gateway"}
    words = shlex.split(SERVICES["redis"]["command"])
    assert words == ["redis-server", "--appendonly", "yes", "--appendfsync", "always"]
    assert {(s["build"], s["image"], s["restart"]) for s in OURS.values()} == {
        (".", "ulak-publishing", "unless-stopped")
    }
    assert SERVICES["backend"]["ports"] == ["8000:8000"]
    assert SERVICES["api-gateway"]["ports"] == ["80:80"]
    gateway = (ROOT / "nginx.conf").read_text()
    for name in ("backend", "users-api"):
        port = shlex.split(OURS[name]["command"])[-1]
        assert f"server {name}:{port};" in gateway


@pytest.mark.shows("S-43")
@pytest.mark.parametrize("name", OURS)
def test_a_container_runs_a_command_that_exists_with_variables_that_exist(name):
    words = shlex.split(OURS[name]["command"])
    assert words[:3] == ["ulak", "publishing", name]
    commands = typer.main.get_group(get_service("publishing").commands()).commands
    options = {option for parameter in commands[name].params for option in parameter.opts}
    assert [word for word in words if word.startswith("--") and word not in options] == []
    environ = environ_of(OURS[name], {})
    ulaks = {variable(field) for field in ("env", "service", "data", "trusted_proxies")}
    # Every variable of section 12.
    assert set(environ) == KNOWN | ulaks
    for worker in OWN_KEYS | {"INTERNAL_API_KEY"}:
        assert OURS[name]["environment"][worker] == f"${{{worker}:-}}"  # from .env
    same = {"DATABASE_URL", "REDIS_URL", "USERS_DATABASE_URL", "BACKEND_URL", "PUSH_SERVICE_URL"}
    defaults = {k: v for k, v in environ.items() if k in KNOWN - same}
    assert load(defaults) == DEFAULTS


@pytest.mark.shows("S-43")
def test_the_example_of_an_env_file_names_every_variable_with_its_default():
    text = (ROOT / ".env.example").read_text()
    # Those of the platform's guard, whose lines show limits and no defaults, have a test there.
    found = {k: v for k, v in COMMENTED.findall(text) if k not in GUARD}
    assert set(found) == KNOWN | {"ULAK_ENV"}
    in_force = re.findall(r"^([A-Z_]+)=(.*)$", text, re.M)
    assert in_force == [("INTERNAL_API_KEY", "change-me-in-production")]
    with pytest.raises(BadInput, match="holds a placeholder"):
        load(dict(in_force)).must_have_keys("dlq")
    examples = {"DATABASE_URL", "REDIS_URL", "USERS_DATABASE_URL", "INTERNAL_API_KEY", "ULAK_ENV"}
    defaults = {k: v.strip("'") for k, v in found.items() if k not in examples}
    assert load(defaults) == DEFAULTS


def test_the_image_has_the_program_and_the_script_in_its_working_directory():
    text = (ROOT / "Dockerfile").read_text()
    assert '.[web,postgres,redis,publishing]"' in text
    assert "COPY scripts/generate_api_keys.py ./" in text
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    for copied in re.findall(r"^COPY (.+) \S+$", text, re.M):
        for path in copied.split():
            assert (ROOT / path).exists()
            assert f"!{path}" in ignored


def test_the_units_of_systemd_run_the_parts():
    folder = ROOT / "deploy" / "systemd" / "publishing"
    unit = RawConfigParser(strict=False)
    unit.read(folder / "ulak-publishing@.service")
    assert shlex.split(unit["Service"]["ExecStart"])[1:] == ["publishing", "%i"]
    target = (folder / "ulak-publishing.target").read_text()
    wanted = re.findall(r"ulak-publishing@([\w-]+)\.service", target)
    commands = typer.main.get_group(get_service("publishing").commands()).commands
    assert set(wanted) <= set(commands)
    assert set(wanted) == set(OURS) - {"push-notificator"}


@pytest.mark.shows("S-43", "S-44", "S-35")
def test_the_set_up_of_the_file_publishes_a_post_through_the_gateway(
    tmp_path: Path, zygote, redis_url: str
):
    """Every command of the file as a plain process, beside a real Redis and behind a real nginx:
    first without a key, as after the first `up -d`, then with one that the script has made."""
    ports = {name: reserve_port() for name in ("backend", "users-api", "push-notificator")}
    here = {
        f"http://{name}:{shlex.split(OURS[name]['command'])[-1]}": f"http://127.0.0.1:{port}"
        for name, port in ports.items()
    } | {"/data": str(tmp_path), "redis://redis:6379/0": redis_url}

    def command_of(name: str) -> str:
        words = shlex.split(OURS[name]["command"])
        if name in ports:
            words[-3:] = ["127.0.0.1", "--port", str(ports[name])]
        # One of each kind begins as in its container: with its own imports.
        alone = [sys.executable, "-m"] if name in ("backend", "saga-worker") else []
        return shlex.join([*alone, *words])

    def environ(**said: str) -> dict[str, str]:
        said["MODERATION_APPROVE_RATE"] = "1"
        (found,) = {tuple(environ_of(service, said).items()) for service in OURS.values()}
        moved = dict(found)
        for name, value in moved.items():
            for there, meant in here.items():
                moved[name] = value = value.replace(there, meant)
        return moved

    shutil.copy(ROOT / "scripts" / "generate_api_keys.py", tmp_path)
    workers = [name for name in OURS if name not in ports]
    unset = environ(INTERNAL_API_KEY="change-me-in-production")
    with Parts(tmp_path, zygote, **unset) as parts:
        parts.start(*(command_of(name) for name in ports))
        refused = [parts.begin(command_of(name)) for name in workers]
        assert [part.process.wait() for part in refused] == [1] * len(workers)
        assert all("error: INTERNAL_API_KEY holds a placeholder" in p.said for p in refused)
        # docker-compose exec backend python generate_api_keys.py
        key = keys_in(parts.run(f"{sys.executable} generate_api_keys.py").said)["preview-worker"]
        parts.environ = environ(INTERNAL_API_KEY=key)
        started = dict(zip(workers, parts.start(*map(command_of, workers)), strict=True))
        queues = {
            "saga-worker": "article-saga", "worker": "article-notifications", "dlq-worker": "dlq",
        }  # fmt: skip
        for name, queue in queues.items():
            # docker-compose logs saga-worker | grep queue
            (line,) = [line for line in started[name].said.splitlines() if "queue" in line]
            assert line.endswith(f"queue={queue}")
        servers = {
            "backend:8000": f"127.0.0.1:{ports['backend']}",
            "users-api:8001": f"127.0.0.1:{ports['users-api']}",
        }
        folder = tmp_path / "nginx"
        folder.mkdir()
        with nginx(folder, servers) as gateway:
            post = publish_one(gateway, gateway, parts.said, PUSH_KEY)
            assert post["preview_url"]
            receiver = f"http://127.0.0.1:{ports['push-notificator']}"
            (told,) = until(lambda: pushes(receiver, PUSH_KEY), parts.said)
            assert told["message"].endswith("A first po...")
            known = {"Authorization": f"Token {key}"}
            hidden = httpx.get(f"{gateway}/internal/articles/{post['id']}", headers=known)
            assert hidden.status_code == 404
            inside = f"http://127.0.0.1:{ports['backend']}/internal/articles/{post['id']}"
            assert httpx.get(inside, headers=known).status_code == 200
        parts.stop_all()
        assert [name for name, part in started.items() if key in part.said] == []
    # Users have a database of their own.
    assert (tmp_path / "users.db").exists()
