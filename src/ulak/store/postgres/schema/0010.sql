-- The tenth schema.
-- oldest: 5

-- The records of idempotency keys; the indexes keep their names.
ALTER TABLE ulak.hos_idempotency_keys RENAME TO idempotency_records;

-- For processes of the release before, which read and write by this name: PostgreSQL passes it on.
CREATE VIEW ulak.hos_idempotency_keys AS
SELECT id, tenant_id, scope, key, status, request_hash, actor_id, owner_token, lease_until, attempt,
    recovery_point, recovery_data, response_status, response_headers, response_json,
    response_bytes, response_digest, created_at, updated_at, expires_at
FROM ulak.idempotency_records;

-- Whoever may use the table may use the view.
DO $$
DECLARE
    allowed record;
BEGIN
    FOR allowed IN
        SELECT a.privilege_type AS act, coalesce(quote_ident(r.rolname), 'PUBLIC') AS role
        FROM pg_class AS c
        CROSS JOIN LATERAL aclexplode(c.relacl) AS a
        LEFT JOIN pg_roles AS r ON r.oid = a.grantee
        WHERE c.oid = 'ulak.idempotency_records'::regclass AND a.grantee <> c.relowner
            AND a.privilege_type IN ('SELECT', 'INSERT', 'UPDATE', 'DELETE')
    LOOP
        EXECUTE format('GRANT %s ON ulak.hos_idempotency_keys TO %s', allowed.act, allowed.role);
    END LOOP;
END
$$;

CREATE FUNCTION ulak.delete_idempotency_key() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'DELETE' THEN
        RAISE EXCEPTION 'public.hos_idempotency_keys is for reading and deleting'
            USING ERRCODE = 'feature_not_supported';
    END IF;
    -- What was claimed anew since it was looked at has another token. What is executed on a living
    -- lease stays.
    DELETE FROM ulak.idempotency_records AS r
    WHERE r.id = OLD.id AND r.owner_token IS NOT DISTINCT FROM OLD.owner_token AND NOT (
        r.status = 'processing'
        AND coalesce(r.lease_until, 0) > extract(epoch FROM clock_timestamp()) * 1000000
    );
    IF FOUND THEN
        RETURN OLD;
    END IF;
    RETURN NULL;
END
$$;

-- Makes the view that others may read and delete from, and tells whether it is there: a role that
-- may not write in `public`, or a name that is taken there, must not keep a store from its schema.
CREATE FUNCTION ulak.show_idempotency_keys() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF to_regclass('public.hos_idempotency_keys') IS NULL THEN
        CREATE VIEW public.hos_idempotency_keys AS
        SELECT id, key, nullif(scope, '') AS scope, nullif(tenant_id, '') AS tenant_id, status,
            response_json, response_status, response_headers, request_hash, actor_id, owner_token,
            timestamptz 'epoch' + lease_until * interval '1 microsecond' AS lease_until,
            attempt, recovery_point,
            timestamptz 'epoch' + created_at * interval '1 microsecond' AS created_at,
            timestamptz 'epoch' + updated_at * interval '1 microsecond' AS updated_at,
            timestamptz 'epoch' + expires_at * interval '1 microsecond' AS expires_at
        FROM ulak.idempotency_records;

        CREATE TRIGGER hos_idempotency_keys_deleted
        INSTEAD OF INSERT OR UPDATE OR DELETE ON public.hos_idempotency_keys
        FOR EACH ROW EXECUTE FUNCTION ulak.delete_idempotency_key();
    END IF;
    RETURN EXISTS (
        SELECT FROM pg_trigger
        WHERE tgrelid = to_regclass('public.hos_idempotency_keys')
            AND tgfoid = 'ulak.delete_idempotency_key'::regproc
    );
EXCEPTION WHEN insufficient_privilege OR invalid_schema_name OR duplicate_table THEN
    RETURN false;
END
$$;

SELECT ulak.show_idempotency_keys();
