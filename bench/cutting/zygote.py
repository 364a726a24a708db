"""Starts processes of cutting that have imported everything already: `python -m
bench.cutting.zygote`."""

from __future__ import annotations

from bench import zygote

PRELOADED = (
    "defusedxml.ElementTree", "openpyxl", "ulak.services.cutting", "ulak.services.cutting.commands",
    "ulak.services.cutting.flow", "ulak.services.cutting.jobs", "ulak.services.cutting.routes",
)  # fmt: skip

if __name__ == "__main__":
    zygote.serve(*PRELOADED)
