"""The soak: kill workers for a long time, and count what an outside ledger saw."""
