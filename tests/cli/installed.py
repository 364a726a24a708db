"""Packages that are installed for the length of a test, with the entry points that they declare."""

import sys
from pathlib import Path

import pytest


class Site:
    """A folder of packages, where this process and its children find them."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self._monkeypatch = monkeypatch

    def install(self, package: str, entry_points: str, code: str = "") -> None:
        """Install a package of one module with this code."""
        module = package.replace("-", "_")
        (self._folder / f"{module}.py").write_text(code)
        about = self._folder / f"{module}-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text(entry_points)
        self._monkeypatch.delitem(sys.modules, module, raising=False)
        self._monkeypatch.setitem(sys.modules, module, None)  # forgotten again after the test
        del sys.modules[module]
