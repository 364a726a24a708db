-- Subjects, proofs, and the head of each tenant's chain. Times are microseconds since 1970.

CREATE TABLE hos_contract_subjects (
    tenant_id  TEXT    NOT NULL,
    type       TEXT    NOT NULL,
    id         TEXT    NOT NULL,
    status     TEXT    NOT NULL,
    version    INTEGER NOT NULL,
    proof_id   INTEGER,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, type, id)
) STRICT, WITHOUT ROWID;

CREATE TABLE hos_proofs (
    proof_id         INTEGER NOT NULL PRIMARY KEY,
    occurred_at      INTEGER NOT NULL,
    tenant_id        TEXT    NOT NULL,
    actor_id         TEXT,
    source           TEXT    NOT NULL,
    kind             TEXT    NOT NULL,
    subject_type     TEXT,
    subject_id       TEXT,
    from_status      TEXT,
    to_status        TEXT,
    payload          TEXT    NOT NULL,
    request_id       TEXT,
    idempotency_key  TEXT,
    request_hash     TEXT    NOT NULL,
    contract_version TEXT,
    prev_hash        TEXT    NOT NULL,
    hash             TEXT    NOT NULL
) STRICT;

-- The second barrier: a lost idempotency record still cannot yield a second proof.
CREATE UNIQUE INDEX hos_proofs_key ON hos_proofs (tenant_id, kind, idempotency_key)
    WHERE idempotency_key IS NOT NULL;
CREATE INDEX hos_proofs_of_tenant ON hos_proofs (tenant_id, proof_id);
CREATE INDEX hos_proofs_of_subject ON hos_proofs (tenant_id, subject_type, subject_id, proof_id);

CREATE TABLE hos_proof_heads (
    tenant_id TEXT    NOT NULL PRIMARY KEY,
    proof_id  INTEGER NOT NULL,
    hash      TEXT    NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TRIGGER hos_proofs_are_not_updated BEFORE UPDATE ON hos_proofs
BEGIN
    SELECT RAISE(ABORT, 'proofs are only appended: a correction is a new proof');
END;

CREATE TRIGGER hos_proofs_are_not_deleted BEFORE DELETE ON hos_proofs
BEGIN
    SELECT RAISE(ABORT, 'proofs are only appended: a correction is a new proof');
END;

-- INSERT OR REPLACE removes the row before it without asking the trigger above.
CREATE TRIGGER hos_proofs_are_not_replaced BEFORE INSERT ON hos_proofs
WHEN EXISTS (SELECT 1 FROM hos_proofs WHERE proof_id = NEW.proof_id)
    OR EXISTS (
        SELECT 1 FROM hos_proofs
        WHERE tenant_id = NEW.tenant_id AND kind = NEW.kind
            AND idempotency_key = NEW.idempotency_key
    )
BEGIN
    SELECT RAISE(ABORT, 'proofs are only appended: a correction is a new proof');
END;
