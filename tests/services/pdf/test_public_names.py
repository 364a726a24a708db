"""What a program may import, and what it gets into its process by that."""

import subprocess
import sys

import pytest

import ulak
import ulak.services.pdf as pdf
from ulak.errors import NotSupported
from ulak.settings import Settings


@pytest.mark.parametrize("name", sorted(pdf._PUBLIC))
def test_every_public_name_can_be_had(name: str) -> None:
    assert getattr(pdf, name) is not None
    assert name in dir(pdf)


def test_other_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="Nothing"):
        _ = pdf.Nothing


@pytest.mark.shows("P-1")
def test_no_public_name_and_no_attaching_imports_a_browser() -> None:
    code = """
import sys
import ulak.services.pdf as pdf
from ulak.settings import Settings
assert "ulak.services.pdf.jobs" not in sys.modules, "nothing before it is asked for"
for name in pdf._PUBLIC:
    getattr(pdf, name)
import ulak
pdf.service.attach(ulak.connect("memory://"), Settings())
heavy = ("playwright", "pikepdf", "cryptography")
found = [name for name in sys.modules if ".browser" in name or name.startswith(heavy)]
assert not found, found
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("module", ["jinja2", "pikepdf"])
def test_without_the_extra_the_service_says_what_to_install(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(NotSupported, match=rf"{module}.*ulak\[pdf\]"):
        pdf.service.attach(ulak.connect("memory://"), Settings())
    assert pdf.service.commands is not None
    with pytest.raises(NotSupported, match=rf"{module}.*ulak\[pdf\]"):
        pdf.service.commands()


@pytest.mark.parametrize(
    ("module", "name"), [("jinja2", "Templates"), ("fastapi", "PdfJobRequest")]
)
def test_without_the_extra_a_public_name_says_what_to_install(module: str, name: str) -> None:
    code = f"import sys; sys.modules[{module!r}] = None; from ulak.services.pdf import {name}"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    said = child.stderr.strip().splitlines()[-1]
    assert said.startswith(f"ModuleNotFoundError: ulak.services.pdf.{name} needs {module}")
    assert "pip install 'ulak[pdf,web]'" in said
