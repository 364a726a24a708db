-- The fifth schema.

-- Idempotency records: columns in the order of ulak.store.records.RecordRow. Times are microseconds
-- since 1970, as everywhere; the body of an answer is text to the byte, or bytes when it is none.
CREATE TABLE hos_idempotency_keys (
    id               INTEGER NOT NULL PRIMARY KEY,
    tenant_id        TEXT    NOT NULL DEFAULT '',
    scope            TEXT    NOT NULL DEFAULT '',
    key              TEXT    NOT NULL,
    status           TEXT    NOT NULL CHECK (status IN ('processing', 'completed', 'failed')),
    request_hash     TEXT    NOT NULL,
    actor_id         TEXT    NOT NULL DEFAULT '',
    owner_token      TEXT,
    lease_until      INTEGER,
    attempt          INTEGER NOT NULL DEFAULT 1,
    recovery_point   TEXT,
    recovery_data    TEXT,
    response_status  INTEGER,
    response_headers TEXT,
    response_json    TEXT,
    response_bytes   BLOB,
    response_digest  TEXT,
    created_at       INTEGER NOT NULL,
    updated_at       INTEGER NOT NULL,
    expires_at       INTEGER NOT NULL
) STRICT;

-- The law that a key is executed once.
CREATE UNIQUE INDEX hos_idempotency_keys_key ON hos_idempotency_keys (tenant_id, scope, key);
CREATE INDEX hos_idempotency_keys_expiry ON hos_idempotency_keys (expires_at);
CREATE INDEX hos_idempotency_keys_lease ON hos_idempotency_keys (lease_until)
    WHERE lease_until IS NOT NULL;
