-- The eighth schema.
-- oldest: 6

-- Flows that take no new jobs: of one tenant, or of all of them ('*').
CREATE TABLE stops (
    flow           TEXT    NOT NULL,
    tenant         TEXT    NOT NULL,
    retry_after_us INTEGER NOT NULL,
    actor          TEXT    NOT NULL,
    note           TEXT,
    at             INTEGER NOT NULL,
    PRIMARY KEY (flow, tenant)
) STRICT, WITHOUT ROWID;

-- 1 when the slot is that of a busy state: its job keeps it until it leaves the state, leased or not.
ALTER TABLE slots ADD COLUMN of_state INTEGER NOT NULL DEFAULT 0;
