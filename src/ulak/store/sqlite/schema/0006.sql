-- The sixth schema.
-- oldest: 5

-- The oldest schema whose release may run on this file: the strictest `-- oldest:` of the files
-- that were run. The number of the schema itself is `PRAGMA user_version`.
CREATE TABLE schema_version (
    oldest INTEGER NOT NULL
) STRICT;

INSERT INTO schema_version (oldest) VALUES (5);
