"""Configuration that people edit: JSON files that a model checks, read again when they change."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from pydantic import BaseModel, ConfigDict, ValidationError

from ulak.kit.files import write_atomically
from ulak.strict_json import canonical_json, read_json

__all__ = ["ConfigFile", "ConfigSection", "list_problems"]


class ConfigSection(BaseModel):
    """The base of models of files, and of parts of them. A key that the model does not know is
    refused: a misspelt setting would not hold."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    def document(self) -> dict[str, Any]:
        """Return what is in force, ready for JSON: with every default, by the keys of the file."""
        return cast(
            dict[str, Any], read_json(canonical_json(self.model_dump(mode="json", by_alias=True)))
        )


Section = TypeVar("Section", bound=ConfigSection)


def list_problems(error: ValidationError) -> list[str]:
    """Return each problem that a model has found, as `path.with.dots: text`."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    return [
        f"{'.'.join(map(str, each['loc'])) or 'body'}: {each['msg'].removeprefix('Value error, ')}"
        for each in found
    ]


class ConfigFile(Generic[Section]):
    """One file, shared by any number of threads and processes, of whom each may change it.

    Validators find its folder as `info.context["folder"]`.

    Args:
        path: Where it is, or will be.
        model: What it says.
        invalid: Raised for values that cannot be used, with every problem.
        unavailable: Raised when the file is not there, or says what cannot be used.
    """

    def __init__(
        self, path: Path, model: type[Section], *, invalid: type[Exception],
        unavailable: type[Exception],
    ) -> None:  # fmt: skip
        self.path = path
        self._model = model
        self._invalid, self._unavailable = invalid, unavailable
        self._context = {"folder": path.parent}
        self._known: tuple[tuple[int, int, int], Section] | None = None

    def read(self) -> Section:
        """Return what the file says now, which is read again if it has changed. Raises
        `unavailable`."""
        try:
            found = os.stat(self.path)
            stamp = (found.st_ino, found.st_mtime_ns, found.st_size)
            known = self._known
            if known is None or known[0] != stamp:
                values = read_json(self.path.read_bytes())
                # Stamped before it was read: a change meanwhile is found by the next look.
                known = stamp, self._model.model_validate(values, context=self._context)
                self._known = known
        except ValidationError as error:
            raise self._unavailable(f"{self.path}: {'; '.join(list_problems(error))}") from None
        except (OSError, ValueError, RecursionError) as error:
            raise self._unavailable(f"{self.path} cannot be read: {error}") from None
        return known[1]

    def make(self, values: Mapping[str, Any]) -> None:
        """Write the file, unless it is there. Raises `unavailable`."""
        if not self.path.exists():
            with suppress(FileExistsError):  # another process was quicker, or a person
                self._write(values, replace=False)

    def write(self, values: Any) -> Section:
        """Write other values, the file whole or not at all, and return them. Raises `invalid` and
        `unavailable`: nothing was changed."""
        try:
            self._model.model_validate(values, context=self._context)
        except ValidationError as error:
            raise self._invalid("; ".join(list_problems(error))) from None
        self._write(values, replace=True)
        return self.read()

    def _write(self, values: Mapping[str, Any], *, replace: bool) -> None:
        text = json.dumps(values, indent=2, ensure_ascii=False) + "\n"
        try:
            write_atomically(self.path, text.encode(), replace=replace)
        except FileExistsError:
            raise
        except OSError as error:
            raise self._unavailable(f"{self.path} cannot be written: {error}") from None
