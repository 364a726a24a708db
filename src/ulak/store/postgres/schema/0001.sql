-- The first schema. Times are microseconds since 1970. What is compared or ordered is in collation
-- "C": by bytes, as Python sorts, whatever the database was made with.

CREATE TABLE ulak.jobs (
    id            uuid NOT NULL PRIMARY KEY,
    tenant        text COLLATE "C" NOT NULL,
    flow          text COLLATE "C" NOT NULL,
    flow_version  integer NOT NULL,
    created_at    bigint NOT NULL,
    submitter     text NOT NULL,
    dedup_key     text COLLATE "C",
    priority      smallint NOT NULL CHECK (priority BETWEEN 0 AND 3),
    expires_at    bigint,
    scheduled_for bigint,
    keys          text,
    state         text COLLATE "C" NOT NULL,
    role          text COLLATE "C" NOT NULL,
    version       integer NOT NULL,
    seq           integer NOT NULL,
    round         integer NOT NULL,
    attempt       integer NOT NULL,
    lapses        integer NOT NULL,
    changed_at    bigint NOT NULL,
    code          text,
    permanent     smallint NOT NULL,
    resume        text,
    started       text NOT NULL,
    undo_to       text,
    has_results   smallint NOT NULL,
    lane          text COLLATE "C" NOT NULL,
    not_before    bigint NOT NULL,
    slot          text COLLATE "C",
    rate          text COLLATE "C",
    cost          bigint NOT NULL,
    parked_on     text COLLATE "C",
    awaits        text,
    deadline_at   bigint,
    wake_at       bigint,
    leased_by     text COLLATE "C",
    leased_at     bigint,
    token         bigint NOT NULL,
    stood         smallint NOT NULL,
    lapsed        smallint NOT NULL,
    requests      integer NOT NULL,
    month         integer NOT NULL,
    CHECK (leased_by IS NULL OR parked_on IS NULL)
) WITH (
    fillfactor = 80,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.05
);

COMMENT ON COLUMN ulak.jobs.month IS
    'YYYYMM of the submit: the partition of its events, payload and results';

-- Exactly what a claim may take, in the order in which it takes it.
CREATE INDEX jobs_claimable ON ulak.jobs (lane, priority, not_before, id)
    WHERE leased_by IS NULL AND parked_on IS NULL AND lane <> '';

CREATE INDEX jobs_leased ON ulak.jobs (leased_by) WHERE leased_by IS NOT NULL;

CREATE INDEX jobs_parked ON ulak.jobs (parked_on, priority, not_before, id)
    WHERE parked_on IS NOT NULL;

CREATE INDEX jobs_waking ON ulak.jobs (wake_at, id) WHERE wake_at IS NOT NULL;

CREATE INDEX jobs_ended ON ulak.jobs (changed_at)
    WHERE lane = '' AND role <> 'held' AND role <> 'waiting';

-- What people look for among many jobs that are well.
CREATE INDEX jobs_remarkable ON ulak.jobs (role, id)
    WHERE role <> 'done' AND role <> 'ready' AND role <> 'busy';

-- Whether a month still has jobs is asked by `prune` alone; this index costs its writers nothing.
CREATE INDEX jobs_month ON ulak.jobs USING brin (month);

-- Rows that are written once and read rarely, apart by the month of the submit: a month whose jobs
-- are gone goes by dropping its partition. What belongs to no month that was foreseen is in the last.
CREATE TABLE ulak.payloads (
    month  integer NOT NULL,
    job_id uuid    NOT NULL,
    data   bytea   NOT NULL,
    schema integer NOT NULL,
    PRIMARY KEY (job_id, month)
) PARTITION BY LIST (month);

CREATE TABLE ulak.events (
    month      integer NOT NULL,
    job_id     uuid    NOT NULL,
    seq        integer NOT NULL,
    kind       text    NOT NULL,
    from_state text,
    to_state   text    NOT NULL,
    actor      text    NOT NULL,
    code       text,
    message    text,
    details    text,
    round      integer NOT NULL,
    attempt    integer NOT NULL,
    worker     text,
    token      bigint  NOT NULL,
    started_at bigint,
    at         bigint  NOT NULL,
    emitted    integer NOT NULL,
    commit_id  bytea   NOT NULL,
    PRIMARY KEY (job_id, seq, month)
) PARTITION BY LIST (month);

CREATE TABLE ulak.results (
    month  integer NOT NULL,
    job_id uuid    NOT NULL,
    round  integer NOT NULL,
    stage  text COLLATE "C" NOT NULL,
    name   text COLLATE "C" NOT NULL,
    data   bytea   NOT NULL,
    PRIMARY KEY (job_id, round, stage, name, month)
) PARTITION BY LIST (month);

CREATE TABLE ulak.payloads_other PARTITION OF ulak.payloads DEFAULT;
CREATE TABLE ulak.events_other PARTITION OF ulak.events DEFAULT;
CREATE TABLE ulak.results_other PARTITION OF ulak.results DEFAULT;

-- The months whose jobs are all due to be pruned: their partitions are dropped with the last of them.
CREATE TABLE ulak.retired_months (
    month integer NOT NULL PRIMARY KEY
);

CREATE TABLE ulak.progress (
    job_id   uuid             NOT NULL PRIMARY KEY,
    fraction double precision NOT NULL,
    note     text,
    at       bigint           NOT NULL
) WITH (fillfactor = 70);

CREATE TABLE ulak.requests (
    job_id uuid   NOT NULL,
    kind   text COLLATE "C" NOT NULL,
    name   text COLLATE "C" NOT NULL,
    actor  text   NOT NULL,
    note   text,
    data   bytea,
    at     bigint NOT NULL,
    PRIMARY KEY (job_id, kind, name)
);

-- The key is the law: two jobs of one key cannot both be here.
CREATE TABLE ulak.dedup (
    tenant     text COLLATE "C" NOT NULL,
    flow       text COLLATE "C" NOT NULL,
    key        text COLLATE "C" NOT NULL,
    job_id     uuid NOT NULL,
    expires_at bigint,
    PRIMARY KEY (tenant, flow, key)
);

CREATE TABLE ulak.slots (
    limit_name text COLLATE "C" NOT NULL,
    n          integer NOT NULL CHECK (n > 0),
    job_id     uuid UNIQUE,
    closed     smallint NOT NULL DEFAULT 0,
    PRIMARY KEY (limit_name, n)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);

CREATE INDEX slots_free ON ulak.slots (limit_name, n) WHERE job_id IS NULL AND closed = 0;

CREATE TABLE ulak.workers (
    id         text COLLATE "C" NOT NULL PRIMARY KEY,
    started_at bigint NOT NULL,
    renewed_at bigint NOT NULL,
    expires_at bigint NOT NULL,
    lanes      text   NOT NULL,
    about      text   NOT NULL
) WITH (fillfactor = 50);

-- `position` is the order of posting. `head` marks the oldest message of its key that is neither
-- sent nor dead, so that a relay finds what it may send without walking past what it may not.
CREATE TABLE ulak.outbox (
    position   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_id     uuid     NOT NULL,
    seq        integer  NOT NULL,
    n          integer  NOT NULL,
    key        text COLLATE "C" NOT NULL,
    topic      text     NOT NULL,
    data       bytea    NOT NULL,
    at         bigint   NOT NULL,
    sent_at    bigint,
    tries      integer  NOT NULL DEFAULT 0,
    not_before bigint   NOT NULL,
    dead       smallint NOT NULL DEFAULT 0,
    head       smallint NOT NULL DEFAULT 0,
    UNIQUE (job_id, seq, n)
);

CREATE INDEX outbox_pending ON ulak.outbox (key, position) WHERE sent_at IS NULL AND dead = 0;

CREATE INDEX outbox_heads ON ulak.outbox (not_before, position) WHERE head = 1;

CREATE INDEX outbox_dead ON ulak.outbox (position) WHERE dead = 1;

-- Commits append to `count_deltas`, upkeep folds it into `counts`, a reader sums both.
CREATE TABLE ulak.count_deltas (
    flow         text COLLATE "C" NOT NULL,
    flow_version integer NOT NULL,
    state        text COLLATE "C" NOT NULL,
    role         text COLLATE "C" NOT NULL,
    jobs         bigint  NOT NULL
);

CREATE TABLE ulak.counts (
    flow         text COLLATE "C" NOT NULL,
    flow_version integer NOT NULL,
    state        text COLLATE "C" NOT NULL,
    role         text COLLATE "C" NOT NULL,
    jobs         bigint  NOT NULL,
    PRIMARY KEY (flow, flow_version, state, role)
) WITH (fillfactor = 50);

-- Hash-chained per tenant; never pruned.
CREATE TABLE ulak.proofs (
    tenant   text COLLATE "C" NOT NULL,
    proof_id bigint  NOT NULL CHECK (proof_id > 0),
    job_id   uuid    NOT NULL,
    seq      integer NOT NULL,
    body     bytea   NOT NULL,
    hash     bytea   NOT NULL,
    PRIMARY KEY (tenant, proof_id)
);

-- Which jobs have proofs: those whose first event has one. Asked for events that a claim writes.
CREATE INDEX proofs_first ON ulak.proofs (job_id) WHERE seq = 1;

CREATE TABLE ulak.proof_heads (
    tenant   text COLLATE "C" NOT NULL PRIMARY KEY,
    proof_id bigint NOT NULL,
    hash     bytea  NOT NULL
);

-- Schedules: columns in the order of ulak.store.protocol.ScheduleRow. A tick is a date that was
-- seen to, inserted with its job; its key is the law that no date makes two jobs.
CREATE TABLE ulak.schedules (
    name         text COLLATE "C" NOT NULL PRIMARY KEY,
    flow         text     NOT NULL,
    flow_version integer  NOT NULL,
    tenant       text     NOT NULL,
    priority     smallint NOT NULL CHECK (priority BETWEEN 0 AND 3),
    expires_us   bigint,
    payload      bytea    NOT NULL,
    rule         text     NOT NULL,
    zone         text     NOT NULL,
    catch_up     text     NOT NULL,
    next_at      bigint   NOT NULL,
    paused_at    bigint,
    paused_by    text,
    pause_note   text
) WITH (fillfactor = 50);

CREATE INDEX schedules_due ON ulak.schedules (next_at, name) WHERE paused_at IS NULL;

CREATE TABLE ulak.ticks (
    schedule text COLLATE "C" NOT NULL,
    due_at   bigint NOT NULL,
    job_id   uuid   NOT NULL,
    PRIMARY KEY (schedule, due_at)
);

-- Ticks are forgotten with their jobs.
CREATE INDEX ticks_of_job ON ulak.ticks (job_id);

-- Flow control. A limit is what its flow declares until an operator sets another: `actor` tells
-- which it is.
CREATE TABLE ulak.limits (
    name     text COLLATE "C" NOT NULL PRIMARY KEY,
    n        integer  NOT NULL CHECK (n >= 0),
    declared integer  NOT NULL,
    keyed    smallint NOT NULL,
    actor    text,
    at       bigint   NOT NULL
);

CREATE TABLE ulak.rates (
    name            text COLLATE "C" NOT NULL PRIMARY KEY,
    n               bigint NOT NULL CHECK (n > 0),
    per_us          bigint NOT NULL CHECK (per_us > 0),
    burst           bigint NOT NULL CHECK (burst > 0),
    declared_n      bigint NOT NULL,
    declared_per_us bigint NOT NULL,
    declared_burst  bigint NOT NULL,
    actor           text,
    at              bigint NOT NULL
);

-- One row for each bucket that is not full; nobody takes more than there is.
CREATE TABLE ulak.buckets (
    name      text COLLATE "C" NOT NULL PRIMARY KEY,
    level     bigint NOT NULL CHECK (level >= 0),
    filled_at bigint NOT NULL,
    ready_at  bigint
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);

CREATE INDEX buckets_ready ON ulak.buckets (ready_at) WHERE ready_at IS NOT NULL;

CREATE TABLE ulak.pauses (
    kind     text COLLATE "C" NOT NULL CHECK (kind IN ('queue', 'flow', 'key')),
    name     text COLLATE "C" NOT NULL,
    until_at bigint,
    actor    text   NOT NULL,
    note     text,
    at       bigint NOT NULL,
    PRIMARY KEY (kind, name)
);

CREATE INDEX pauses_ending ON ulak.pauses (until_at) WHERE until_at IS NOT NULL;

CREATE TABLE ulak.weights (
    tenant text COLLATE "C" NOT NULL PRIMARY KEY,
    weight integer NOT NULL CHECK (weight > 0),
    actor  text    NOT NULL,
    at     bigint  NOT NULL
);

-- How much the tenants of a family of lanes have had. `began` is what one had had before its last
-- turn; the greatest of them is where whoever comes new, or back, begins.
CREATE TABLE ulak.turns (
    lane   text COLLATE "C" NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    passed bigint NOT NULL,
    began  bigint NOT NULL,
    PRIMARY KEY (lane, tenant)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);

CREATE INDEX turns_began ON ulak.turns (lane, began);

CREATE TABLE ulak.audit (
    position bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at       bigint NOT NULL,
    actor    text   NOT NULL,
    act      text   NOT NULL,
    subject  text COLLATE "C" NOT NULL,
    note     text,
    details  text   NOT NULL
);

CREATE INDEX audit_subject ON ulak.audit (subject, position);
