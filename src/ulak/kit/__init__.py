"""What services need besides the engine: commands, times, ids, strict JSON, fault points.

Each part is a module of its own, since each needs other extras: `ulak.kit.commands` needs Typer,
`ulak.kit.bodies` FastAPI, `ulak.kit.config_files` pydantic, `ulak.kit.logins` PyJWT, and
`ulak.kit.sealing` cryptography.
"""

from ulak.kit.faults import FaultPoint, FaultSteps
from ulak.kit.retry_after import read_retry_after
from ulak.strict_json import canonical_json, read_json

__all__ = ["FaultPoint", "FaultSteps", "canonical_json", "read_json", "read_retry_after"]
