-- What processes count: each writes its own rows, and any may add them up. Times are microseconds
-- since 1970. `supervisor` is the process that has started it, or itself.
-- oldest: 1

CREATE TABLE {schema}.process_metrics (
    process    TEXT{bytewise} NOT NULL,
    family     TEXT{bytewise} NOT NULL,
    supervisor TEXT{bytewise} NOT NULL,
    kind       TEXT NOT NULL,
    data       TEXT NOT NULL,
    at         {bigint} NOT NULL,
    PRIMARY KEY (process, family)
){strict};

CREATE INDEX process_metrics_supervisor ON {schema}.process_metrics (supervisor);
