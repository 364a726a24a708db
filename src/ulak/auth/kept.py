"""The secret of a developer's machine: made once, kept in a file that only its owner reads."""

from __future__ import annotations

import json
import logging
import os
import stat
from pathlib import Path
from secrets import token_hex
from typing import Final

from ulak.auth.tokens import SHORTEST_SECRET
from ulak.errors import BadInput

log = logging.getLogger("ulak.auth")

FILE: Final = "secrets.json"
_OWNER_ONLY = 0o600
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def kept_secret(folder: Path) -> str:
    """Return the secret that is kept in a folder; make both, if they are not there.

    Of several processes that begin at once one makes it, and all answer the same.

    Raises:
        BadInput: the folder or the file cannot be used; it says why and what to do.
    """
    path = folder / FILE
    try:
        try:
            return _read(path)
        except FileNotFoundError:
            _make(path)
            return _read(path)
    except OSError as error:
        raise BadInput(
            f"the secret of tokens cannot be kept in {path}: {error.strerror}; set ULAK_DATA to a "
            "folder of yours, or ULAK_SECRET"
        ) from error


def _read(path: Path) -> str:
    with path.open(encoding="utf-8") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        if mode & _OTHERS:
            os.fchmod(file.fileno(), _OWNER_ONLY)
            log.warning(
                "others could read the secret of tokens; delete the file to have a new one made",
                extra={"path": str(path), "mode": f"{mode:o}"},
            )
        try:
            secret = json.load(file)["secret"]
            if not isinstance(secret, str) or len(secret) < SHORTEST_SECRET:
                raise ValueError
        except (ValueError, KeyError, TypeError):
            raise BadInput(f"{path} holds no secret of ulak; delete it to have one made") from None
    return secret


def _make(path: Path) -> None:
    """Write the file whole before it has its name; whoever comes second leaves it as it is."""
    _make_folder(path.parent)
    draft = path.with_name(f"{FILE}.{os.getpid()}.{token_hex(4)}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _OWNER_ONLY)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump({"secret": token_hex(SHORTEST_SECRET)}, file)
            file.flush()
            os.fsync(file.fileno())
        os.link(draft, path)
    except FileExistsError:
        return
    finally:
        draft.unlink()


def _make_folder(folder: Path) -> None:
    if folder.is_dir():
        return
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Nobody wants a secret in a repository because a folder was added whole.
    (folder / ".gitignore").write_text("*\n", encoding="utf-8")
