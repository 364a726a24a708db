"""Nothing that a page tries gets out, and everything that was tried would have been seen."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from tests.services.pdf.browser.isolation.__main__ import SAMPLE
from tests.services.pdf.browser.isolation.listeners import free_name_server
from tests.services.pdf.browser.isolation.phases import VECTORS

ROOT: Final = Path(__file__).parents[4]
PROGRAM: Final = (sys.executable, "-m", "tests.services.pdf.browser.isolation")
NAMES: Final = frozenset(vector.name for vector in VECTORS)

ASKED_FOR: Final = frozenset(
    {
        "file-img",
        "file-stylesheet",
        "redirect",
        "redirect-to-metadata",
        "metadata",
        "ipv6-mapped",
        "websocket",
        "worker-fetch",
        "webrtc-stun",
        "window-open",
        "speculation-prerender",
        "meta-refresh",
        "beacon",
        "form",
    }
)
"""Vectors that a run without them would show too little."""
OF_NAMES: Final = frozenset({"dns-img", "dns-link-prefetch", "dns-iframe", "webrtc-stun-name"})
"""And these where a name server can be put in the browsers' way, which takes root."""


@pytest.mark.shows("P-27", "P-30")
def test_nothing_that_a_page_tries_gets_out(tmp_path: Path) -> None:
    prefix, name_server = towards_a_name_server(tmp_path)
    phases = run_of((*prefix, *PROGRAM, *name_server))
    counted = NAMES & set(phases["control"]["arrived"])

    assert len(counted) >= 45, f"the control shows too little: {sorted(NAMES - counted)}"
    assert counted >= ASKED_FOR
    if name_server:
        assert counted >= OF_NAMES
    for phase, tried in (
        ("namespace", NAMES),
        ("isolated", NAMES),
        ("playwright", {vector.name for vector in SAMPLE}),
    ):
        assert phases[phase]["arrived"] == [], phase
        assert phases[phase]["failures"] == {}, phase
        assert set(phases[phase]["printed"]) == tried, phase
    # What was refused was refused by the rules too, not only by the want of a network.
    for phase in ("isolated", "playwright"):
        assert phases[phase]["blocked"].keys() == {"allowlist", "scheme"}


def run_of(command: Sequence[str]) -> Mapping[str, Any]:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    phases: Mapping[str, Any] = json.loads(done.stdout)
    return phases


def towards_a_name_server(directory: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Give what makes a program ask a name server of ours, and that server's address.

    Only root can: the port is 53, and the file that names it is the machine's, bound over in a
    mount namespace of the program's own.
    """
    address = free_name_server()
    file = directory / "resolv.conf"
    file.write_text(f"nameserver {address}\n")
    mount = 'mount --bind "$0" /etc/resolv.conf && exec "$@"'
    prefix = ("unshare", "-m", "--propagation", "private", "sh", "-c", mount, str(file))
    if address is None or subprocess.run((*prefix, "true"), check=False).returncode != 0:
        return (), ()
    return prefix, (address,)
