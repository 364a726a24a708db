"""What is done in children that are killed: they import no web framework, which takes seconds."""

import asyncio
from pathlib import Path

import ulak
from ulak import WorkerSettings
from ulak.services.cutting import attach
from ulak.services.cutting.jobs import Cutting
from ulak.settings import Settings

LEASE_S = 1.0


def start(url: str, folder: str) -> Cutting:
    return attach(ulak.connect(url), Settings(data=Path(folder)))


def approve(url: str, folder: str, job_id: str) -> None:
    """Let a held job go on."""
    start(url, folder).jobs.approve(job_id, actor="ada")


def work(url: str, folder: str) -> None:
    """Work with a short lease."""
    worker = start(url, folder).engine.worker(WorkerSettings(lease=LEASE_S))
    asyncio.run(worker.run(until_idle=True))
