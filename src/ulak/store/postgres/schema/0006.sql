-- The sixth schema.
-- oldest: 4

-- Flows that take no new jobs: of one tenant, or of all of them ('*').
CREATE TABLE ulak.stops (
    flow           text COLLATE "C" NOT NULL,
    tenant         text COLLATE "C" NOT NULL,
    retry_after_us bigint NOT NULL,
    actor          text   NOT NULL,
    note           text,
    at             bigint NOT NULL,
    PRIMARY KEY (flow, tenant)
);

-- 1 when the slot is that of a busy state: its job keeps it until it leaves the state, leased or not.
ALTER TABLE ulak.slots ADD COLUMN of_state smallint NOT NULL DEFAULT 0;
