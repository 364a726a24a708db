"""Settings come from one place each, and every bad one is named at once."""

from pathlib import Path

import pytest

from ulak import settings
from ulak.errors import BadInput


def project(folder: Path, text: str) -> Path:
    (folder / "pyproject.toml").write_text(text)
    return folder


def test_the_environment_wins_over_the_project_and_the_project_over_the_default(tmp_path: Path):
    folder = project(tmp_path, '[tool.ulak]\nport = 9000\nhost = "::1"\n')
    found = settings.load({"ULAK_PORT": "9001", "ULAK_ENV": ""}, folder)
    assert (found.port, found.host, found.env, found.app) == (9001, "::1", "dev", "")
    assert found.source("port") == "ULAK_PORT"
    assert found.source("host").startswith("[tool.ulak] host in ")
    assert found.source("env") == "default"


def test_only_this_machine_is_served_unless_told_otherwise(tmp_path: Path):
    assert settings.load({}, tmp_path).host == "127.0.0.1"
    assert settings.load({"ULAK_HOST": "192.0.2.1"}, tmp_path).host == "192.0.2.1"


def test_what_was_typed_wins_over_everything(tmp_path: Path):
    found = settings.load({"ULAK_PORT": "9001"}, tmp_path)
    typed = found.override("command line", port=0, host=None)
    assert (typed.port, typed.source("port")) == (0, "command line")
    assert typed.source("host") == "default"


def test_every_bad_value_is_named_at_once(tmp_path: Path):
    folder = project(tmp_path, '[tool.ulak]\napp = 7\nhosts = "x"\n')
    environ = {"ULAK_PORT": "65536", "ULAK_ENV": "prod", "ULAK_HOST": "  "}
    with pytest.raises(BadInput) as refused:
        settings.load(environ, folder)
    said = str(refused.value)
    for bad in ("app", "hosts", "ULAK_PORT is '65536'", "ULAK_ENV is 'prod'", "ULAK_HOST"):
        assert bad in said


@pytest.mark.parametrize("port", ["-1", "80.5", "٣", "port", "0x10", " "])
def test_a_port_is_a_plain_number(tmp_path: Path, port: str):
    with pytest.raises(BadInput, match="ULAK_PORT"):
        settings.load({"ULAK_PORT": port}, tmp_path)


@pytest.mark.parametrize(
    "text", ["[tool.ulak\n", "[tool]\nulak = 3\n", "\0", "[tool.ulak]\nport = true\n"]
)
def test_a_project_file_that_cannot_be_read_is_an_answer(tmp_path: Path, text: str):
    with pytest.raises(BadInput, match=r"pyproject\.toml"):
        settings.load({}, project(tmp_path, text))
