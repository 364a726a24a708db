-- Events on their way to a remote. Times are microseconds since 1970, as everywhere.
CREATE TABLE ulak.hos_outbox_events (
    id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant_id       text    NOT NULL,
    event_type      text    NOT NULL,
    -- The subject: its type, a colon and its id. Events of one go out in the order of their ids.
    aggregate       text    NOT NULL,
    -- The body that is sent, to the byte, at every attempt.
    payload         text    NOT NULL,
    idempotency_key text    NOT NULL,
    status          text    NOT NULL
        CHECK (status IN ('pending', 'processing', 'sent', 'rejected', 'dead')),
    attempts        integer NOT NULL DEFAULT 0,
    last_error      text,
    -- From when on somebody may claim it; while it is claimed, the end of the lease.
    available_at    bigint  NOT NULL,
    lease_until     bigint,
    -- Which claim it is: a dispatcher whose lease has lapsed no longer has it and cannot write.
    owner_token     text,
    -- After this moment no retry begins.
    give_up_at      bigint  NOT NULL,
    sent_at         bigint,
    response_status integer,
    response_json   text,
    -- In what the remote's judgement differs from ours; NULL when it does not.
    drift           text,
    -- When the last attempt ended, how long it took, and when one last failed.
    attempted_at    bigint,
    duration_us     bigint,
    failed_at       bigint,
    -- Set when an operator has given it up; it holds up nobody from then on.
    discarded_at    bigint,
    -- What operators did with it: a JSON list of act, actor, note and time.
    acts            text    NOT NULL DEFAULT '[]',
    created_at      bigint  NOT NULL,
    updated_at      bigint  NOT NULL
);

-- The law that a change is told under one key, once.
CREATE UNIQUE INDEX hos_outbox_events_key
    ON ulak.hos_outbox_events (tenant_id, idempotency_key);
-- Who is first of its subject, and what is left to do: without those that are done.
CREATE INDEX hos_outbox_events_open
    ON ulak.hos_outbox_events (tenant_id, aggregate, id)
    WHERE status <> 'sent' AND discarded_at IS NULL;
CREATE INDEX hos_outbox_events_due ON ulak.hos_outbox_events (available_at, id)
    WHERE status IN ('pending', 'processing');
CREATE INDEX hos_outbox_events_stuck ON ulak.hos_outbox_events (status, id)
    WHERE status IN ('rejected', 'dead') AND discarded_at IS NULL;
CREATE INDEX hos_outbox_events_attempts ON ulak.hos_outbox_events (attempted_at)
    WHERE attempted_at IS NOT NULL;
CREATE INDEX hos_outbox_events_drift ON ulak.hos_outbox_events (id)
    WHERE drift IS NOT NULL;
