-- What adaptive control remembers. Times are milliseconds since 1970.
-- oldest: 1

-- The mode of each subsystem and since when it is so, as the loop or a person has set it.
CREATE TABLE {schema}.control_modes (
    subsystem_id TEXT{bytewise} NOT NULL PRIMARY KEY,
    mode         TEXT NOT NULL,
    set_by       TEXT NOT NULL,
    reason       TEXT NOT NULL,
    targets      TEXT NOT NULL,
    since_ms     {bigint} NOT NULL
){strict};

-- One row: the tick that may write, and what the loop goes on with after a restart.
CREATE TABLE {schema}.control_loop (
    id        INTEGER NOT NULL PRIMARY KEY,
    fence     {bigint} NOT NULL,
    process   TEXT NOT NULL,
    ticked_ms {bigint} NOT NULL,
    state     TEXT NOT NULL,
    memory    TEXT NOT NULL,
    report    TEXT NOT NULL
){strict};

CREATE TABLE {schema}.control_switches (
    name       TEXT{bytewise} NOT NULL PRIMARY KEY,
    enabled    INTEGER NOT NULL,
    updated_ms {bigint} NOT NULL,
    updated_by TEXT NOT NULL,
    reason     TEXT NOT NULL
){strict};

CREATE TABLE {schema}.control_overrides (
    subsystem_id TEXT{bytewise} NOT NULL PRIMARY KEY,
    mode         TEXT NOT NULL,
    actor        TEXT NOT NULL,
    reason       TEXT NOT NULL,
    expires_ms   {bigint},
    set_ms       {bigint} NOT NULL
){strict};

-- The revisions of the configuration, the allow-list in it; the newest is in force.
CREATE TABLE {schema}.control_config (
    revision INTEGER NOT NULL PRIMARY KEY,
    data     TEXT NOT NULL,
    actor    TEXT NOT NULL,
    reason   TEXT NOT NULL,
    at_ms    {bigint} NOT NULL
){strict};

CREATE TABLE {schema}.control_events (
    id           {serial},
    event_id     TEXT NOT NULL UNIQUE,
    subsystem_id TEXT{bytewise} NOT NULL,
    reason       TEXT NOT NULL,
    actor        TEXT NOT NULL,
    at_ms        {bigint} NOT NULL,
    data         TEXT NOT NULL
){strict};

CREATE INDEX control_events_subsystem ON {schema}.control_events (subsystem_id, at_ms);

CREATE TABLE {schema}.control_audit (
    id      {serial},
    kind    TEXT{bytewise} NOT NULL,
    subject TEXT NOT NULL,
    actor   TEXT NOT NULL,
    at_ms   {bigint} NOT NULL,
    data    TEXT NOT NULL
){strict};

CREATE INDEX control_audit_kind ON {schema}.control_audit (kind, at_ms);

-- What the loop has read of its sources, by tick; older than six hours it is in the buckets.
CREATE TABLE {schema}.control_samples (
    at_ms     {bigint} NOT NULL,
    source_id TEXT{bytewise} NOT NULL,
    data      TEXT NOT NULL,
    PRIMARY KEY (at_ms, source_id)
){strict};

CREATE TABLE {schema}.control_buckets (
    metric    TEXT{bytewise} NOT NULL,
    start_ms  {bigint} NOT NULL,
    bad       {bigint} NOT NULL,
    total     {bigint} NOT NULL,
    PRIMARY KEY (metric, start_ms)
){strict};
