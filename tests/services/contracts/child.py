"""Another process that asks for transitions: `python -m tests.services.contracts.child`.

It says `ready`, waits for a line, asks from several threads at once, and says what it was told.
"""

import json
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.services.contracts.house import House
from ulak.errors import GuardUnavailable, InProgress
from ulak.services.contracts.requests import Transition


def told(house: House, asked: dict[str, Any]) -> dict[str, Any]:
    """Ask until there is an answer, as a client does that was told to try again."""
    while True:
        try:
            answered = house.contracts.transition(Transition(**asked))
        except (InProgress, GuardUnavailable):
            continue
        body = answered.answer.body.decode()
        return {"key": asked["key"], "body": body, "is_replay": answered.is_replay}


def die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(url: str, requests: str, is_to_die: str) -> None:
    asked = json.loads(requests)
    house = House(url, on_change=die if is_to_die == "die" else None)
    house.engine.open()
    say("ready")
    sys.stdin.readline()
    with ThreadPoolExecutor(len(asked)) as threads:
        say(json.dumps(list(threads.map(lambda one: told(house, one), asked))))
    house.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
