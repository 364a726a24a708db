-- The second schema.

-- Schedules: columns in the order of ulak.store.protocol.ScheduleRow. A tick is a date that was
-- seen to, inserted with its job; its key is the law that no date makes two jobs.
CREATE TABLE schedules (
    name         TEXT    NOT NULL PRIMARY KEY,
    flow         TEXT    NOT NULL,
    flow_version INTEGER NOT NULL,
    tenant       TEXT    NOT NULL,
    priority     INTEGER NOT NULL CHECK (priority BETWEEN 0 AND 3),
    expires_us   INTEGER,
    payload      BLOB    NOT NULL,
    rule         TEXT    NOT NULL,
    zone         TEXT    NOT NULL,
    catch_up     TEXT    NOT NULL,
    next_at      INTEGER NOT NULL,
    paused_at    INTEGER,
    paused_by    TEXT,
    pause_note   TEXT
) STRICT, WITHOUT ROWID;

CREATE INDEX schedules_due ON schedules (next_at, name) WHERE paused_at IS NULL;

CREATE TABLE ticks (
    schedule TEXT    NOT NULL,
    due_at   INTEGER NOT NULL,
    job_id   BLOB    NOT NULL,
    PRIMARY KEY (schedule, due_at)
) STRICT, WITHOUT ROWID;

-- Ticks are forgotten with their jobs.
CREATE INDEX ticks_of_job ON ticks (job_id);

-- Flow control: limits, rates and pauses that operators may change, keys, fairness, audit.

ALTER TABLE jobs ADD COLUMN keys TEXT;

ALTER TABLE jobs ADD COLUMN rate TEXT;

ALTER TABLE jobs ADD COLUMN cost INTEGER NOT NULL DEFAULT 0;

-- As before, and a claim sees what a run must be paid with.
DROP INDEX jobs_claimable;

CREATE INDEX jobs_claimable
    ON jobs (lane, priority, not_before, id, lapses, slot, rate, cost, parked_on, leased_by)
    WHERE leased_by IS NULL AND parked_on IS NULL AND lane <> '';

-- A limit is what its flow declares until an operator sets another: `actor` tells which it is.
CREATE TABLE limits (
    name     TEXT    NOT NULL PRIMARY KEY,
    n        INTEGER NOT NULL CHECK (n >= 0),
    declared INTEGER NOT NULL,
    keyed    INTEGER NOT NULL,
    actor    TEXT,
    at       INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- The limits that were in force before they were rows: every slot that is open.
INSERT INTO limits (name, n, declared, keyed, at)
    SELECT limit_name, sum(closed = 0), sum(closed = 0), 0, 0 FROM slots GROUP BY limit_name;

CREATE TABLE rates (
    name            TEXT    NOT NULL PRIMARY KEY,
    n               INTEGER NOT NULL CHECK (n > 0),
    per_us          INTEGER NOT NULL CHECK (per_us > 0),
    burst           INTEGER NOT NULL CHECK (burst > 0),
    declared_n      INTEGER NOT NULL,
    declared_per_us INTEGER NOT NULL,
    declared_burst  INTEGER NOT NULL,
    actor           TEXT,
    at              INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- One row for each bucket that is not full; nobody takes more than there is.
CREATE TABLE buckets (
    name      TEXT    NOT NULL PRIMARY KEY,
    level     INTEGER NOT NULL CHECK (level >= 0),
    filled_at INTEGER NOT NULL,
    ready_at  INTEGER
) STRICT, WITHOUT ROWID;

CREATE INDEX buckets_ready ON buckets (ready_at) WHERE ready_at IS NOT NULL;

CREATE TABLE pauses (
    kind     TEXT    NOT NULL CHECK (kind = 'queue' OR kind = 'flow' OR kind = 'key'),
    name     TEXT    NOT NULL,
    until_at INTEGER,
    actor    TEXT    NOT NULL,
    note     TEXT,
    at       INTEGER NOT NULL,
    PRIMARY KEY (kind, name)
) STRICT, WITHOUT ROWID;

CREATE INDEX pauses_ending ON pauses (until_at) WHERE until_at IS NOT NULL;

CREATE TABLE weights (
    tenant TEXT    NOT NULL PRIMARY KEY,
    weight INTEGER NOT NULL CHECK (weight > 0),
    actor  TEXT    NOT NULL,
    at     INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- How much the tenants of a family of lanes have had. `began` is what one had had before its last
-- turn; the greatest of them is where whoever comes new, or back, begins.
CREATE TABLE turns (
    lane   TEXT    NOT NULL,
    tenant TEXT    NOT NULL,
    passed INTEGER NOT NULL,
    began  INTEGER NOT NULL,
    PRIMARY KEY (lane, tenant)
) STRICT, WITHOUT ROWID;

CREATE INDEX turns_began ON turns (lane, began);

CREATE TABLE audit (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    at       INTEGER NOT NULL,
    actor    TEXT    NOT NULL,
    act      TEXT    NOT NULL,
    subject  TEXT    NOT NULL,
    note     TEXT,
    details  TEXT    NOT NULL
) STRICT;

CREATE INDEX audit_subject ON audit (subject, position);
