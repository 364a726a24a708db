"""`python -m ulak.services.pdf.finishing`: reads an order, does it, and writes the PDF.

Whatever goes wrong is told in one word, since what libraries say may quote the document.
"""

from __future__ import annotations

import resource
import sys

import msgspec

from ulak.services.pdf.finishing.order import FAILED, Order


def main() -> int:
    """Do one order from standard input; answer the exit status."""
    order = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Order)
    # Nobody is left to end this process if its worker has died meanwhile.
    resource.setrlimit(resource.RLIMIT_CPU, (order.seconds, order.seconds + 1))
    resource.setrlimit(resource.RLIMIT_AS, (order.memory_bytes, order.memory_bytes))
    try:
        from ulak.services.pdf.finishing.applying import apply

        answer, status = apply(order), 0
    except Exception as error:  # noqa: BLE001 - the runner of this process
        answer, status = type(error).__name__.encode(), FAILED
    sys.stdout.buffer.write(answer)
    sys.stdout.buffer.flush()
    return status


if __name__ == "__main__":
    sys.exit(main())
