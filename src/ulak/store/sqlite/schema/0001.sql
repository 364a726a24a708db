-- The first schema. Times are microseconds since 1970, ids sixteen bytes.

-- The hot row: columns in the order of ulak.core.job.JobRow. What is long or rare has a table
-- of its own, so that a claim and a commit rewrite few bytes.
CREATE TABLE jobs (
    id            BLOB    NOT NULL PRIMARY KEY CHECK (length(id) = 16),
    tenant        TEXT    NOT NULL,
    flow          TEXT    NOT NULL,
    flow_version  INTEGER NOT NULL,
    created_at    INTEGER NOT NULL,
    submitter     TEXT    NOT NULL,
    dedup_key     TEXT,
    priority      INTEGER NOT NULL CHECK (priority BETWEEN 0 AND 3),
    expires_at    INTEGER,
    scheduled_for INTEGER,
    state         TEXT    NOT NULL,
    role          TEXT    NOT NULL,
    version       INTEGER NOT NULL,
    seq           INTEGER NOT NULL,
    round         INTEGER NOT NULL,
    attempt       INTEGER NOT NULL,
    lapses        INTEGER NOT NULL,
    changed_at    INTEGER NOT NULL,
    code          TEXT,
    permanent     INTEGER NOT NULL,
    resume        TEXT,
    started       TEXT    NOT NULL,
    undo_to       TEXT,
    has_results   INTEGER NOT NULL,
    lane          TEXT    NOT NULL,
    not_before    INTEGER NOT NULL,
    slot          TEXT,
    parked_on     TEXT,
    awaits        TEXT,
    deadline_at   INTEGER,
    wake_at       INTEGER,
    leased_by     TEXT,
    leased_at     INTEGER,
    token         INTEGER NOT NULL,
    stood         INTEGER NOT NULL,
    lapsed        INTEGER NOT NULL,
    requests      INTEGER NOT NULL,
    CHECK (leased_by IS NULL OR parked_on IS NULL)
) STRICT, WITHOUT ROWID;

-- Exactly what a claim may take, in the order in which it takes it. The columns after `id` make it
-- covering, so that jobs are passed over or parked without reading their rows; SQLite looks at the
-- last two again although the condition says what they hold.
CREATE INDEX jobs_claimable
    ON jobs (lane, priority, not_before, id, lapses, slot, parked_on, leased_by)
    WHERE leased_by IS NULL AND parked_on IS NULL AND lane <> '';

CREATE INDEX jobs_leased ON jobs (leased_by) WHERE leased_by IS NOT NULL;

CREATE INDEX jobs_parked ON jobs (parked_on, priority, not_before, id)
    WHERE parked_on IS NOT NULL;

CREATE INDEX jobs_waking ON jobs (wake_at) WHERE wake_at IS NOT NULL;

-- Conditions are comparisons, never IN: SQLite would build a table for the list at every write.
CREATE INDEX jobs_ended ON jobs (changed_at)
    WHERE lane = '' AND role <> 'held' AND role <> 'waiting';

-- What people look for among many jobs that are well.
CREATE INDEX jobs_remarkable ON jobs (role, id)
    WHERE role <> 'done' AND role <> 'ready' AND role <> 'busy';

CREATE TABLE payloads (
    job_id BLOB    NOT NULL PRIMARY KEY,
    data   BLOB    NOT NULL,
    schema INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE events (
    job_id     BLOB    NOT NULL,
    seq        INTEGER NOT NULL,
    kind       TEXT    NOT NULL,
    from_state TEXT,
    to_state   TEXT    NOT NULL,
    actor      TEXT    NOT NULL,
    code       TEXT,
    message    TEXT,
    details    TEXT,
    round      INTEGER NOT NULL,
    attempt    INTEGER NOT NULL,
    worker     TEXT,
    token      INTEGER NOT NULL,
    started_at INTEGER,
    at         INTEGER NOT NULL,
    emitted    INTEGER NOT NULL,
    commit_id  BLOB    NOT NULL,
    PRIMARY KEY (job_id, seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE results (
    job_id BLOB    NOT NULL,
    round  INTEGER NOT NULL,
    stage  TEXT    NOT NULL,
    name   TEXT    NOT NULL,
    data   BLOB    NOT NULL,
    PRIMARY KEY (job_id, round, stage, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE progress (
    job_id   BLOB    NOT NULL PRIMARY KEY,
    fraction REAL    NOT NULL,
    note     TEXT,
    at       INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE requests (
    job_id BLOB    NOT NULL,
    kind   TEXT    NOT NULL,
    name   TEXT    NOT NULL,
    actor  TEXT    NOT NULL,
    note   TEXT,
    data   BLOB,
    at     INTEGER NOT NULL,
    PRIMARY KEY (job_id, kind, name)
) STRICT, WITHOUT ROWID;

-- The key is the law: two jobs of one key cannot both be here.
CREATE TABLE dedup (
    tenant     TEXT NOT NULL,
    flow       TEXT NOT NULL,
    key        TEXT NOT NULL,
    job_id     BLOB NOT NULL,
    expires_at INTEGER,
    PRIMARY KEY (tenant, flow, key)
) STRICT, WITHOUT ROWID;

CREATE TABLE slots (
    limit_name TEXT    NOT NULL,
    n          INTEGER NOT NULL CHECK (n > 0),
    job_id     BLOB    UNIQUE,
    closed     INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (limit_name, n)
) STRICT, WITHOUT ROWID;

CREATE INDEX slots_free ON slots (limit_name, n) WHERE job_id IS NULL AND closed = 0;

CREATE TABLE workers (
    id         TEXT    NOT NULL PRIMARY KEY,
    started_at INTEGER NOT NULL,
    renewed_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    lanes      TEXT    NOT NULL,
    about      TEXT    NOT NULL
) STRICT, WITHOUT ROWID;

-- `position` is the order of commits. `head` marks the oldest message of its key that is neither
-- sent nor dead, so that a relay finds what it may send without walking past what it may not.
CREATE TABLE outbox (
    position   INTEGER PRIMARY KEY AUTOINCREMENT,
    job_id     BLOB    NOT NULL,
    seq        INTEGER NOT NULL,
    n          INTEGER NOT NULL,
    key        TEXT    NOT NULL,
    topic      TEXT    NOT NULL,
    data       BLOB    NOT NULL,
    at         INTEGER NOT NULL,
    sent_at    INTEGER,
    tries      INTEGER NOT NULL DEFAULT 0,
    not_before INTEGER NOT NULL,
    dead       INTEGER NOT NULL DEFAULT 0,
    head       INTEGER NOT NULL DEFAULT 0,
    UNIQUE (job_id, seq, n)
) STRICT;

CREATE INDEX outbox_pending ON outbox (key, position) WHERE sent_at IS NULL AND dead = 0;

CREATE INDEX outbox_heads ON outbox (not_before, position) WHERE head = 1;

CREATE INDEX outbox_dead ON outbox (position) WHERE dead = 1;

-- Commits append to `count_deltas`, upkeep folds it into `counts`, a reader sums both.
CREATE TABLE count_deltas (
    flow         TEXT    NOT NULL,
    flow_version INTEGER NOT NULL,
    state        TEXT    NOT NULL,
    role         TEXT    NOT NULL,
    jobs         INTEGER NOT NULL
) STRICT;

CREATE TABLE counts (
    flow         TEXT    NOT NULL,
    flow_version INTEGER NOT NULL,
    state        TEXT    NOT NULL,
    role         TEXT    NOT NULL,
    jobs         INTEGER NOT NULL,
    PRIMARY KEY (flow, flow_version, state, role)
) STRICT, WITHOUT ROWID;

-- Hash-chained per tenant; never pruned.
CREATE TABLE proofs (
    tenant   TEXT    NOT NULL,
    proof_id INTEGER NOT NULL CHECK (proof_id > 0),
    job_id   BLOB    NOT NULL,
    seq      INTEGER NOT NULL,
    body     BLOB    NOT NULL,
    hash     BLOB    NOT NULL,
    PRIMARY KEY (tenant, proof_id)
) STRICT, WITHOUT ROWID;

-- Which jobs have proofs: those whose first event has one. Asked for events that a claim writes.
CREATE INDEX proofs_first ON proofs (job_id) WHERE seq = 1;

CREATE TABLE proof_heads (
    tenant   TEXT    NOT NULL PRIMARY KEY,
    proof_id INTEGER NOT NULL,
    hash     BLOB    NOT NULL
) STRICT, WITHOUT ROWID;
