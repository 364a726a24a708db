-- Events of contracts are deliveries of the engine. What the remote said of each stands here.
-- oldest: 2

CREATE TABLE ulak.hos_outbox_attempts (
    tenant_id       text NOT NULL,
    idempotency_key text NOT NULL,
    -- 1 while a request is under way: a dispatcher that dies leaves it so.
    under_way       smallint NOT NULL DEFAULT 0,
    -- When the last attempt ended, how long it took, and when one last failed.
    attempted_at    bigint,
    duration_us     bigint,
    failed_at       bigint,
    response_status integer,
    response_json   text,
    -- In what the remote's judgement differed from ours, the last time that it did.
    drift           text,
    -- Set when an operator has given the event up.
    discarded_at    bigint,
    -- What operators did with it: a JSON list of act, actor, note and time.
    acts            text NOT NULL DEFAULT '[]',
    updated_at      bigint NOT NULL,
    PRIMARY KEY (tenant_id, idempotency_key)
);

CREATE INDEX hos_outbox_attempts_lately ON ulak.hos_outbox_attempts (attempted_at)
    WHERE attempted_at IS NOT NULL;
CREATE INDEX hos_outbox_attempts_drift ON ulak.hos_outbox_attempts (tenant_id)
    WHERE drift IS NOT NULL;

-- Nobody writes there between the copy and the view.
LOCK TABLE ulak.hos_outbox_events IN ACCESS EXCLUSIVE MODE;

INSERT INTO ulak.hos_outbox_attempts (
    tenant_id, idempotency_key, attempted_at, duration_us, failed_at, response_status,
    response_json, drift, discarded_at, acts, updated_at
)
SELECT tenant_id, idempotency_key, attempted_at, duration_us, failed_at, response_status,
    response_json, drift, discarded_at, acts, updated_at
FROM ulak.hos_outbox_events;

-- What was taken is due when its lease ends. Key and data are those of `events.emit`.
INSERT INTO ulak.hos_outbox_deliveries (
    key, data, at, state, tries, not_before, give_up_at, sent_at, error
)
SELECT substr(length(tenant_id) || '/' || tenant_id || '/' || aggregate, 1, 500),
    json_build_object(
        'tenant_id', tenant_id, 'event_type', event_type, 'aggregate', aggregate,
        'idempotency_key', idempotency_key, 'payload', payload
    )::text,
    created_at,
    CASE WHEN discarded_at IS NOT NULL THEN 'discarded' WHEN status = 'rejected' THEN 'refused'
        WHEN status = 'processing' THEN 'pending' ELSE status END,
    attempts, available_at, give_up_at, sent_at, last_error
FROM ulak.hos_outbox_events ORDER BY id;

DROP TABLE ulak.hos_outbox_events;

-- The columns of the table before it: processes of the release before read them.
CREATE VIEW ulak.hos_outbox_events AS
SELECT d.position AS id,
    d.data::json ->> 'tenant_id' AS tenant_id,
    d.data::json ->> 'event_type' AS event_type,
    d.data::json ->> 'aggregate' AS aggregate,
    d.data::json ->> 'payload' AS payload,
    d.data::json ->> 'idempotency_key' AS idempotency_key,
    CASE d.state WHEN 'sent' THEN 'sent' WHEN 'refused' THEN 'rejected'
        WHEN 'pending' THEN CASE WHEN a.under_way = 1 THEN 'processing' ELSE 'pending' END
        ELSE 'dead' END AS status,
    d.tries + CASE WHEN d.state = 'pending' THEN coalesce(a.under_way, 0) ELSE 0 END AS attempts,
    d.error AS last_error,
    d.not_before AS available_at,
    CASE WHEN d.state = 'pending' AND a.under_way = 1 THEN d.not_before END AS lease_until,
    NULL::text AS owner_token,
    d.give_up_at, d.sent_at, a.response_status, a.response_json, a.drift, a.attempted_at,
    a.duration_us, a.failed_at,
    CASE WHEN d.state = 'discarded' THEN coalesce(a.discarded_at, d.at) END AS discarded_at,
    coalesce(a.acts, '[]') AS acts,
    d.at AS created_at,
    coalesce(a.updated_at, d.at) AS updated_at
FROM ulak.hos_outbox_deliveries AS d
LEFT JOIN ulak.hos_outbox_attempts AS a
    ON a.tenant_id = d.data::json ->> 'tenant_id'
    AND a.idempotency_key = d.data::json ->> 'idempotency_key';

-- An event of a process of the release before is sent by this one.
CREATE FUNCTION ulak.hos_outbox_events_are_delivered() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO ulak.hos_outbox_deliveries (key, data, at, state, tries, not_before, give_up_at)
    VALUES (
        substr(length(NEW.tenant_id) || '/' || NEW.tenant_id || '/' || NEW.aggregate, 1, 500),
        json_build_object(
            'tenant_id', NEW.tenant_id, 'event_type', NEW.event_type, 'aggregate', NEW.aggregate,
            'idempotency_key', NEW.idempotency_key, 'payload', NEW.payload
        )::text,
        NEW.created_at, 'pending', 0, NEW.available_at, NEW.give_up_at
    );
    RETURN NEW;
END
$$;

CREATE TRIGGER hos_outbox_events_are_delivered INSTEAD OF INSERT ON ulak.hos_outbox_events
FOR EACH ROW EXECUTE FUNCTION ulak.hos_outbox_events_are_delivered();
