-- The eleventh schema.
-- oldest: 11

-- The records of idempotency keys; the indexes keep their names. No release before may run here:
-- what it writes to the table of the former name, SQLite refuses of a view.
ALTER TABLE hos_idempotency_keys RENAME TO idempotency_records;

-- What others may read and delete: times in UTC, as `datetime('now')` writes them.
CREATE VIEW hos_idempotency_keys AS
SELECT id, key, nullif(scope, '') AS scope, nullif(tenant_id, '') AS tenant_id, status,
    response_json, response_status, response_headers, request_hash, actor_id, owner_token,
    strftime('%Y-%m-%d %H:%M:%f', lease_until / 1000 / 1e3, 'unixepoch') AS lease_until,
    attempt, recovery_point,
    strftime('%Y-%m-%d %H:%M:%f', created_at / 1000 / 1e3, 'unixepoch') AS created_at,
    strftime('%Y-%m-%d %H:%M:%f', updated_at / 1000 / 1e3, 'unixepoch') AS updated_at,
    strftime('%Y-%m-%d %H:%M:%f', expires_at / 1000 / 1e3, 'unixepoch') AS expires_at
FROM idempotency_records;

-- What is executed on a living lease stays.
CREATE TRIGGER hos_idempotency_keys_deleted INSTEAD OF DELETE ON hos_idempotency_keys BEGIN
    DELETE FROM idempotency_records WHERE id = OLD.id AND NOT (
        status = 'processing'
        AND coalesce(lease_until, 0) > (julianday('now') - 2440587.5) * 86400000000.0
    );
END;
