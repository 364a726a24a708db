-- The fourth schema.

-- Idempotency records: columns in the order of ulak.store.records.RecordRow. Times are microseconds
-- since 1970, as everywhere; the body of an answer is text to the byte, or bytes when it is none.
-- Every record is written twice: the room left in each page is where the second version goes.
CREATE TABLE ulak.hos_idempotency_keys (
    id               bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant_id        text COLLATE "C" NOT NULL DEFAULT '',
    scope            text COLLATE "C" NOT NULL DEFAULT '',
    key              text COLLATE "C" NOT NULL,
    status           text    NOT NULL CHECK (status IN ('processing', 'completed', 'failed')),
    request_hash     text    NOT NULL,
    actor_id         text    NOT NULL DEFAULT '',
    owner_token      text,
    lease_until      bigint,
    attempt          integer NOT NULL DEFAULT 1,
    recovery_point   text,
    recovery_data    text,
    response_status  integer,
    response_headers text,
    response_json    text,
    response_bytes   bytea,
    response_digest  text,
    created_at       bigint  NOT NULL,
    updated_at       bigint  NOT NULL,
    expires_at       bigint  NOT NULL
) WITH (fillfactor = 60);

-- The law that a key is executed once.
CREATE UNIQUE INDEX hos_idempotency_keys_key ON ulak.hos_idempotency_keys (tenant_id, scope, key);
CREATE INDEX hos_idempotency_keys_expiry ON ulak.hos_idempotency_keys (expires_at);
CREATE INDEX hos_idempotency_keys_lease ON ulak.hos_idempotency_keys (lease_until)
    WHERE lease_until IS NOT NULL;
