-- The third schema.

-- Who is known: columns in the order of ulak.store.protocol.CredentialRow. No secret is here: of
-- a key or a link the hash is stored, of a password a slow one.
CREATE TABLE credentials (
    kind       TEXT    NOT NULL CHECK (kind = 'key' OR kind = 'user' OR kind = 'link'),
    id         TEXT    NOT NULL,
    name       TEXT    NOT NULL,
    tenant     TEXT,
    roles      TEXT    NOT NULL,
    scopes     TEXT    NOT NULL,
    hash       TEXT    NOT NULL,
    created_at INTEGER NOT NULL,
    created_by TEXT    NOT NULL,
    expires_at INTEGER,
    revoked_at INTEGER,
    used_at    INTEGER,
    version    INTEGER NOT NULL,
    PRIMARY KEY (kind, id)
) STRICT, WITHOUT ROWID;
