"""Secrets that are made once and kept in a folder, for whoever has set none."""

from __future__ import annotations

import json
import logging
import os
import stat
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from secrets import token_hex
from typing import Final

from ulak.auth.secrets import SHORTEST
from ulak.errors import BadInput

log = logging.getLogger("ulak.auth")

_OWNER_ONLY: Final = 0o600
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


def kept_secrets(
    path: Path, make: Callable[[], Mapping[str, str]], *, what: str, instead: str
) -> Mapping[str, str]:
    """Return the secrets that a file keeps, by their names; make both, if they are not there. Only
    the owner may read the file. Of several processes that begin at once one makes it, and all
    return the same.

    Args:
        path: The file, in the data folder, which is made too.
        make: Makes the secrets, each of 32 characters or more. A file that is there already must
            have all of their names.
        what: What they are, in a sentence: `the secret of tokens`.
        instead: The variable that may be set instead.

    Raises:
        BadInput: the folder or the file cannot be used; it says why and what to do.
    """
    made = make()
    try:
        try:
            return _read(path, made)
        except FileNotFoundError:
            _write(path, made)
            return _read(path, made)
    except OSError as error:
        raise BadInput(
            f"{what} cannot be kept in {path}: {error.strerror}; set ULAK_DATA to a folder of "
            f"yours, or {instead}"
        ) from error


def _read(path: Path, names: Iterable[str]) -> Mapping[str, str]:
    """Return what a file keeps. Raises `BadInput`: something is missing there, or too short."""
    with path.open(encoding="utf-8") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        if mode & _OTHERS:
            os.fchmod(file.fileno(), _OWNER_ONLY)
            log.warning(
                "others could read the secrets in a file; delete it to have new ones made",
                extra={"path": str(path), "mode": f"{mode:o}"},
            )
        try:
            found = json.load(file)
            kept = {name: found[name] for name in names}
            if not all(isinstance(s, str) and len(s) >= SHORTEST for s in kept.values()):
                raise ValueError
        except (ValueError, KeyError, TypeError):
            raise BadInput(f"{path} holds no secret of ulak; delete it to have one made") from None
    return kept


def _write(path: Path, secrets: Mapping[str, str]) -> None:
    """Write the file whole before it has its name; whoever comes second leaves it as it is."""
    if not path.parent.is_dir():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Nobody wants a secret in a repository because a folder was added whole.
        (path.parent / ".gitignore").write_text("*\n", encoding="utf-8")
    draft = path.with_name(f"{path.name}.{os.getpid()}.{token_hex(4)}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _OWNER_ONLY)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(dict(secrets), file)
            file.flush()
            os.fsync(file.fileno())
        os.link(draft, path)
    except FileExistsError:
        return
    finally:
        draft.unlink()
