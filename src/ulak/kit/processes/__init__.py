"""Processes of services: an application, workers, or both, run as `ulak up` and `ulak worker` run
theirs. Needs Typer, which the command line has; an application needs the web extra."""

from ulak.kit.processes.logs import secrets_of
from ulak.kit.processes.running import Work, run

__all__ = ["Work", "run", "secrets_of"]
