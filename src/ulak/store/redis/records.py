"""Idempotency records in Redis: a hash for each, changed by functions in Lua that check its token.

Redis removes a record when its time has come, so there is nothing to clean up. Until the very
instant the functions compare times themselves: what is executed on a living lease never expires.
"""

from __future__ import annotations

import json
import string
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from ulak.clock import Clock, Instant, ServerClock
from ulak.errors import BadInput, StoreError, WriteRefused
from ulak.store.faults import POINTS, point
from ulak.store.protocol import AuditRow, Features
from ulak.store.records import (
    FORGOTTEN,
    RecordClaim,
    RecordId,
    RecordRow,
    record_details,
    record_subject,
)
from ulak.store.redis.server import RedisServer, Script

ALLOW_VOLATILE: Final = "IDEMPOTENCY_REDIS_ALLOW_VOLATILE"
# What is in braces decides on which node of a cluster a key is: a function may use several keys of
# one node only. No character of an id is taken for one of ours.
TAG: Final = "{ulak:idempotency}"
AUDIT: Final = f"{TAG}:audit"
_SAFE: Final = "".join(set(string.punctuation) - set("/%"))

_NUMBERS: Final = frozenset(
    {"lease_until", "attempt", "response_status", "created_at", "updated_at", "expires_at"}
)
_BYTES: Final = frozenset({"response_bytes"})
_STORED: Final = tuple(name for name in RecordRow._fields if name not in RecordId._fields)
_ANSWER: Final = tuple(n for n in _STORED if n == "status" or n.startswith("response_"))
# Redis numbers lines by the millisecond and within it: more than a million in one are not expected.
_LINES_BITS: Final = 20

# ARGV[1] is the time, or '' for the server's. A number of Lua holds microseconds exactly until the
# year 2255; its own way to write them would not.
_LUA: Final = """
local function read_time()
    if ARGV[1] ~= '' then return tonumber(ARGV[1]) end
    local time = redis.call('TIME')
    return time[1] * 1000000 + time[2]
end
local function write(number) return string.format('%.0f', number) end
local key, now = KEYS[1], read_time()
local function is_leased(status, lease_until)
    return status == 'processing' and tonumber(lease_until or 0) > now
end
local function keep_until(expires_at, lease)
    if lease == '' then
        redis.call('HDEL', key, 'lease_until')
    elseif lease then
        redis.call('HSET', key, 'lease_until', write(now + lease))
    end
    local last = math.max(tonumber(expires_at), tonumber(redis.call('HGET', key, 'lease_until') or 0))
    redis.call('PEXPIRE', key, write(math.max(math.ceil((last - now) / 1000), 1)))
end
"""  # noqa: E501

# ARGV: 2 for how long it is kept, 3 how long its lease is or '', 4 the fingerprint, then names and
# values. Whoever claims what has not expired takes over: it keeps what was reached.
CLAIM: Final = Script(f"""{_LUA}
local old = redis.call('HMGET', key,
    'status', 'request_hash', 'lease_until', 'expires_at', 'attempt', 'created_at')
local status, hash, lease_until, expires_at, attempt, created_at = unpack(old)
local is_over = not status or tonumber(expires_at) <= now
if status and (is_leased(status, lease_until)
        or not (is_over or (status == 'processing' and hash == ARGV[4]))) then
    return {{0, write(now), redis.call('HGETALL', key)}}
end
if is_over then
    redis.call('DEL', key)
    attempt, created_at = 0, now
end
redis.call('HSET', key, 'attempt', write(attempt + 1), 'created_at', write(tonumber(created_at)),
    'updated_at', write(now), 'expires_at', write(now + ARGV[2]), unpack(ARGV, 5))
keep_until(now + ARGV[2], ARGV[3])
return {{1, write(now), redis.call('HGETALL', key)}}
""")

# ARGV: 2 the token, 3 how long the lease is or '' for none, 4 for how long it is kept from now or
# '' for as long as before, 5 how many words of names and values follow; then names to remove.
CHANGE: Final = Script(f"""{_LUA}
local status, token, expires_at = unpack(
    redis.call('HMGET', key, 'status', 'owner_token', 'expires_at'))
if status ~= 'processing' or token ~= ARGV[2] then return {{0, write(now)}} end
if ARGV[4] ~= '' then expires_at = write(now + ARGV[4]) end
local last = 5 + ARGV[5]
redis.call('HSET', key, 'updated_at', write(now), 'expires_at', expires_at, unpack(ARGV, 6, last))
if #ARGV > last then redis.call('HDEL', key, unpack(ARGV, last + 1)) end
keep_until(expires_at, ARGV[3])
return {{1, write(now)}}
""")

# ARGV: 2 the token. A record with a recovery point is left to whoever takes over.
RELEASE: Final = Script(f"""{_LUA}
local status, token, reached, expires_at = unpack(
    redis.call('HMGET', key, 'status', 'owner_token', 'recovery_point', 'expires_at'))
if status ~= 'processing' or token ~= ARGV[2] then return {{0, write(now)}} end
if not reached then
    redis.call('DEL', key)
else
    redis.call('HSET', key, 'lease_until', write(now), 'updated_at', write(now))
    keep_until(expires_at)
end
return {{1, write(now)}}
""")

# KEYS: 2 the audit. ARGV: then names and values of its line. Never what was answered.
FORGET: Final = Script(f"""{_LUA}
local status, lease_until, expires_at, response_status, attempt, created_at = unpack(
    redis.call('HMGET', key, 'status', 'lease_until', 'expires_at', 'response_status', 'attempt',
        'created_at'))
if not status then return {{0, write(now)}} end
if tonumber(expires_at) <= now and not is_leased(status, lease_until) then
    return {{0, write(now)}}
end
redis.call('DEL', key)
redis.call('XADD', KEYS[2], '*', 'at', write(now), 'status', status,
    'response_status', response_status or '', 'attempt', attempt, 'created_at', created_at,
    unpack(ARGV, 2))
return {{1, write(now)}}
""")


class RecordVerbs:
    """What is done with records, on a server that it has been given."""

    _server: RedisServer
    clock: Clock

    def _must_be_open(self) -> None:
        """Be ready for use. Raises `StoreError`: it cannot be."""

    def claim_record(self, row: RecordRow, *, ttl_us: int, lease_us: int | None) -> RecordClaim:
        """Become the one that executes, as `RecordStore.claim_record` promises."""
        given = {name: getattr(row, name) for name in ("request_hash", "actor_id", "owner_token")}
        words = _words({"status": "processing", **given})
        lease = "" if lease_us is None else str(lease_us)
        mine, now, found = self._run(
            CLAIM, row.id, str(ttl_us), lease, _text(row.request_hash), *words
        )
        return RecordClaim(_read_row(row.id, found), mine, now)

    def renew_records(self, rows: Sequence[RecordRow], *, lease_us: Sequence[int]) -> list[bool]:
        """Extend leases, one after the other: those before a failure are extended."""
        pairs = zip(rows, lease_us, strict=True)
        return [self._change(row, str(span), "", {}) for row, span in pairs]

    def mark_record(self, row: RecordRow, *, lease_us: int) -> bool:
        """Keep the recovery point and data of `row`, and extend its lease."""
        names = ("recovery_point", "recovery_data")
        return self._change(row, str(lease_us), "", {name: getattr(row, name) for name in names})

    def finish_record(self, row: RecordRow, *, ttl_us: int) -> bool:
        """Store how it ended: status, response and headers as in `row`."""
        return self._change(row, "", str(ttl_us), {name: getattr(row, name) for name in _ANSWER})

    def release_record(self, row: RecordRow) -> bool:
        """Give a claim back; one with a recovery point may be taken over at once."""
        return row.owner_token is not None and self._run(RELEASE, row.id, row.owner_token)[0]

    def find_records(self, ids: Sequence[RecordId]) -> list[RecordRow | None]:
        """Return each, in order; None when there is none, or it has expired."""
        self._must_be_open()
        with self._server.translated():
            asked = self._server.client.pipeline(transaction=False)
            asked.time()
            for id in ids:
                asked.hgetall(record_key(id))
            (second, micro), *found = asked.execute()
        self._hear(second * 1_000_000 + micro)
        rows = [
            _read_row(id, fields) if fields else None for id, fields in zip(ids, found, strict=True)
        ]
        now = self.clock.now()
        return [None if row is None or _is_absent(row, now) else row for row in rows]

    def clean_records(self, limit: int) -> int:
        """Return 0: Redis removes by itself what has expired."""
        return 0

    def _change(
        self, row: RecordRow, lease: str, ttl: str, values: Mapping[str, str | int | bytes | None]
    ) -> bool:
        if row.owner_token is None:
            return False
        words = _words({name: value for name, value in values.items() if value is not None})
        gone = [name for name, value in values.items() if value is None]
        token = _text(row.owner_token)
        return self._run(CHANGE, row.id, token, lease, ttl, str(len(words)), *words, *gone)[0]

    def _run(
        self, script: Script, id: RecordId, *words: str | bytes, more_keys: Sequence[str] = ()
    ) -> tuple[bool, Instant, Any]:
        """Run a function on a record; return whether it did anything, its time, and the rest."""
        self._must_be_open()
        given = "" if isinstance(self.clock, ServerClock) else str(self.clock.now())
        point(POINTS["record"].before)
        done, now, *rest = self._server.run(script, (record_key(id), *more_keys), (given, *words))
        point(POINTS["record"].after)
        self._hear(int(now))
        return done == 1, int(now), rest[0] if rest else None

    def _hear(self, now: Instant) -> None:
        if isinstance(self.clock, ServerClock):
            self.clock.hear(now)


class RedisRecords(RecordVerbs):
    """A `RecordKeeper` in Redis. Its time is the server's, unless a clock is given.

    A server that may forget what it has confirmed is refused, by `open` or by the first verb.
    With `may_forget` it is not, and `features.durable` is False. Raises `BadInput`: the address is
    none.
    """

    def __init__(self, url: str, *, clock: Clock | None = None, may_forget: bool = False) -> None:
        self.server = self._server = RedisServer(url)
        self.features = _features(durable=False, durability="not known before it is opened")
        self.clock = clock or ServerClock()
        self._may_forget = may_forget
        self._is_open = False

    def open(self) -> None:
        """Look whether the server keeps what it confirms.

        Raises:
            BadInput: it may forget; the sentence says what to set.
            StoreError: it cannot be asked.
        """
        found = self._server.read_persistence()
        if found.complaints and not self._may_forget:
            raise BadInput(
                f"{self._server.address} may forget idempotency records, and then a repeated "
                f"request would be executed again: {'; '.join(found.complaints)}; or accept that "
                f"by {ALLOW_VOLATILE}=1"
            )
        durability = f"a power cut costs {found.durability}"
        if found.complaints:
            durability += "; " + "; ".join(found.complaints)
        self.features = _features(durable=not found.complaints, durability=durability)
        self._is_open = True

    def close(self) -> None:
        """Give every connection back; closing twice is nothing."""
        self._server.close()

    def forget_record(self, id: RecordId, *, actor: str, note: str) -> bool:
        """Remove a record, whatever it says; the audit is in Redis too, in the stream `AUDIT`."""
        line = {"actor": actor, "note": note, **id._asdict()}
        return self._run(FORGET, id, *_words(line), more_keys=(AUDIT,))[0]

    def audit_trail(
        self, *, subject: str | None = None, before: int | None = None, limit: int = 100
    ) -> list[AuditRow]:
        """Return what operators have forgotten here, the latest first, below a position."""
        last = "+" if before is None else "({}-{}".format(*divmod(before, 1 << _LINES_BITS))
        found: list[AuditRow] = []
        while len(found) < limit:
            with self._server.translated():
                page: Any = self._server.client.xrevrange(AUDIT, max=last, count=limit)
            lines = [_read_line(number, fields) for number, fields in page]
            found += [line for line in lines if subject in (None, line.subject)]
            if len(page) < limit:
                break
            last = f"({page[-1][0].decode()}"
        return found[:limit]

    def _must_be_open(self) -> None:
        if self._is_open:
            return
        try:
            self.open()
        except BadInput as error:
            raise StoreError(str(error)) from error


def _features(*, durable: bool, durability: str) -> Features:
    return Features(
        name="redis", durable=durable, shared=True, removes_expired=True, durability=durability
    )


def record_key(id: RecordId) -> str:
    """Return the key of a record: readable for the usual ids, and another for every other one."""
    parts = (quote(part, safe=_SAFE, errors="surrogatepass") for part in id)
    return f"{TAG}:record:{'/'.join(parts)}"


def _text(value: str) -> bytes:
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise WriteRefused(f"a text cannot be stored: {error}") from None


def _words(values: Mapping[str, str | int | bytes | None]) -> list[str | bytes]:
    words: list[str | bytes] = []
    for name, value in values.items():
        if value is not None:
            words += [name, value if isinstance(value, bytes) else _text(str(value))]
    return words


def _read_row(id: RecordId, fields: Any) -> RecordRow:
    """Make the row of what Redis returns: names and values in a list, or a dict."""
    if not isinstance(fields, dict):
        fields = dict(zip(fields[::2], fields[1::2], strict=True))
    found = {name: _read_value(name, fields.get(name.encode())) for name in _STORED}
    return RecordRow(**id._asdict(), **found)


def _read_value(name: str, value: bytes | None) -> Any:
    if value is None or name in _BYTES:
        return value
    return int(value) if name in _NUMBERS else value.decode()


def _is_absent(row: RecordRow, now: Instant) -> bool:
    is_leased = row.status == "processing" and (row.lease_until or 0) > now
    return row.expires_at <= now and not is_leased


def _read_line(number: bytes, fields: Mapping[bytes, bytes]) -> AuditRow:
    told = {name.decode(): value.decode() for name, value in fields.items()}
    id = RecordId(**{name: told[name] for name in RecordId._fields})
    facts = {name: told.get(name, "") for name in ("status", "response_status", "attempt")}
    row = _read_row(id, {name.encode(): told[name].encode() for name in facts if told[name]})
    row = row._replace(created_at=int(told["created_at"]))
    moment, _, within = number.decode().partition("-")
    return AuditRow(
        (int(moment) << _LINES_BITS) + int(within), int(told["at"]), told["actor"], FORGOTTEN,
        record_subject(id), told["note"], json.dumps(record_details(row)),
    )  # fmt: skip
