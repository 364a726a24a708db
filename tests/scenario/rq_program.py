"""A program whose jobs RQ workers run: letters are printed in one queue and sent in another."""

import os
import time
from datetime import timedelta
from pathlib import Path

import ulak
from ulak import Backoff, Flow, Lifecycle, Run

STUCK = "stuck"


def letters() -> Flow[str]:
    flow: Flow[str] = Flow(
        "letters",
        Lifecycle("written", {"written": ["printed"], "printed": ["sent"]}, done="sent"),
        retry=Backoff(3, first=timedelta(0)),
    )

    @flow.stage("written", queue="press", timeout=timedelta(seconds=1))
    def press(run: Run[str]) -> None:
        with Path(os.environ["LEDGER"]).open("a") as ledger:
            ledger.write(f"{run.payload} {os.getpid()}\n")
        if run.payload == STUCK and run.token == 1:
            time.sleep(600)

    @flow.stage("printed", queue="post")
    async def send(run: Run[str]) -> None: ...

    return flow


if "LETTERS" in os.environ:  # in the process of a worker
    engine = ulak.connect(os.environ["LETTERS"], flows=[letters()])
    engine.flow_control.apart("press", lease=timedelta(seconds=1))
