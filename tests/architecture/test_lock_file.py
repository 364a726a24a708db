"""requirements.lock holds versions and hashes: it installs from whatever index a user has."""

import re
from pathlib import Path

LOCK = Path(__file__).parents[2] / "requirements.lock"

# name==version, perhaps a marker, then hashes on lines of their own. Whatever does not look
# like one of these two - an index, a link, a path, a direct reference - has no place here.
PIN = re.compile(r"[a-z0-9][a-z0-9-]*==[\w.+!]+( ; [\w .'\"<>=!()]+)? \\")
HASH = re.compile(r"    --hash=sha256:[0-9a-f]{64}( \\)?")


def test_lock_file_holds_pins_and_hashes_only() -> None:
    lines = LOCK.read_text(encoding="utf-8").splitlines()
    strange = [line for line in lines if not (PIN.fullmatch(line) or HASH.fullmatch(line))]
    assert lines
    assert strange == []


def test_lock_file_names_no_address_and_no_path() -> None:
    text = LOCK.read_text(encoding="utf-8")
    assert re.findall(r"://|/|--(?!hash=)\S+", text) == []
