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
from ulak.core.job import Event, JobRow, Message, NewJob, Payload, Request, Result
from ulak.errors import WriteRefused
from ulak.ids import to_text
from ulak.store.protocol import OutboxRow, Settled

_RAW_32: Final = b"\xdb"
NUL: Final = "\0"

_encoder = msgspec.msgpack.Encoder()
unpack: Final = msgspec.msgpack.Decoder(list[Any]).decode
_unpack_row = msgspec.msgpack.Decoder(list[str]).decode


def pack(value: object) -> bytes:
    """Write what Lua, or a later reader, unpacks. Raises `WriteRefused`: a text is none."""
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError as error:
        raise WriteRefused(f"a text cannot be stored: {error.reason}") from error


def raw(data: bytes) -> msgspec.Raw:
    """Return bytes as Lua takes them: it knows one kind of strings."""
    return msgspec.Raw(_RAW_32 + len(data).to_bytes(4, "big") + data)


def _text(value: object) -> str:
    return "" if value is None else value if type(value) is str else str(value)


def job_id(text: str) -> bytes:
    return bytes.fromhex(text.replace("-", ""))


def _reader_of(hint: Any) -> Callable[[str], Any]:
    kinds = set(get_args(hint)) or {hint}
    if bytes in kinds:
        return job_id
    read: Callable[[str], Any] = int if int in kinds else str
    return read if NoneType not in kinds else lambda text: read(text) if text else None


# What moves often comes first: a small hash is searched from its beginning.
_FIRST = (
    "token", "version", "seq", "leased_by", "leased_at", "stood", "state", "role", "lane",
    "not_before", "changed_at", "has_results", "attempt", "parked_on", "requests", "lapses",
    "lapsed", "code",
)  # fmt: skip
COLUMNS: Final = (*_FIRST, *(name for name in JobRow._fields if name not in _FIRST))
"""The columns of a job in the order of its hash."""

_to_hash = itemgetter(*(JobRow._fields.index(name) for name in COLUMNS))
_to_row = itemgetter(*(COLUMNS.index(name) for name in JobRow._fields))
_READERS = [_reader_of(hint) for hint in get_type_hints(JobRow).values()]


def write_row(row: JobRow) -> list[str]:
    return [_text(value) for value in _to_hash((to_text(row[0]), *row[1:]))]


def read_row(packed: bytes) -> JobRow:
    texts = _to_row(_unpack_row(packed))
    return JobRow._make([read(text) for read, text in zip(_READERS, texts, strict=True)])


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
    row = change.row
    proofs = [*change.proofs, *[None] * (len(change.events) - len(change.proofs))]
    written: dict[str, object] = {
        "row": write_row(row),
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
    rest = {
        "messages": [write_message(message) for message in change.messages],
        "spawns": [write_new(job) for job in change.spawns],
        "voids": change.voids, "frees_key": change.frees_key, "takes_key": change.takes_key,
        "frees_slot": change.frees_slot, "takes_slot": change.takes_slot,
    }  # fmt: skip
    return written | {name: value for name, value in rest.items() if value}


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
