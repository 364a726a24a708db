-- The second schema.

-- Who is known: columns in the order of ulak.store.protocol.CredentialRow. No secret is here: of
-- a key or a link the hash is stored, of a password a slow one.
CREATE TABLE ulak.credentials (
    kind       text COLLATE "C" NOT NULL CHECK (kind IN ('key', 'user', 'link')),
    id         text COLLATE "C" NOT NULL,
    name       text    NOT NULL,
    tenant     text,
    roles      text    NOT NULL,
    scopes     text    NOT NULL,
    hash       text    NOT NULL,
    created_at bigint  NOT NULL,
    created_by text    NOT NULL,
    expires_at bigint,
    revoked_at bigint,
    used_at    bigint,
    version    integer NOT NULL,
    PRIMARY KEY (kind, id)
) WITH (fillfactor = 50);
