"""The wheel holds every file of the package, and every extra is tried by `make test-pythons`."""

from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

import pytest

from scripts.pythons.extras import EXTRAS, build_wheel, list_extras

SOURCE = Path(__file__).parents[2] / "src"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZipFile]:
    with ZipFile(build_wheel(tmp_path_factory.mktemp("wheel"))) as file:
        yield file


def read_metadata(wheel: ZipFile, name: str) -> str:
    (path,) = [path for path in wheel.namelist() if path.endswith(f".dist-info/{name}")]
    return wheel.read(path).decode()


def test_the_wheel_holds_every_file_of_the_package_and_nothing_else(wheel: ZipFile) -> None:
    files = {
        str(path.relative_to(SOURCE))
        for path in (SOURCE / "ulak").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    suffixes = {Path(name).suffix for name in files}
    assert {".py", ".sql", ".html", ".json", ".typed"} <= suffixes
    packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert packed == files


def test_the_wheel_brings_its_command_its_services_and_its_licence(wheel: ZipFile) -> None:
    points = read_metadata(wheel, "entry_points.txt")
    assert "ulak = ulak.cli:main" in points
    assert "[ulak.services]" in points
    assert "Apache License" in read_metadata(wheel, "licenses/LICENSE")


def test_every_extra_is_tried_in_an_environment_of_its_own(wheel: ZipFile) -> None:
    metadata = read_metadata(wheel, "METADATA")
    assert {extra.name for extra in EXTRAS} == list_extras()
    for name in list_extras():
        assert f"Provides-Extra: {name}\n" in metadata
