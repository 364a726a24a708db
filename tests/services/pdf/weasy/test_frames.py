"""What comes from a document's process is bounded, and is nothing but data."""

from __future__ import annotations

import asyncio
import socket
import struct

import pytest

from ulak.services.pdf.weasy.frames import LONGEST_HEAD, TooLong, pack, read, receive
from ulak.services.pdf.weasy.pool import FAULTS, fault


def read_from(content: bytes, *, longest_body: int = 100) -> tuple[bytes, bytes]:
    async def story() -> tuple[bytes, bytes]:
        reader = asyncio.StreamReader()
        reader.feed_data(content)
        reader.feed_eof()
        return await read(reader, longest_body=longest_body)

    return asyncio.run(story())


def test_what_is_packed_is_read_on_either_side() -> None:
    frame = pack({"url": "https://ü.test/"}, b"body")
    assert read_from(frame)[1] == b"body"
    ours, its = socket.socketpair()
    with ours, its:
        ours.sendall(frame)
        assert receive(its) == ({"url": "https://ü.test/"}, b"body")
        ours.close()
        with pytest.raises(EOFError):
            receive(its)


@pytest.mark.parametrize(
    ("head", "body"), [(LONGEST_HEAD + 1, 0), (2, 101), (2**32 - 1, 2**32 - 1)]
)
@pytest.mark.shows("P-32")
def test_a_frame_that_is_longer_than_agreed_is_refused_before_it_is_read(
    head: int, body: int
) -> None:
    with pytest.raises(TooLong):
        read_from(struct.pack(">II", head, body) + b"{}")


def test_a_frame_that_stops_short_is_no_frame() -> None:
    for end in range(1, 12):
        with pytest.raises(EOFError):
            read_from(pack({}, b"12345")[:end])


def test_a_word_that_is_not_agreed_on_says_no_more_than_that_the_page_broke() -> None:
    for word in ("", "nonsense", "page_failed:<script>", "page_failed"):
        error = fault(word, 5)
        assert (error.code, error.detail) == ("UNKNOWN", "page_failed")
        assert "script" not in str(error)
    assert "by a KeyError" in str(fault("page_failed:KeyError"))
    assert {fault(word).detail for word in FAULTS} == FAULTS
