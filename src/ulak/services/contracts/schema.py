"""The tables of contracts and of their outbox."""

from __future__ import annotations

from importlib.resources import files
from typing import Final

from ulak.tables import DeliveryView, Schema

HANDLER: Final = "contracts-remote"
"""Under which name deliveries to the remote are stored."""
TOPIC: Final = "contract.status_change"

SCHEMA: Final = Schema(
    "contracts",
    folder=files("ulak.services.contracts") / "sql",
    version_table="hos_contract_schema",
    why="a status, its proof and the answer are one transaction",
    # "hos" in letters; a process of the first release that starts beside us takes this one.
    lock=6844275,
    deliveries=DeliveryView("hos_outbox_deliveries", handler=HANDLER, topic=TOPIC),
)
