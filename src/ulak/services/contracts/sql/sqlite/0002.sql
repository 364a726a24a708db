-- Events on their way to a remote. Times are microseconds since 1970, as everywhere.
CREATE TABLE hos_outbox_events (
    id              INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    tenant_id       TEXT    NOT NULL,
    event_type      TEXT    NOT NULL,
    -- The subject: its type, a colon and its id. Events of one go out in the order of their ids.
    aggregate       TEXT    NOT NULL,
    -- The body that is sent, to the byte, at every attempt.
    payload         TEXT    NOT NULL,
    idempotency_key TEXT    NOT NULL,
    status          TEXT    NOT NULL
        CHECK (status IN ('pending', 'processing', 'sent', 'rejected', 'dead')),
    attempts        INTEGER NOT NULL DEFAULT 0,
    last_error      TEXT,
    -- From when on somebody may claim it; while it is claimed, the end of the lease.
    available_at    INTEGER NOT NULL,
    lease_until     INTEGER,
    -- Which claim it is: a dispatcher whose lease has lapsed no longer has it and cannot write.
    owner_token     TEXT,
    -- After this moment no retry begins.
    give_up_at      INTEGER NOT NULL,
    sent_at         INTEGER,
    response_status INTEGER,
    response_json   TEXT,
    -- In what the remote's judgement differs from ours; NULL when it does not.
    drift           TEXT,
    -- When the last attempt ended, how long it took, and when one last failed.
    attempted_at    INTEGER,
    duration_us     INTEGER,
    failed_at       INTEGER,
    -- Set when an operator has given it up; it holds up nobody from then on.
    discarded_at    INTEGER,
    -- What operators did with it: a JSON list of act, actor, note and time.
    acts            TEXT    NOT NULL DEFAULT '[]',
    created_at      INTEGER NOT NULL,
    updated_at      INTEGER NOT NULL
) STRICT;

-- The law that a change is told under one key, once.
CREATE UNIQUE INDEX hos_outbox_events_key
    ON hos_outbox_events (tenant_id, idempotency_key);
-- Who is first of its subject, and what is left to do: without those that are done.
CREATE INDEX hos_outbox_events_open
    ON hos_outbox_events (tenant_id, aggregate, id)
    WHERE status <> 'sent' AND discarded_at IS NULL;
CREATE INDEX hos_outbox_events_due ON hos_outbox_events (available_at, id)
    WHERE status IN ('pending', 'processing');
CREATE INDEX hos_outbox_events_stuck ON hos_outbox_events (status, id)
    WHERE status IN ('rejected', 'dead') AND discarded_at IS NULL;
CREATE INDEX hos_outbox_events_attempts ON hos_outbox_events (attempted_at)
    WHERE attempted_at IS NOT NULL;
CREATE INDEX hos_outbox_events_drift ON hos_outbox_events (id)
    WHERE drift IS NOT NULL;
