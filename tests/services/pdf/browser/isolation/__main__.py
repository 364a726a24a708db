"""One run: the control, the namespace alone, then all of the service with either driver.

Prints what arrived in each phase as one JSON object. It is a program of its own because its
`/etc/resolv.conf` must lead to the name server of the run, in a mount namespace of its own.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict
from typing import Final

from tests.services.pdf.browser.isolation.phases import (
    VECTORS,
    control,
    isolated,
    namespace_alone,
)
from ulak.services.pdf.browser.devtools import DevTools
from ulak.services.pdf.browser.playwright import PlaywrightDriver

SAMPLE: Final = tuple(
    vector
    for number, vector in enumerate(VECTORS)
    # Those that interception alone misses or that are easily forgotten, and one of every six.
    if number % 6 == 0
    or vector.name.startswith(("web", "worker", "shared", "speculation", "window", "prefetch"))
)
"""What is tried again through Playwright, which differs above the namespace only."""


async def main(name_server: str | None) -> None:
    phases = {
        "control": await control(name_server),
        "namespace": await namespace_alone(name_server),
        "isolated": await isolated(DevTools(), name_server),
        "playwright": await isolated(PlaywrightDriver(), name_server, SAMPLE),
    }
    json.dump({name: asdict(phase) for name, phase in phases.items()}, sys.stdout, default=sorted)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else None))
