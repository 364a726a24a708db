-- The fifth schema.
-- oldest: 4

-- The oldest schema whose release may run on this database: the strictest `-- oldest:` of the files
-- that were run. The default is for a release before this one, which knows no such column.
ALTER TABLE ulak.schema_version ADD COLUMN oldest integer NOT NULL DEFAULT 4;
