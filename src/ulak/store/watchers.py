"""What is called after a commit that may have moved jobs."""

from __future__ import annotations

from collections.abc import Callable


class Watchers:
    """Callbacks that come and go on any thread. Their calls must be quick and must not raise."""

    def __init__(self) -> None:
        self._watching: dict[object, Callable[[], None]] = {}

    def __bool__(self) -> bool:
        return bool(self._watching)

    def add(self, ring: Callable[[], None]) -> Callable[[], None]:
        """Call `ring` from now on; return what ends that."""
        place = object()
        self._watching[place] = ring

        def stop() -> None:
            self._watching.pop(place, None)

        return stop

    def ring(self) -> None:
        """Call all of them."""
        if self._watching:
            for ring in list(self._watching.values()):
                ring()

    def clear(self) -> None:
        """Forget all of them: in a forked child nothing waits."""
        self._watching.clear()
