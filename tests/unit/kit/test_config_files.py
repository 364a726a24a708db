"""Files of configuration: checked, read again when they change, written whole or not at all."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pydantic import Field, ValidationInfo, field_validator

from ulak.kit import config_files
from ulak.kit.config_files import ConfigFile, ConfigSection


class Part(ConfigSection):
    width: float = 1.5


class Shop(ConfigSection):
    name: str
    parts: list[Part] = Field(default_factory=list)
    folder: str = ""

    @field_validator("folder")
    @classmethod
    def below(cls, value: str, info: ValidationInfo) -> str:
        return str(Path((info.context or {})["folder"], value))


class Bad(Exception):
    pass


class Away(Exception):
    pass


@pytest.fixture
def file(tmp_path: Path) -> ConfigFile[Shop]:
    made = ConfigFile(tmp_path / "shop.json", Shop, invalid=Bad, unavailable=Away)
    made.make({"name": "Ağaç", "parts": [{"width": 2}]})
    return made


def again(file: ConfigFile[Shop]) -> ConfigFile[Shop]:
    return ConfigFile(file.path, Shop, invalid=Bad, unavailable=Away)


def test_a_file_is_made_once(file: ConfigFile[Shop]) -> None:
    assert json.loads(file.path.read_text()) == {"name": "Ağaç", "parts": [{"width": 2}]}
    file.make({"name": "other"})
    assert file.read().name == "Ağaç"


def test_of_many_that_make_it_at_once_one_does(tmp_path: Path) -> None:
    path = tmp_path / "one.json"
    files = [ConfigFile(path, Shop, invalid=Bad, unavailable=Away) for _ in range(8)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda each: files[each].make({"name": str(each)}), range(8)))
    assert len({file.read().name for file in files}) == 1
    assert os.listdir(tmp_path) == ["one.json"]


def test_what_is_in_force_has_every_default(file: ConfigFile[Shop], tmp_path: Path) -> None:
    file.write({"name": "a", "parts": [{}, {"width": 2.0}], "folder": "below"})
    document = file.read().document()
    assert document == {
        "name": "a", "parts": [{"width": 1.5}, {"width": 2}], "folder": str(tmp_path / "below"),
    }  # fmt: skip
    assert isinstance(document["parts"][1]["width"], int)


def test_every_reader_sees_a_change(file: ConfigFile[Shop]) -> None:
    other = again(file)
    assert other.read().name == "Ağaç"
    assert file.write({"name": "new"}).name == "new"
    assert other.read().name == "new"
    file.path.write_text('{"name": "old"}')
    os.utime(file.path, ns=(1, 1))  # a clock that jumps back is a change too
    assert other.read().name == file.read().name == "old"


def test_an_unchanged_file_is_not_read_again(
    file: ConfigFile[Shop], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = file.read()
    monkeypatch.setattr(config_files, "read_json", None)
    assert file.read() is before


@pytest.mark.parametrize(
    ("values", "wrong"),
    [
        ({"name": 1}, "name: "), ({}, "name: Field required"), ([], "body: "), (None, "body: "),
        ({"name": "a", "colour": "b"}, "colour: "),
        ({"name": "a", "parts": [{}, {"width": "x"}]}, r"parts\.1\.width: "),
        ({"name": 1, "colour": 2}, "name: .*; colour: "),
    ],
)  # fmt: skip
def test_wrong_values_are_refused_with_every_problem_and_change_nothing(
    file: ConfigFile[Shop], values: Any, wrong: str
) -> None:
    before = file.path.read_bytes()
    with pytest.raises(Bad, match=f"^{wrong}"):
        file.write(values)
    assert file.path.read_bytes() == before
    file.path.write_text(json.dumps(values))
    with pytest.raises(Away, match=rf"shop\.json: {wrong}"):
        file.read()


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff", b'{"name": "a", "name": "b"}', b'{"name": NaN}', b"[" * 10**5]
)
def test_a_file_that_cannot_be_read_is_unavailable_until_it_is_mended(
    file: ConfigFile[Shop], content: bytes
) -> None:
    good = file.path.read_bytes()
    file.read()
    file.path.write_bytes(content)
    with pytest.raises(Away, match=r"shop\.json cannot be read"):
        file.read()
    file.path.unlink()
    with pytest.raises(Away, match=r"shop\.json cannot be read"):
        file.read()
    file.path.write_bytes(good)
    assert file.read().name == "Ağaç"


def test_a_full_disk_changes_nothing(
    file: ConfigFile[Shop], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_args: object, **_options: object) -> None:
        raise OSError(28, "No space left on device")

    before = file.path.read_bytes()
    monkeypatch.setattr(config_files, "write_atomically", fail)
    with pytest.raises(Away, match="cannot be written"):
        file.write({"name": "new"})
    assert file.path.read_bytes() == before
    with pytest.raises(Away, match="cannot be written"):
        ConfigFile(file.path.parent / "x.json", Shop, invalid=Bad, unavailable=Away).make({})
