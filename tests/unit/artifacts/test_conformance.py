"""Every storage keeps the promises of `ulak.artifacts.storage`."""

from ulak.testing.artifact_conformance import TestStorage

__all__ = ["TestStorage"]
