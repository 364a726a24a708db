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
