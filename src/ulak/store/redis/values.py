"""How records are written for Lua, and read back.

A job is the list of its columns as text. What is packed is text of UTF-8 to the reader in Python
and bytes to Lua; data, which may be any bytes, travels beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from types import NoneType
from typing import Any, Final, get_args, get_type_hints

import msgspec

from ulak.core.change import Change
from ulak.core.job import (
    FIRST_MUTABLE,
    SIDE,
    Event,
    JobRow,
    Message,
    NewJob,
    Payload,
    Request,
    Result,
)
from ulak.errors import WriteRefused
from ulak.ids import to_text
from ulak.store.protocol import Claim, OutboxRow, Settled

_RAW_32: Final = b"\xdb"
NUL: Final = "\0"

_encoder = msgspec.msgpack.Encoder()
unpack: Final = msgspec.msgpack.Decoder(list[Any]).decode
_unpack_texts = msgspec.msgpack.Decoder(list[str]).decode
_unpack_rows = msgspec.msgpack.Decoder(list[list[str]]).decode


def pack(value: object) -> bytes:
    """Write what Lua, or a later reader, unpacks. Raises `WriteRefused`: a text is none."""
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError as error:
        raise WriteRefused(f"a text cannot be stored: {error.reason}") from error


def raw(data: bytes) -> msgspec.Raw:
    """Return bytes as Lua takes them: it knows one kind of strings."""
    return msgspec.Raw(_RAW_32 + len(data).to_bytes(4, "big") + data)


def job_id(text: str) -> bytes:
    return bytes.fromhex(text.replace("-", ""))


# What moves often comes first: a small hash is searched from its beginning.
_FIRST = (
    "token", "version", "seq", "leased_by", "leased_at", "stood", "state", "role", "lane",
    "not_before", "changed_at", "has_results", "attempt", "parked_on", "lapses",
    "lapsed", "code",
)  # fmt: skip
_NAMED_BY = ("id", "flow")
_MOVING = [name for name in JobRow._fields[FIRST_MUTABLE:SIDE] if name not in _FIRST]
_KEPT = [name for name in JobRow._fields[:FIRST_MUTABLE] if name not in _NAMED_BY]
COLUMNS: Final = (*_FIRST, *_MOVING, *JobRow._fields[SIDE:], *_NAMED_BY, *_KEPT)
"""The columns of a job in the order of its hash; a worker's change ends with the job's name."""
_SENT = COLUMNS.index(_NAMED_BY[-1]) + 1

# A row is read and written a kind of columns at a time: most of what a job costs in Python is this.
_KINDS = {name: set(get_args(hint)) or {hint} for name, hint in get_type_hints(JobRow).items()}
_NUMBERS = [name for name, kinds in _KINDS.items() if kinds == {int}]
_DATES = [name for name, kinds in _KINDS.items() if kinds == {int, NoneType}]
_NAMES = [name for name, kinds in _KINDS.items() if kinds == {str, NoneType}]
_TEXTS = [name for name in JobRow._fields[1:] if name not in (*_NUMBERS, *_DATES, *_NAMES)]
_BY_KIND = ("id", *_NUMBERS, *_DATES, *_NAMES, *_TEXTS)


def _picks(names: Sequence[str], places: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    return itemgetter(*map(places.index, names))


_numbers_of = _picks(_NUMBERS, JobRow._fields)
_others_of = _picks((*_DATES, *_NAMES, *_TEXTS), JobRow._fields)
_to_hash = _picks(COLUMNS, _BY_KIND)
_find_id = itemgetter(COLUMNS.index("id"))
_find_numbers, _find_dates = _picks(_NUMBERS, COLUMNS), _picks(_DATES, COLUMNS)
_find_names, _find_texts = _picks(_NAMES, COLUMNS), _picks(_TEXTS, COLUMNS)
_to_row = _picks(JobRow._fields, _BY_KIND)


def write_row(row: JobRow) -> tuple[str, ...]:
    others = [
        "" if value is None else value if type(value) is str else str(value)
        for value in _others_of(row)
    ]
    return _to_hash((to_text(row.id), *map(str, _numbers_of(row)), *others))


def read_row(packed: bytes) -> JobRow:
    return _read_texts(_unpack_texts(packed))


def _read_texts(texts: Sequence[str]) -> JobRow:
    dates = [int(text) if text else None for text in _find_dates(texts)]
    names = [text or None for text in _find_names(texts)]
    numbers = map(int, _find_numbers(texts))
    by_kind = (job_id(_find_id(texts)), *numbers, *dates, *names, *_find_texts(texts))
    return JobRow._make(_to_row(by_kind))


def read_claims(rows: bytes, sizes: bytes, data: bytes, results: Sequence[Any]) -> list[Claim]:
    """Read what was claimed: rows, each with schema and trace of its payload; how long each payload
    is; payloads one after the other; and by the place of a job its results, if it has some."""
    found = {number - 1: flat for number, flat in results}
    claims, start = [], 0
    for n, (texts, size) in enumerate(zip(_unpack_rows(rows), unpack(sizes), strict=True)):
        row = _read_texts(texts)
        payload = Payload(data[start : start + size], int(texts[-2]), texts[-1] or None)
        start += size
        claims.append(Claim(row, payload, tuple(read_results(row.id, found.get(n, ())))))
    return claims


def write_event(event: Event, proof: bytes | None = None) -> dict[str, object]:
    line = bytes([len(event.commit_id)]) + event.commit_id + pack(event[1:16])
    written: dict[str, object] = {"seq": event.seq, "at": event.at, "line": raw(line)}
    if proof is not None:
        written["proof"] = raw(proof)
    return written


def read_event(owner: bytes, line: bytes) -> Event:
    end = 1 + line[0]
    return Event._make([owner, *unpack(line[end:]), line[1:end]])


def write_new(job: NewJob) -> dict[str, object]:
    payload = job.payload
    written: dict[str, object] = {
        "row": write_row(job.row), "event": write_event(job.event, job.proof),
        "data": raw(payload.data), "schema": payload.schema, "trace": payload.trace or "",
    }  # fmt: skip
    if job.key_expires_at is not None:
        written["key_until"] = job.key_expires_at
    if job.owner:
        written["owner"] = job.owner
    if job.is_admitted:
        written["is_admitted"] = True
    return written


def read_payload(data: bytes, schema: bytes, trace: bytes) -> Payload:
    return Payload(data, int(schema), trace.decode() or None)


def write_change(change: Change) -> dict[str, object]:
    """Write a change; what it does not bring is left out."""
    proofs = change.proofs or [None] * len(change.events)
    written: dict[str, object] = {
        "row": write_row(change.row)[: None if change.token is None else _SENT],
        "commit": raw(bytes([len(change.commit_id)]) + change.commit_id),
        "events": [
            write_event(event, proof) for event, proof in zip(change.events, proofs, strict=True)
        ],
    }
    if change.token is None:
        written["version"] = str(change.version)
    else:
        written["token"] = str(change.token)
    if change.results:
        written["results"] = [
            part
            for r in change.results
            for part in (NUL.join((str(r.round), r.stage, r.name)), raw(r.data))
        ]
    if change.pauses:
        actor = change.events[-1].actor if change.events else "ulak"
        written["pauses"] = [(*pause, actor) for pause in change.pauses]
    if change.answers:
        written["answers"] = [NUL.join(answer) for answer in change.answers]
    if change.messages:
        written["messages"] = [write_message(message) for message in change.messages]
    if change.spawns:
        written["spawns"] = [write_new(job) for job in change.spawns]
    for name in ("voids", "frees_key", "takes_key", "frees_slot", "takes_slot"):
        if value := getattr(change, name):
            written[name] = value
    return written


def write_message(message: Message) -> dict[str, object]:
    return {
        "identity": f"{to_text(message.job_id)}:{message.seq}:{message.n}", "key": message.key,
        "topic": message.topic, "data": raw(message.data), "at": message.at,
    }  # fmt: skip


def delivery_of(row: OutboxRow | Settled) -> str:
    """Return how a delivery is named in Lua."""
    message = row.message
    return f"{to_text(message.job_id)}:{message.seq}:{message.n}:{row.handler}"


def _number(text: bytes) -> int | None:
    return int(text) if text else None


def read_delivery(found: Sequence[Any]) -> OutboxRow:
    owner, seq, n, handler = found[0].decode().split(":", 3)
    key, topic, data, at, state, tries, not_before, give_up_at, sent_at, answer, error, position = (
        found[1]
    )
    message = Message(job_id(owner), int(seq), int(n), key.decode(), topic.decode(), data, int(at))
    return OutboxRow(
        message, handler, state.decode(), int(tries), int(not_before), _number(give_up_at),
        _number(sent_at), answer or None, error.decode() or None, int(position),
    )  # fmt: skip


def read_results(owner: bytes, flat: Sequence[bytes]) -> list[Result]:
    """Read results, the latest round last; of one round by stage and name."""
    found = []
    for field, data in zip(flat[::2], flat[1::2], strict=True):
        number, stage, name = field.decode().split(NUL, 2)
        found.append(Result(owner, int(number), stage, name, data))
    return sorted(found)


def write_request(request: Request) -> bytes:
    return pack((to_text(request.job_id), *request[1:]))


def read_requests(found: Sequence[bytes]) -> list[Request]:
    """Read requests: by job, the oldest of each first."""
    requests = [Request(job_id(owner), *rest) for owner, *rest in map(unpack, found)]
    return sorted(requests, key=lambda asked: (asked.job_id, asked.at, asked.kind, asked.name))


def read_map(flat: Sequence[bytes]) -> Mapping[str, bytes]:
    """Read names and values, one after the other."""
    names = (name.decode() for name in flat[::2])
    return dict(zip(names, flat[1::2], strict=True))
