-- Subjects, proofs, and the head of each tenant's chain. Times are microseconds since 1970.

CREATE TABLE ulak.hos_contract_subjects (
    tenant_id  text   NOT NULL,
    type       text   NOT NULL,
    id         text   NOT NULL,
    status     text   NOT NULL,
    version    bigint NOT NULL,
    proof_id   bigint,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    PRIMARY KEY (tenant_id, type, id)
);

-- The number is taken before the row is written, since the hash covers it.
CREATE SEQUENCE ulak.hos_proof_ids;

CREATE TABLE ulak.hos_proofs (
    proof_id         bigint NOT NULL PRIMARY KEY,
    occurred_at      bigint NOT NULL,
    tenant_id        text   NOT NULL,
    actor_id         text,
    source           text   NOT NULL,
    kind             text   NOT NULL,
    subject_type     text,
    subject_id       text,
    from_status      text,
    to_status        text,
    payload          text   NOT NULL,
    request_id       text,
    idempotency_key  text,
    request_hash     text   NOT NULL,
    contract_version text,
    prev_hash        text   NOT NULL,
    hash             text   NOT NULL
);

-- The second barrier: a lost idempotency record still cannot yield a second proof.
CREATE UNIQUE INDEX hos_proofs_key ON ulak.hos_proofs (tenant_id, kind, idempotency_key)
    WHERE idempotency_key IS NOT NULL;
CREATE INDEX hos_proofs_of_tenant ON ulak.hos_proofs (tenant_id, proof_id);
CREATE INDEX hos_proofs_of_subject
    ON ulak.hos_proofs (tenant_id, subject_type, subject_id, proof_id);

CREATE TABLE ulak.hos_proof_heads (
    tenant_id text   NOT NULL PRIMARY KEY,
    proof_id  bigint NOT NULL,
    hash      text   NOT NULL
);

CREATE FUNCTION ulak.hos_proofs_are_kept() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'proofs are only appended: a correction is a new proof'
        USING ERRCODE = 'restrict_violation';
END
$$;

CREATE TRIGGER hos_proofs_are_kept BEFORE UPDATE OR DELETE OR TRUNCATE ON ulak.hos_proofs
    FOR EACH STATEMENT EXECUTE FUNCTION ulak.hos_proofs_are_kept();
