-- Events of contracts are deliveries of the engine. What the remote said of each stands here.
-- oldest: 2

CREATE TABLE hos_outbox_attempts (
    tenant_id       TEXT NOT NULL,
    idempotency_key TEXT NOT NULL,
    -- 1 while a request is under way: a dispatcher that dies leaves it so.
    under_way       INTEGER NOT NULL DEFAULT 0,
    -- When the last attempt ended, how long it took, and when one last failed.
    attempted_at    INTEGER,
    duration_us     INTEGER,
    failed_at       INTEGER,
    response_status INTEGER,
    response_json   TEXT,
    -- In what the remote's judgement differed from ours, the last time that it did.
    drift           TEXT,
    -- Set when an operator has given the event up.
    discarded_at    INTEGER,
    -- What operators did with it: a JSON list of act, actor, note and time.
    acts            TEXT NOT NULL DEFAULT '[]',
    updated_at      INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, idempotency_key)
) STRICT, WITHOUT ROWID;

CREATE INDEX hos_outbox_attempts_lately ON hos_outbox_attempts (attempted_at)
    WHERE attempted_at IS NOT NULL;
CREATE INDEX hos_outbox_attempts_drift ON hos_outbox_attempts (tenant_id)
    WHERE drift IS NOT NULL;

INSERT INTO hos_outbox_attempts (
    tenant_id, idempotency_key, attempted_at, duration_us, failed_at, response_status,
    response_json, drift, discarded_at, acts, updated_at
)
SELECT tenant_id, idempotency_key, attempted_at, duration_us, failed_at, response_status,
    response_json, drift, discarded_at, acts, updated_at
FROM hos_outbox_events;

-- What was taken is due when its lease ends. Key and data are those of `events.emit`.
INSERT INTO hos_outbox_deliveries (
    key, data, at, state, tries, not_before, give_up_at, sent_at, error
)
SELECT substr(length(tenant_id) || '/' || tenant_id || '/' || aggregate, 1, 500),
    json_object(
        'tenant_id', tenant_id, 'event_type', event_type, 'aggregate', aggregate,
        'idempotency_key', idempotency_key, 'payload', payload
    ),
    created_at,
    CASE WHEN discarded_at IS NOT NULL THEN 'discarded' WHEN status = 'rejected' THEN 'refused'
        WHEN status = 'processing' THEN 'pending' ELSE status END,
    attempts, available_at, give_up_at, sent_at, last_error
FROM hos_outbox_events ORDER BY id;

DROP TABLE hos_outbox_events;

-- The columns of the table before it: processes of the release before read them.
CREATE VIEW hos_outbox_events AS
SELECT d.position AS id,
    json_extract(d.data, '$.tenant_id') AS tenant_id,
    json_extract(d.data, '$.event_type') AS event_type,
    json_extract(d.data, '$.aggregate') AS aggregate,
    json_extract(d.data, '$.payload') AS payload,
    json_extract(d.data, '$.idempotency_key') AS idempotency_key,
    CASE d.state WHEN 'sent' THEN 'sent' WHEN 'refused' THEN 'rejected'
        WHEN 'pending' THEN CASE WHEN a.under_way = 1 THEN 'processing' ELSE 'pending' END
        ELSE 'dead' END AS status,
    d.tries + CASE WHEN d.state = 'pending' THEN coalesce(a.under_way, 0) ELSE 0 END AS attempts,
    d.error AS last_error,
    d.not_before AS available_at,
    CASE WHEN d.state = 'pending' AND a.under_way = 1 THEN d.not_before END AS lease_until,
    NULL AS owner_token,
    d.give_up_at, d.sent_at, a.response_status, a.response_json, a.drift, a.attempted_at,
    a.duration_us, a.failed_at,
    CASE WHEN d.state = 'discarded' THEN coalesce(a.discarded_at, d.at) END AS discarded_at,
    coalesce(a.acts, '[]') AS acts,
    d.at AS created_at,
    coalesce(a.updated_at, d.at) AS updated_at
FROM hos_outbox_deliveries AS d
LEFT JOIN hos_outbox_attempts AS a
    ON a.tenant_id = json_extract(d.data, '$.tenant_id')
    AND a.idempotency_key = json_extract(d.data, '$.idempotency_key');

-- An event of a process of the release before is sent by this one.
CREATE TRIGGER hos_outbox_events_are_delivered INSTEAD OF INSERT ON hos_outbox_events BEGIN
    INSERT INTO hos_outbox_deliveries (key, data, at, state, tries, not_before, give_up_at)
    VALUES (
        substr(length(NEW.tenant_id) || '/' || NEW.tenant_id || '/' || NEW.aggregate, 1, 500),
        json_object(
            'tenant_id', NEW.tenant_id, 'event_type', NEW.event_type, 'aggregate', NEW.aggregate,
            'idempotency_key', NEW.idempotency_key, 'payload', NEW.payload
        ),
        NEW.created_at, 'pending', 0, NEW.available_at, NEW.give_up_at
    );
END;

-- Without this an UPDATE with RETURNING changes nothing and returns rows, so that a dispatcher of
-- the release before would send an event again and again.
CREATE TRIGGER hos_outbox_events_are_not_taken INSTEAD OF UPDATE ON hos_outbox_events BEGIN
    SELECT RAISE(ABORT, 'this is a view: a newer release sends the events; replace this process');
END;
