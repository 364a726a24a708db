CREATE SCHEMA ulak;
CREATE FUNCTION ulak.hos_proofs_are_kept() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    RAISE EXCEPTION 'proofs are only appended: a correction is a new proof'
        USING ERRCODE = 'restrict_violation';
END
$$;
CREATE TABLE ulak.audit (
    "position" bigint NOT NULL,
    at bigint NOT NULL,
    actor text NOT NULL,
    act text NOT NULL,
    subject text NOT NULL COLLATE pg_catalog."C",
    note text,
    details text NOT NULL
);
ALTER TABLE ulak.audit ALTER COLUMN "position" ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME ulak.audit_position_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE ulak.buckets (
    name text NOT NULL COLLATE pg_catalog."C",
    level bigint NOT NULL,
    filled_at bigint NOT NULL,
    ready_at bigint,
    CONSTRAINT buckets_level_check CHECK ((level >= 0))
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0.05');
CREATE TABLE ulak.count_deltas (
    flow text NOT NULL COLLATE pg_catalog."C",
    flow_version integer NOT NULL,
    state text NOT NULL COLLATE pg_catalog."C",
    role text NOT NULL COLLATE pg_catalog."C",
    jobs bigint NOT NULL
);
CREATE TABLE ulak.counts (
    flow text NOT NULL COLLATE pg_catalog."C",
    flow_version integer NOT NULL,
    state text NOT NULL COLLATE pg_catalog."C",
    role text NOT NULL COLLATE pg_catalog."C",
    jobs bigint NOT NULL
)
WITH (fillfactor='50');
CREATE TABLE ulak.credentials (
    kind text NOT NULL COLLATE pg_catalog."C",
    id text NOT NULL COLLATE pg_catalog."C",
    name text NOT NULL,
    tenant text,
    roles text NOT NULL,
    scopes text NOT NULL,
    hash text NOT NULL,
    created_at bigint NOT NULL,
    created_by text NOT NULL,
    expires_at bigint,
    revoked_at bigint,
    used_at bigint,
    version integer NOT NULL,
    CONSTRAINT credentials_kind_check CHECK ((kind = ANY (ARRAY['key'::text, 'user'::text, 'link'::text])))
)
WITH (fillfactor='50');
CREATE TABLE ulak.dedup (
    tenant text NOT NULL COLLATE pg_catalog."C",
    flow text NOT NULL COLLATE pg_catalog."C",
    key text NOT NULL COLLATE pg_catalog."C",
    job_id uuid NOT NULL,
    expires_at bigint
);
CREATE TABLE ulak.events (
    month integer NOT NULL,
    job_id uuid NOT NULL,
    seq integer NOT NULL,
    kind text NOT NULL,
    from_state text,
    to_state text NOT NULL,
    actor text NOT NULL,
    code text,
    message text,
    details text,
    round integer NOT NULL,
    attempt integer NOT NULL,
    worker text,
    token bigint NOT NULL,
    started_at bigint,
    at bigint NOT NULL,
    emitted integer NOT NULL,
    commit_id bytea NOT NULL
)
PARTITION BY LIST (month);
CREATE TABLE ulak.events_202601 (
    month integer NOT NULL,
    job_id uuid NOT NULL,
    seq integer NOT NULL,
    kind text NOT NULL,
    from_state text,
    to_state text NOT NULL,
    actor text NOT NULL,
    code text,
    message text,
    details text,
    round integer NOT NULL,
    attempt integer NOT NULL,
    worker text,
    token bigint NOT NULL,
    started_at bigint,
    at bigint NOT NULL,
    emitted integer NOT NULL,
    commit_id bytea NOT NULL
);
CREATE TABLE ulak.events_202602 (
    month integer NOT NULL,
    job_id uuid NOT NULL,
    seq integer NOT NULL,
    kind text NOT NULL,
    from_state text,
    to_state text NOT NULL,
    actor text NOT NULL,
    code text,
    message text,
    details text,
    round integer NOT NULL,
    attempt integer NOT NULL,
    worker text,
    token bigint NOT NULL,
    started_at bigint,
    at bigint NOT NULL,
    emitted integer NOT NULL,
    commit_id bytea NOT NULL
);
CREATE TABLE ulak.events_202603 (
    month integer NOT NULL,
    job_id uuid NOT NULL,
    seq integer NOT NULL,
    kind text NOT NULL,
    from_state text,
    to_state text NOT NULL,
    actor text NOT NULL,
    code text,
    message text,
    details text,
    round integer NOT NULL,
    attempt integer NOT NULL,
    worker text,
    token bigint NOT NULL,
    started_at bigint,
    at bigint NOT NULL,
    emitted integer NOT NULL,
    commit_id bytea NOT NULL
);
CREATE TABLE ulak.events_other (
    month integer NOT NULL,
    job_id uuid NOT NULL,
    seq integer NOT NULL,
    kind text NOT NULL,
    from_state text,
    to_state text NOT NULL,
    actor text NOT NULL,
    code text,
    message text,
    details text,
    round integer NOT NULL,
    attempt integer NOT NULL,
    worker text,
    token bigint NOT NULL,
    started_at bigint,
    at bigint NOT NULL,
    emitted integer NOT NULL,
    commit_id bytea NOT NULL
);
CREATE TABLE ulak.hos_contract_schema (
    version integer NOT NULL
);
CREATE TABLE ulak.hos_contract_subjects (
    tenant_id text NOT NULL,
    type text NOT NULL,
    id text NOT NULL,
    status text NOT NULL,
    version bigint NOT NULL,
    proof_id bigint,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL
);
CREATE TABLE ulak.hos_idempotency_keys (
    id bigint NOT NULL,
    tenant_id text DEFAULT ''::text NOT NULL COLLATE pg_catalog."C",
    scope text DEFAULT ''::text NOT NULL COLLATE pg_catalog."C",
    key text NOT NULL COLLATE pg_catalog."C",
    status text NOT NULL,
    request_hash text NOT NULL,
    actor_id text DEFAULT ''::text NOT NULL,
    owner_token text,
    lease_until bigint,
    attempt integer DEFAULT 1 NOT NULL,
    recovery_point text,
    recovery_data text,
    response_status integer,
    response_headers text,
    response_json text,
    response_bytes bytea,
    response_digest text,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    expires_at bigint NOT NULL,
    CONSTRAINT hos_idempotency_keys_status_check CHECK ((status = ANY (ARRAY['processing'::text, 'completed'::text, 'failed'::text])))
)
WITH (fillfactor='60');
ALTER TABLE ulak.hos_idempotency_keys ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME ulak.hos_idempotency_keys_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE ulak.hos_outbox_events (
    id bigint NOT NULL,
    tenant_id text NOT NULL,
    event_type text NOT NULL,
    aggregate text NOT NULL,
    payload text NOT NULL,
    idempotency_key text NOT NULL,
    status text NOT NULL,
    attempts integer DEFAULT 0 NOT NULL,
    last_error text,
    available_at bigint NOT NULL,
    lease_until bigint,
    owner_token text,
    give_up_at bigint NOT NULL,
    sent_at bigint,
    response_status integer,
    response_json text,
    drift text,
    attempted_at bigint,
    duration_us bigint,
    failed_at bigint,
    discarded_at bigint,
    acts text DEFAULT '[]'::text NOT NULL,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    CONSTRAINT hos_outbox_events_status_check CHECK ((status = ANY (ARRAY['pending'::text, 'processing'::text, 'sent'::text, 'rejected'::text, 'dead'::text])))
);
ALTER TABLE ulak.hos_outbox_events ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME ulak.hos_outbox_events_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE ulak.hos_proof_heads (
    tenant_id text NOT NULL,
    proof_id bigint NOT NULL,
    hash text NOT NULL
);
CREATE SEQUENCE ulak.hos_proof_ids
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
CREATE TABLE ulak.hos_proofs (
    proof_id bigint NOT NULL,
    occurred_at bigint NOT NULL,
    tenant_id text NOT NULL,
    actor_id text,
    source text NOT NULL,
    kind text NOT NULL,
    subject_type text,
    subject_id text,
    from_status text,
    to_status text,
    payload text NOT NULL,
    request_id text,
    idempotency_key text,
    request_hash text NOT NULL,
    contract_version text,
    prev_hash text NOT NULL,
    hash text NOT NULL
);
CREATE TABLE ulak.jobs (
    id uuid NOT NULL,
    tenant text NOT NULL COLLATE pg_catalog."C",
    flow text NOT NULL COLLATE pg_catalog."C",
    flow_version integer NOT NULL,
    created_at bigint NOT NULL,
    submitter text NOT NULL,
    dedup_key text COLLATE pg_catalog."C",
    priority smallint NOT NULL,
    expires_at bigint,
    scheduled_for bigint,
    keys text,
    state text NOT NULL COLLATE pg_catalog."C",
    role text NOT NULL COLLATE pg_catalog."C",
    version integer NOT NULL,
    seq integer NOT NULL,
    round integer NOT NULL,
    attempt integer NOT NULL,
    lapses integer NOT NULL,
    changed_at bigint NOT NULL,
    code text,
    permanent smallint NOT NULL,
    resume text,
    started text NOT NULL,
    undo_to text,
    has_results smallint NOT NULL,
    lane text NOT NULL COLLATE pg_catalog."C",
    not_before bigint NOT NULL,
    slot text COLLATE pg_catalog."C",
    rate text COLLATE pg_catalog."C",
    cost bigint NOT NULL,
    parked_on text COLLATE pg_catalog."C",
    awaits text,
    deadline_at bigint,
    wake_at bigint,
    leased_by text COLLATE pg_catalog."C",
    leased_at bigint,
    token bigint NOT NULL,
    stood smallint NOT NULL,
    lapsed smallint NOT NULL,
    requests integer NOT NULL,
    month integer NOT NULL,
    CONSTRAINT jobs_check CHECK (((leased_by IS NULL) OR (parked_on IS NULL))),
    CONSTRAINT jobs_priority_check CHECK (((priority >= 0) AND (priority <= 3)))
)
WITH (fillfactor='80', autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='2000', autovacuum_vacuum_insert_scale_factor='0.05', autovacuum_vacuum_cost_delay='0', autovacuum_analyze_scale_factor='0.05');
COMMENT ON COLUMN ulak.jobs.month IS 'YYYYMM of the submit: the partition of its events, payload and results';
CREATE TABLE ulak.limits (
    name text NOT NULL COLLATE pg_catalog."C",
    n integer NOT NULL,
    declared integer NOT NULL,
    keyed smallint NOT NULL,
    actor text,
    at bigint NOT NULL,
    CONSTRAINT limits_n_check CHECK ((n >= 0))
);
CREATE TABLE ulak.outbox (
    "position" bigint NOT NULL,
    job_id uuid NOT NULL,
    seq integer NOT NULL,
    n integer NOT NULL,
    key text NOT NULL COLLATE pg_catalog."C",
    topic text NOT NULL,
    data bytea NOT NULL,
    at bigint NOT NULL,
    sent_at bigint,
    tries integer DEFAULT 0 NOT NULL,
    not_before bigint NOT NULL,
    dead smallint DEFAULT 0 NOT NULL,
    head smallint DEFAULT 0 NOT NULL
);
ALTER TABLE ulak.outbox ALTER COLUMN "position" ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME ulak.outbox_position_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE ulak.pauses (
    kind text NOT NULL COLLATE pg_catalog."C",
    name text NOT NULL COLLATE pg_catalog."C",
    until_at bigint,
    actor text NOT NULL,
    note text,
    at bigint NOT NULL,
    CONSTRAINT pauses_kind_check CHECK ((kind = ANY (ARRAY['queue'::text, 'flow'::text, 'key'::text])))
);
CREATE TABLE ulak.payloads (
    month integer NOT NULL,
    job_id uuid NOT NULL,
    data bytea NOT NULL,
    schema integer NOT NULL,
    trace text
)
PARTITION BY LIST (month);
CREATE TABLE ulak.payloads_202601 (
    month integer NOT NULL,
    job_id uuid NOT NULL,
    data bytea NOT NULL,
    schema integer NOT NULL,
    trace text
);
CREATE TABLE ulak.payloads_202602 (
    month integer NOT NULL,
    job_id uuid NOT NULL,
    data bytea NOT NULL,
    schema integer NOT NULL,
    trace text
);
CREATE TABLE ulak.payloads_202603 (
    month integer NOT NULL,
    job_id uuid NOT NULL,
    data bytea NOT NULL,
    schema integer NOT NULL,
    trace text
);
CREATE TABLE ulak.payloads_other (
    month integer NOT NULL,
    job_id uuid NOT NULL,
    data bytea NOT NULL,
    schema integer NOT NULL,
    trace text
);
CREATE TABLE ulak.progress (
    job_id uuid NOT NULL,
    fraction double precision NOT NULL,
    note text,
    at bigint NOT NULL
)
WITH (fillfactor='70');
CREATE TABLE ulak.proof_heads (
    tenant text NOT NULL COLLATE pg_catalog."C",
    proof_id bigint NOT NULL,
    hash bytea NOT NULL
);
CREATE TABLE ulak.proofs (
    tenant text NOT NULL COLLATE pg_catalog."C",
    proof_id bigint NOT NULL,
    job_id uuid NOT NULL,
    seq integer NOT NULL,
    body bytea NOT NULL,
    hash bytea NOT NULL,
    CONSTRAINT proofs_proof_id_check CHECK ((proof_id > 0))
);
CREATE TABLE ulak.rates (
    name text NOT NULL COLLATE pg_catalog."C",
    n bigint NOT NULL,
    per_us bigint NOT NULL,
    burst bigint NOT NULL,
    declared_n bigint NOT NULL,
    declared_per_us bigint NOT NULL,
    declared_burst bigint NOT NULL,
    actor text,
    at bigint NOT NULL,
    CONSTRAINT rates_burst_check CHECK ((burst > 0)),
    CONSTRAINT rates_n_check CHECK ((n > 0)),
    CONSTRAINT rates_per_us_check CHECK ((per_us > 0))
);
CREATE TABLE ulak.requests (
    job_id uuid NOT NULL,
    kind text NOT NULL COLLATE pg_catalog."C",
    name text NOT NULL COLLATE pg_catalog."C",
    actor text NOT NULL,
    note text,
    data bytea,
    at bigint NOT NULL
);
CREATE TABLE ulak.results (
    month integer NOT NULL,
    job_id uuid NOT NULL,
    round integer NOT NULL,
    stage text NOT NULL COLLATE pg_catalog."C",
    name text NOT NULL COLLATE pg_catalog."C",
    data bytea NOT NULL
)
PARTITION BY LIST (month);
CREATE TABLE ulak.results_202601 (
    month integer NOT NULL,
    job_id uuid NOT NULL,
    round integer NOT NULL,
    stage text NOT NULL COLLATE pg_catalog."C",
    name text NOT NULL COLLATE pg_catalog."C",
    data bytea NOT NULL
);
CREATE TABLE ulak.results_202602 (
    month integer NOT NULL,
    job_id uuid NOT NULL,
    round integer NOT NULL,
    stage text NOT NULL COLLATE pg_catalog."C",
    name text NOT NULL COLLATE pg_catalog."C",
    data bytea NOT NULL
);
CREATE TABLE ulak.results_202603 (
    month integer NOT NULL,
    job_id uuid NOT NULL,
    round integer NOT NULL,
    stage text NOT NULL COLLATE pg_catalog."C",
    name text NOT NULL COLLATE pg_catalog."C",
    data bytea NOT NULL
);
CREATE TABLE ulak.results_other (
    month integer NOT NULL,
    job_id uuid NOT NULL,
    round integer NOT NULL,
    stage text NOT NULL COLLATE pg_catalog."C",
    name text NOT NULL COLLATE pg_catalog."C",
    data bytea NOT NULL
);
CREATE TABLE ulak.retired_months (
    month integer NOT NULL
);
CREATE TABLE ulak.schedules (
    name text NOT NULL COLLATE pg_catalog."C",
    flow text NOT NULL,
    flow_version integer NOT NULL,
    tenant text NOT NULL,
    priority smallint NOT NULL,
    expires_us bigint,
    payload bytea NOT NULL,
    rule text NOT NULL,
    zone text NOT NULL,
    catch_up text NOT NULL,
    next_at bigint NOT NULL,
    paused_at bigint,
    paused_by text,
    pause_note text,
    CONSTRAINT schedules_priority_check CHECK (((priority >= 0) AND (priority <= 3)))
)
WITH (fillfactor='50');
CREATE TABLE ulak.schema_version (
    version integer NOT NULL
);
CREATE TABLE ulak.slots (
    limit_name text NOT NULL COLLATE pg_catalog."C",
    n integer NOT NULL,
    job_id uuid,
    closed smallint DEFAULT 0 NOT NULL,
    CONSTRAINT slots_n_check CHECK ((n > 0))
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0.05');
CREATE TABLE ulak.ticks (
    schedule text NOT NULL COLLATE pg_catalog."C",
    due_at bigint NOT NULL,
    job_id uuid NOT NULL
);
CREATE TABLE ulak.turns (
    lane text NOT NULL COLLATE pg_catalog."C",
    tenant text NOT NULL COLLATE pg_catalog."C",
    passed bigint NOT NULL,
    began bigint NOT NULL
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0.05');
CREATE TABLE ulak.weights (
    tenant text NOT NULL COLLATE pg_catalog."C",
    weight integer NOT NULL,
    actor text NOT NULL,
    at bigint NOT NULL,
    CONSTRAINT weights_weight_check CHECK ((weight > 0))
);
CREATE TABLE ulak.workers (
    id text NOT NULL COLLATE pg_catalog."C",
    started_at bigint NOT NULL,
    renewed_at bigint NOT NULL,
    expires_at bigint NOT NULL,
    lanes text NOT NULL,
    about text NOT NULL
)
WITH (fillfactor='50');
ALTER TABLE ONLY ulak.events ATTACH PARTITION ulak.events_202601 FOR VALUES IN (202601);
ALTER TABLE ONLY ulak.events ATTACH PARTITION ulak.events_202602 FOR VALUES IN (202602);
ALTER TABLE ONLY ulak.events ATTACH PARTITION ulak.events_202603 FOR VALUES IN (202603);
ALTER TABLE ONLY ulak.events ATTACH PARTITION ulak.events_other DEFAULT;
ALTER TABLE ONLY ulak.payloads ATTACH PARTITION ulak.payloads_202601 FOR VALUES IN (202601);
ALTER TABLE ONLY ulak.payloads ATTACH PARTITION ulak.payloads_202602 FOR VALUES IN (202602);
ALTER TABLE ONLY ulak.payloads ATTACH PARTITION ulak.payloads_202603 FOR VALUES IN (202603);
ALTER TABLE ONLY ulak.payloads ATTACH PARTITION ulak.payloads_other DEFAULT;
ALTER TABLE ONLY ulak.results ATTACH PARTITION ulak.results_202601 FOR VALUES IN (202601);
ALTER TABLE ONLY ulak.results ATTACH PARTITION ulak.results_202602 FOR VALUES IN (202602);
ALTER TABLE ONLY ulak.results ATTACH PARTITION ulak.results_202603 FOR VALUES IN (202603);
ALTER TABLE ONLY ulak.results ATTACH PARTITION ulak.results_other DEFAULT;
INSERT INTO ulak.audit OVERRIDING SYSTEM VALUE VALUES (1, 1767600000000000, 'ada', 'created', 'credential/key/ejnxcufh', NULL, '{"name":"fixture","tenant":null,"roles":"operator","scopes":"","created_at":1767600000000000,"created_by":"ada","expires_at":null,"revoked_at":null,"used_at":null,"version":1,"before":null}');
INSERT INTO ulak.audit OVERRIDING SYSTEM VALUE VALUES (2, 1767600000000000, 'ada', 'created', 'credential/key/afrkb5e8', NULL, '{"name":"lost","tenant":"acme","roles":"viewer","scopes":"","created_at":1767600000000000,"created_by":"ada","expires_at":null,"revoked_at":null,"used_at":null,"version":1,"before":null}');
INSERT INTO ulak.audit OVERRIDING SYSTEM VALUE VALUES (3, 1767600000000000, 'ada', 'revoked', 'credential/key/afrkb5e8', 'lost on a train', '{"name":"lost","tenant":"acme","roles":"viewer","scopes":"","created_at":1767600000000000,"created_by":"ada","expires_at":null,"revoked_at":1767600000000000,"used_at":null,"version":2,"before":{"name":"lost","tenant":"acme","roles":"viewer","scopes":"","created_at":1767600000000000,"created_by":"ada","expires_at":null,"revoked_at":null,"used_at":null,"version":1}}');
INSERT INTO ulak.audit OVERRIDING SYSTEM VALUE VALUES (4, 1767600000000000, 'cli', 'created', 'credential/user/ada', NULL, '{"name":"ada","tenant":null,"roles":"admin","scopes":"","created_at":1767600000000000,"created_by":"cli","expires_at":null,"revoked_at":null,"used_at":null,"version":1,"before":null}');
INSERT INTO ulak.audit OVERRIDING SYSTEM VALUE VALUES (5, 1767600000000000, 'ada', 'limit', 'order/packed', 'a new van', '{"n":5,"before":3,"declared":3}');
INSERT INTO ulak.audit OVERRIDING SYSTEM VALUE VALUES (6, 1767600000000000, 'ada', 'rate', 'report/queued', NULL, '{"n":4,"per_us":1000000,"burst":2,"before":[2,1000000,2],"declared":[2,1000000,2]}');
INSERT INTO ulak.audit OVERRIDING SYSTEM VALUE VALUES (7, 1767600000000000, 'ada', 'weight', 'acme', NULL, '{"weight":3,"before":1}');
INSERT INTO ulak.audit OVERRIDING SYSTEM VALUE VALUES (8, 1767600000000000, 'ada', 'pause', 'queue/night', 'neighbours', '{"until_at":null,"before":null}');
INSERT INTO ulak.audit OVERRIDING SYSTEM VALUE VALUES (9, 1767600000000000, 'ada', 'pause', 'flow/nap', NULL, '{"until_at":1767603600000000,"before":null}');
INSERT INTO ulak.audit OVERRIDING SYSTEM VALUE VALUES (10, 1767600000000000, 'ada', 'pause', 'key/B', 'machine B is being cleaned', '{"until_at":null,"before":null}');
INSERT INTO ulak.audit OVERRIDING SYSTEM VALUE VALUES (11, 1767600000000000, 'ada', 'pause', 'schedule/nightly', 'holidays', '{"next_at": 1767657600000000}');
INSERT INTO ulak.buckets VALUES ('report/queued', 0, 1767772800000000, 1767772800250000);
INSERT INTO ulak.count_deltas VALUES ('order', 1, 'new', 'ready', 1);
INSERT INTO ulak.counts VALUES ('claim', 1, 'approved', 'waiting', 1);
INSERT INTO ulak.counts VALUES ('claim', 1, 'requested', 'held', 1);
INSERT INTO ulak.counts VALUES ('claim', 1, 'settled', 'done', 2);
INSERT INTO ulak.counts VALUES ('letter', 1, 'written', 'held', 1);
INSERT INTO ulak.counts VALUES ('letter', 2, 'written', 'held', 1);
INSERT INTO ulak.counts VALUES ('order', 1, 'cancelled', 'cancelled', 1);
INSERT INTO ulak.counts VALUES ('order', 1, 'failed', 'failed', 2);
INSERT INTO ulak.counts VALUES ('order', 1, 'expired', 'expired', 1);
INSERT INTO ulak.counts VALUES ('count', 1, 'counted', 'ready', 0);
INSERT INTO ulak.counts VALUES ('count', 1, 'done', 'done', 4);
INSERT INTO ulak.counts VALUES ('nap', 1, 'asleep', 'waiting', 1);
INSERT INTO ulak.counts VALUES ('quiet', 1, 'queued', 'ready', 1);
INSERT INTO ulak.counts VALUES ('booking', 1, 'asked', 'ready', 0);
INSERT INTO ulak.counts VALUES ('booking', 1, 'booked', 'ready', 0);
INSERT INTO ulak.counts VALUES ('booking', 1, 'undoing', 'undoing', 1);
INSERT INTO ulak.counts VALUES ('order', 1, 'held', 'held', 1);
INSERT INTO ulak.counts VALUES ('order', 1, 'new', 'ready', 1);
INSERT INTO ulak.counts VALUES ('order', 1, 'packed', 'ready', 0);
INSERT INTO ulak.counts VALUES ('order', 1, 'packing', 'busy', 3);
INSERT INTO ulak.counts VALUES ('order', 1, 'sent', 'done', 4);
INSERT INTO ulak.counts VALUES ('press', 1, 'queued', 'ready', 3);
INSERT INTO ulak.counts VALUES ('report', 1, 'done', 'done', 2);
INSERT INTO ulak.counts VALUES ('report', 1, 'queued', 'ready', 2);
INSERT INTO ulak.credentials VALUES ('key', 'ejnxcufh', 'fixture', NULL, 'operator', '', '30b507d4ddee889aa9f8e90edb7b29b2c3162944db8874e28395ccb5efeb19b3', 1767600000000000, 'ada', NULL, NULL, NULL, 1);
INSERT INTO ulak.credentials VALUES ('key', 'afrkb5e8', 'lost', 'acme', 'viewer', '', '97fb963d7a318d6f817750301318f8464e5751e2df090a10552e37a5ef40291b', 1767600000000000, 'ada', NULL, 1767600000000000, NULL, 2);
INSERT INTO ulak.credentials VALUES ('user', 'ada', 'ada', NULL, 'admin', '', '$argon2id$v=19$m=65536,t=3,p=4$EbBHUsMZtr8JwYT+8JBpVg$GSmCMc6jQxcXmwemNhti/gxyJeCvmj6I2I0byBEXEZQ', 1767600000000000, 'cli', NULL, NULL, NULL, 1);
INSERT INTO ulak.dedup VALUES ('acme', 'order', 'held', '019b9778-4400-7000-9d48-b2f3737a3efd', NULL);
INSERT INTO ulak.dedup VALUES ('acme', 'order', 'retried', '019b9778-4400-7000-b660-c6d8eb339f61', NULL);
INSERT INTO ulak.dedup VALUES ('', 'order', 'delayed', '019b9778-4400-7000-94dd-20cf49e81f1b', NULL);
INSERT INTO ulak.dedup VALUES ('acme', 'order', 'crashed', '019b9778-4400-7000-9099-6115353b3297', NULL);
INSERT INTO ulak.dedup VALUES ('acme', 'order', 'asked', '019b9778-4400-7000-b7b8-202c6694aef7', NULL);
INSERT INTO ulak.dedup VALUES ('', 'order', 'ready', '019b9778-4400-7000-9d5a-521aa47844a9', NULL);
INSERT INTO ulak.events_202601 VALUES (202601, '019b8d2b-8c00-7000-95bf-23341d4baeb6', 1, 'submitted', NULL, 'new', 'ada', NULL, NULL, NULL, 1, 0, NULL, 0, NULL, 1767600000000000, 0, '\x3fb1247b7caed3a81993000000000000');
INSERT INTO ulak.events_202601 VALUES (202601, '019b8d2b-8c00-7000-94c1-ba173fb1247b', 1, 'submitted', NULL, 'new', 'ulak', NULL, NULL, NULL, 1, 0, NULL, 0, NULL, 1767600000000000, 0, '\x3fb1247b7caed3a81993000000000001');
INSERT INTO ulak.events_202601 VALUES (202601, '019b8d2b-8c00-7000-bcae-d3a8b94f1993', 1, 'submitted', NULL, 'requested', 'ada', NULL, NULL, NULL, 1, 0, NULL, 0, NULL, 1767600000000000, 0, '\x3fb1247b7caed3a81993000000000002');
INSERT INTO ulak.events_202601 VALUES (202601, '019b8d2b-8c00-7000-bcae-d3a8b94f1993', 2, 'decided', 'requested', 'approved', 'bob', 'approve', 'seen', NULL, 1, 1, NULL, 0, NULL, 1767600000000000, 0, '\x3fb1247b7caed3a81993000000000003');
INSERT INTO ulak.events_202601 VALUES (202601, '019b8d2b-8c00-7000-bcae-d3a8b94f1993', 3, 'signalled', 'approved', 'settled', 'bank', 'paid', NULL, NULL, 1, 1, NULL, 0, NULL, 1767600000000000, 0, '\x3fb1247b7caed3a81993000000000004');
INSERT INTO ulak.events_202601 VALUES (202601, '019b8d2b-8c00-7000-b393-0c96af0e4f4f', 1, 'submitted', NULL, 'requested', 'ada', NULL, NULL, NULL, 1, 0, NULL, 0, NULL, 1767600000000000, 0, '\x3fb1247b7caed3a81993000000000005');
INSERT INTO ulak.events_202601 VALUES (202601, '019b8d2b-8c00-7000-b393-0c96af0e4f4f', 2, 'decided', 'requested', 'approved', 'bob', 'approve', 'seen', NULL, 1, 1, NULL, 0, NULL, 1767600000000000, 0, '\x3fb1247b7caed3a81993000000000006');
INSERT INTO ulak.events_202601 VALUES (202601, '019b8d2b-8c00-7000-b393-0c96af0e4f4f', 3, 'signalled', 'approved', 'settled', 'bank', 'paid', NULL, NULL, 1, 1, NULL, 0, NULL, 1767600000000000, 0, '\x3fb1247b7caed3a81993000000000007');
INSERT INTO ulak.events_202601 VALUES (202601, '019b8d2b-8c00-7000-85a4-68a23c2aede2', 1, 'submitted', NULL, 'requested', 'ada', NULL, NULL, NULL, 1, 0, NULL, 0, NULL, 1767600000000000, 0, '\x3fb1247b7caed3a81993000000000008');
INSERT INTO ulak.events_202601 VALUES (202601, '019b8d2b-8c00-7000-863f-d75ab1e612ce', 1, 'submitted', NULL, 'requested', 'ada', NULL, NULL, NULL, 1, 0, NULL, 0, NULL, 1767600000000000, 0, '\x3fb1247b7caed3a81993000000000009');
INSERT INTO ulak.events_202601 VALUES (202601, '019b8d2b-8c00-7000-863f-d75ab1e612ce', 2, 'decided', 'requested', 'approved', 'bob', 'approve', NULL, NULL, 1, 1, NULL, 0, NULL, 1767600000000000, 0, '\x3fb1247b7caed3a8199300000000000a');
INSERT INTO ulak.events_202601 VALUES (202601, '8de25e09-7344-4ae1-8ba5-8b31bbf40b5d', 1, 'submitted', NULL, 'written', 'ada', NULL, NULL, NULL, 1, 0, NULL, 0, NULL, 1767600000000000, 0, '\x3fb1247b7caed3a8199300000000000b');
INSERT INTO ulak.events_202601 VALUES (202601, '2b840919-7fa0-4b7f-8d3b-ad1a2770b2a1', 1, 'submitted', NULL, 'written', 'ada', NULL, NULL, NULL, 1, 0, NULL, 0, NULL, 1767600000000000, 0, '\x3fb1247b7caed3a8199300000000000c');
INSERT INTO ulak.events_202601 VALUES (202601, '019b8d2b-8c00-7000-94c1-ba173fb1247b', 2, 'entered', 'new', 'packing', 'fixture-17281-b1e612ce8673', NULL, NULL, NULL, 1, 1, 'fixture-17281-b1e612ce8673', 1, 1767600000000000, 1767600000000000, 0, '\x');
INSERT INTO ulak.events_202601 VALUES (202601, '019b8d2b-8c00-7000-95bf-23341d4baeb6', 2, 'entered', 'new', 'packing', 'fixture-17281-b1e612ce8673', NULL, NULL, NULL, 1, 1, 'fixture-17281-b1e612ce8673', 1, 1767600000000000, 1767600000000000, 0, '\x');
INSERT INTO ulak.events_202601 VALUES (202601, '019b8d2b-8c00-7000-94c1-ba173fb1247b', 3, 'noted', 'packing', 'packing', 'fixture-17281-b1e612ce8673', NULL, 'label', NULL, 1, 1, 'fixture-17281-b1e612ce8673', 1, 1767600000000000, 1767600000000000, 0, '\x45a468a23c2aede2d75a000000000000');
INSERT INTO ulak.events_202601 VALUES (202601, '019b8d2b-8c00-7000-95bf-23341d4baeb6', 3, 'noted', 'packing', 'packing', 'fixture-17281-b1e612ce8673', NULL, 'label', NULL, 1, 1, 'fixture-17281-b1e612ce8673', 1, 1767600000000000, 1767600000000000, 0, '\x45a468a23c2aede2d75a000000000001');
INSERT INTO ulak.events_202601 VALUES (202601, '019b8d2b-8c00-7000-94c1-ba173fb1247b', 4, 'moved', 'packing', 'packed', 'fixture-17281-b1e612ce8673', NULL, NULL, NULL, 1, 1, 'fixture-17281-b1e612ce8673', 1, 1767600000000000, 1767600000000000, 1, '\x45a468a23c2aede2d75a000000000002');
INSERT INTO ulak.events_202601 VALUES (202601, '019b8d2b-8c00-7000-94c1-ba173fb1247b', 5, 'moved', 'packed', 'sent', 'fixture-17281-b1e612ce8673', NULL, NULL, NULL, 1, 1, 'fixture-17281-b1e612ce8673', 1, 1767600000000000, 1767600000000000, 0, '\x45a468a23c2aede2d75a000000000004');
INSERT INTO ulak.events_202601 VALUES (202601, '019b8d2b-8c00-7000-95bf-23341d4baeb6', 4, 'moved', 'packing', 'packed', 'fixture-17281-b1e612ce8673', NULL, NULL, NULL, 1, 1, 'fixture-17281-b1e612ce8673', 1, 1767600000000000, 1767600000000000, 1, '\x45a468a23c2aede2d75a000000000003');
INSERT INTO ulak.events_202601 VALUES (202601, '019b8d2b-8c00-7000-95bf-23341d4baeb6', 5, 'moved', 'packed', 'sent', 'fixture-17281-b1e612ce8673', NULL, NULL, NULL, 1, 1, 'fixture-17281-b1e612ce8673', 1, 1767600000000000, 1767600000000000, 0, '\x45a468a23c2aede2d75a000000000005');
INSERT INTO ulak.events_202601 VALUES (202601, '019b8d2b-8c00-7000-b617-867386138993', 1, 'submitted', NULL, 'new', 'ada', NULL, NULL, NULL, 1, 0, NULL, 0, NULL, 1767600000000000, 0, '\xd9fa6a700a5546e8c651000000000000');
INSERT INTO ulak.events_202601 VALUES (202601, '019b8d2b-8c00-7000-8b2c-6ce343c638f8', 1, 'submitted', NULL, 'new', 'ulak', NULL, NULL, NULL, 1, 0, NULL, 0, NULL, 1767600000000000, 0, '\xd9fa6a700a5546e8c651000000000001');
INSERT INTO ulak.events_202601 VALUES (202601, '019b8d2b-8c00-7000-b624-63d134ca804e', 1, 'submitted', NULL, 'new', 'ulak', NULL, NULL, NULL, 1, 0, NULL, 0, NULL, 1767600000000000, 0, '\xd9fa6a700a5546e8c651000000000002');
INSERT INTO ulak.events_202601 VALUES (202601, '019b8d2b-8c00-7000-832a-c54378d4057d', 1, 'submitted', NULL, 'new', 'ulak', NULL, NULL, NULL, 1, 0, NULL, 0, NULL, 1767600000000000, 0, '\xd9fa6a700a5546e8c651000000000003');
INSERT INTO ulak.events_202601 VALUES (202601, '019b8d2b-8c00-7000-9a31-d8457459a85e', 1, 'submitted', NULL, 'new', 'ulak', NULL, NULL, NULL, 1, 0, NULL, 0, NULL, 1767600000000000, 0, '\xd9fa6a700a5546e8c651000000000004');
INSERT INTO ulak.events_202601 VALUES (202601, '019b8d2b-8c00-7000-9a31-d8457459a85e', 2, 'cancelled', 'new', 'cancelled', 'ada', 'cancelled', 'wrong address', NULL, 1, 1, NULL, 0, NULL, 1767600000000000, 0, '\xd9fa6a700a5546e8c651000000000005');
INSERT INTO ulak.events_202601 VALUES (202601, '019b8d2b-8c00-7000-8b2c-6ce343c638f8', 2, 'entered', 'new', 'packing', 'fixture-17281-13d87e6ce47f', NULL, NULL, NULL, 1, 1, 'fixture-17281-13d87e6ce47f', 1, 1767600000000000, 1767600000000000, 0, '\x');
INSERT INTO ulak.events_202601 VALUES (202601, '019b8d2b-8c00-7000-b617-867386138993', 2, 'entered', 'new', 'packing', 'fixture-17281-13d87e6ce47f', NULL, NULL, NULL, 1, 1, 'fixture-17281-13d87e6ce47f', 1, 1767600000000000, 1767600000000000, 0, '\x');
INSERT INTO ulak.events_202601 VALUES (202601, '019b8d2b-8c00-7000-b624-63d134ca804e', 2, 'entered', 'new', 'packing', 'fixture-17281-13d87e6ce47f', NULL, NULL, NULL, 1, 1, 'fixture-17281-13d87e6ce47f', 1, 1767600000000000, 1767600000000000, 0, '\x');
INSERT INTO ulak.events_202601 VALUES (202601, '019b8d2b-8c00-7000-8b2c-6ce343c638f8', 3, 'noted', 'packing', 'packing', 'fixture-17281-13d87e6ce47f', NULL, 'label', NULL, 1, 1, 'fixture-17281-13d87e6ce47f', 1, 1767600000000000, 1767600000000000, 0, '\x3b38d0f13d0f3b881392000000000000');
INSERT INTO ulak.events_202601 VALUES (202601, '019b8d2b-8c00-7000-b617-867386138993', 3, 'noted', 'packing', 'packing', 'fixture-17281-13d87e6ce47f', NULL, 'label', NULL, 1, 1, 'fixture-17281-13d87e6ce47f', 1, 1767600000000000, 1767600000000000, 0, '\x3b38d0f13d0f3b881392000000000001');
INSERT INTO ulak.events_202601 VALUES (202601, '019b8d2b-8c00-7000-b624-63d134ca804e', 3, 'noted', 'packing', 'packing', 'fixture-17281-13d87e6ce47f', NULL, 'label', NULL, 1, 1, 'fixture-17281-13d87e6ce47f', 1, 1767600000000000, 1767600000000000, 0, '\x3b38d0f13d0f3b881392000000000002');
INSERT INTO ulak.events_202601 VALUES (202601, '019b8d2b-8c00-7000-8b2c-6ce343c638f8', 4, 'failed', 'packing', 'failed', 'fixture-17281-13d87e6ce47f', 'permanent', 'LookupError: there is no such address', '{"type":"LookupError","traceback":"Traceback (most recent call last):\n  File \"/ulak/src/ulak/engine/stages.py\", line 114, in _run_in_thread\n    returned = function(Run(run.row, run, run.is_stopping))\n               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n  File \"/ulak/tests/upgrade/program.py\", line 96, in pack\n    by = run.resource(Outside).reach(run)\n         ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n  File \"/ulak/tests/upgrade/make.py\", line 62, in reach\n    raise LookupError(\"there is no such address\")\nLookupError: there is no such address\n"}', 1, 1, 'fixture-17281-13d87e6ce47f', 1, 1767600000000000, 1767600000000000, 0, '\x3b38d0f13d0f3b881392000000000003');
INSERT INTO ulak.events_202601 VALUES (202601, '019b8d2b-8c00-7000-b617-867386138993', 4, 'retry', 'packing', 'packing', 'fixture-17281-13d87e6ce47f', 'raised', 'ConnectionError: the carrier does not answer', '{"type":"ConnectionError","traceback":"Traceback (most recent call last):\n  File \"/ulak/src/ulak/engine/stages.py\", line 114, in _run_in_thread\n    returned = function(Run(run.row, run, run.is_stopping))\n               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n  File \"/ulak/tests/upgrade/program.py\", line 96, in pack\n    by = run.resource(Outside).reach(run)\n         ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n  File \"/ulak/tests/upgrade/make.py\", line 60, in reach\n    raise ConnectionError(\"the carrier does not answer\")\nConnectionError: the carrier does not answer\n"}', 1, 1, 'fixture-17281-13d87e6ce47f', 1, 1767600000000000, 1767600000000000, 0, '\x3b38d0f13d0f3b881392000000000004');
INSERT INTO ulak.events_202601 VALUES (202601, '019b8d2b-8c00-7000-b624-63d134ca804e', 4, 'moved', 'packing', 'packed', 'fixture-17281-13d87e6ce47f', NULL, NULL, NULL, 1, 1, 'fixture-17281-13d87e6ce47f', 1, 1767600000000000, 1767600000000000, 1, '\x3b38d0f13d0f3b881392000000000005');
INSERT INTO ulak.events_202601 VALUES (202601, '019b8d2b-8c00-7000-b624-63d134ca804e', 5, 'moved', 'packed', 'sent', 'fixture-17281-13d87e6ce47f', NULL, NULL, NULL, 1, 1, 'fixture-17281-13d87e6ce47f', 1, 1767600000000000, 1767600000000000, 0, '\x3b38d0f13d0f3b881392000000000006');
INSERT INTO ulak.events_202601 VALUES (202601, '019b8d2b-8c00-7000-832a-c54378d4057d', 2, 'expired', 'new', 'expired', 'ulak', 'expired', 'its time ran out in "new"', NULL, 1, 1, NULL, 0, NULL, 1767607200000000, 0, '\xd9fa6a700a5546e8c651000000000006');
INSERT INTO ulak.events_202601 VALUES (202601, '019b8e07-4600-7000-9f01-0413f199fd8b', 1, 'submitted', NULL, 'counted', 'schedule:half-daily', NULL, NULL, NULL, 1, 0, NULL, 0, NULL, 1767614400000000, 0, '\xd9fa6a700a5546e8c651000000000007');
INSERT INTO ulak.events_202601 VALUES (202601, '019b909a-7400-7000-bfbe-46bbf4cdd724', 1, 'submitted', NULL, 'counted', 'schedule:half-daily', NULL, NULL, NULL, 1, 0, NULL, 0, NULL, 1767657600000000, 0, '\xd9fa6a700a5546e8c651000000000008');
INSERT INTO ulak.events_202601 VALUES (202601, '019b932d-a200-7000-96d5-810abc985ffa', 1, 'submitted', NULL, 'counted', 'schedule:half-daily', NULL, NULL, NULL, 1, 0, NULL, 0, NULL, 1767700800000000, 0, '\xd9fa6a700a5546e8c651000000000009');
INSERT INTO ulak.events_202601 VALUES (202601, '019b8d2b-8c00-7000-b617-867386138993', 5, 'failed', 'packing', 'failed', 'fixture-17281-e7b6be1e0f5b', 'raised', 'ConnectionError: the carrier does not answer', '{"type":"ConnectionError","traceback":"Traceback (most recent call last):\n  File \"/ulak/src/ulak/engine/stages.py\", line 114, in _run_in_thread\n    returned = function(Run(run.row, run, run.is_stopping))\n               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n  File \"/ulak/tests/upgrade/program.py\", line 96, in pack\n    by = run.resource(Outside).reach(run)\n         ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n  File \"/ulak/tests/upgrade/make.py\", line 60, in reach\n    raise ConnectionError(\"the carrier does not answer\")\nConnectionError: the carrier does not answer\n"}', 1, 2, 'fixture-17281-e7b6be1e0f5b', 3, 1767603600000000, 1767603600000000, 0, '\xd404dd49f88684455361000000000000');
INSERT INTO ulak.events_202601 VALUES (202601, '019b8e07-4600-7000-9f01-0413f199fd8b', 2, 'moved', 'counted', 'done', 'fixture-17281-3e9b907dfdae', NULL, NULL, NULL, 1, 1, 'fixture-17281-3e9b907dfdae', 1, 1767657600000000, 1767657600000000, 0, '\x9e9b446a0989161f7890000000000000');
INSERT INTO ulak.events_202601 VALUES (202601, '019b909a-7400-7000-bfbe-46bbf4cdd724', 2, 'moved', 'counted', 'done', 'fixture-17281-3e9b907dfdae', NULL, NULL, NULL, 1, 1, 'fixture-17281-3e9b907dfdae', 1, 1767657600000000, 1767657600000000, 0, '\x9e9b446a0989161f7890000000000001');
INSERT INTO ulak.events_202601 VALUES (202601, '019b932d-a200-7000-96d5-810abc985ffa', 2, 'moved', 'counted', 'done', 'fixture-17281-78f001b92568', NULL, NULL, NULL, 1, 1, 'fixture-17281-78f001b92568', 1, 1767744000000000, 1767744000000000, 0, '\x0819e705e209ad277aca000000000000');
INSERT INTO ulak.events_202601 VALUES (202601, '019b95c0-d000-7000-a1be-d6ad1f118ba2', 2, 'moved', 'counted', 'done', 'fixture-17281-78f001b92568', NULL, NULL, NULL, 1, 1, 'fixture-17281-78f001b92568', 1, 1767744000000000, 1767744000000000, 0, '\x0819e705e209ad277aca000000000001');
INSERT INTO ulak.events_202601 VALUES (202601, '019b9778-4400-7000-9d48-b2f3737a3efd', 1, 'submitted', NULL, 'new', 'ada', NULL, NULL, NULL, 1, 0, NULL, 0, NULL, 1767772800000000, 0, '\xd9fa6a700a5546e8c65100000000000b');
INSERT INTO ulak.events_202601 VALUES (202601, '019b9778-4400-7000-b660-c6d8eb339f61', 1, 'submitted', NULL, 'new', 'ulak', NULL, NULL, NULL, 1, 0, NULL, 0, NULL, 1767772800000000, 0, '\xd9fa6a700a5546e8c65100000000000c');
INSERT INTO ulak.events_202601 VALUES (202601, '019b9778-4400-7000-8969-665f1d8db175', 1, 'submitted', NULL, 'new', 'ulak', NULL, NULL, NULL, 1, 0, NULL, 0, NULL, 1767772800000000, 0, '\xd9fa6a700a5546e8c65100000000000d');
INSERT INTO ulak.events_202601 VALUES (202601, '019b9778-4400-7000-94dd-20cf49e81f1b', 1, 'submitted', NULL, 'new', 'ulak', NULL, NULL, NULL, 1, 0, NULL, 0, NULL, 1767772800000000, 0, '\xd9fa6a700a5546e8c65100000000000e');
INSERT INTO ulak.events_202601 VALUES (202601, '019b9778-4400-7000-a818-a7211873bc8b', 1, 'submitted', NULL, 'asked', 'ulak', NULL, NULL, NULL, 1, 0, NULL, 0, NULL, 1767772800000000, 0, '\xd9fa6a700a5546e8c65100000000000f');
INSERT INTO ulak.events_202601 VALUES (202601, '019b9778-4400-7000-9cf8-0ac5c3fcdf86', 1, 'submitted', NULL, 'asleep', 'ulak', NULL, NULL, NULL, 1, 0, NULL, 0, NULL, 1767772800000000, 0, '\xd9fa6a700a5546e8c651000000000010');
INSERT INTO ulak.events_202601 VALUES (202601, '019b9778-4400-7000-9d2a-3f2ed875e70d', 1, 'submitted', NULL, 'queued', 'ulak', NULL, NULL, NULL, 1, 0, NULL, 0, NULL, 1767772800000000, 0, '\xd9fa6a700a5546e8c651000000000011');
INSERT INTO ulak.events_202601 VALUES (202601, '019b9778-4400-7000-b368-eaad7341b513', 1, 'submitted', NULL, 'queued', 'ulak', NULL, NULL, NULL, 1, 0, NULL, 0, NULL, 1767772800000000, 0, '\xd9fa6a700a5546e8c651000000000012');
INSERT INTO ulak.events_202601 VALUES (202601, '019b9778-4400-7000-a75a-5306d011021f', 1, 'submitted', NULL, 'queued', 'ulak', NULL, NULL, NULL, 1, 0, NULL, 0, NULL, 1767772800000000, 0, '\xd9fa6a700a5546e8c651000000000013');
INSERT INTO ulak.events_202601 VALUES (202601, '019b9778-4400-7000-ac31-3b81a951e249', 1, 'submitted', NULL, 'queued', 'ulak', NULL, NULL, NULL, 1, 0, NULL, 0, NULL, 1767772800000000, 0, '\xd9fa6a700a5546e8c651000000000014');
INSERT INTO ulak.events_202601 VALUES (202601, '019b9778-4400-7000-8054-66edb48a16c5', 1, 'submitted', NULL, 'queued', 'ulak', NULL, NULL, NULL, 1, 0, NULL, 0, NULL, 1767772800000000, 0, '\xd9fa6a700a5546e8c651000000000015');
INSERT INTO ulak.events_202601 VALUES (202601, '019b9778-4400-7000-9eea-7a3602cab01f', 1, 'submitted', NULL, 'queued', 'ulak', NULL, NULL, NULL, 1, 0, NULL, 0, NULL, 1767772800000000, 0, '\xd9fa6a700a5546e8c651000000000016');
INSERT INTO ulak.events_202601 VALUES (202601, '019b9778-4400-7000-9d48-b2f3737a3efd', 2, 'entered', 'new', 'packing', 'fixture-17281-6e5b10614f66', NULL, NULL, NULL, 1, 1, 'fixture-17281-6e5b10614f66', 1, 1767772800000000, 1767772800000000, 0, '\x');
INSERT INTO ulak.events_202601 VALUES (202601, '019b9778-4400-7000-b660-c6d8eb339f61', 2, 'entered', 'new', 'packing', 'fixture-17281-6e5b10614f66', NULL, NULL, NULL, 1, 1, 'fixture-17281-6e5b10614f66', 1, 1767772800000000, 1767772800000000, 0, '\x');
INSERT INTO ulak.events_202601 VALUES (202601, '019b9778-4400-7000-8969-665f1d8db175', 2, 'entered', 'new', 'packing', 'fixture-17281-6e5b10614f66', NULL, NULL, NULL, 1, 1, 'fixture-17281-6e5b10614f66', 1, 1767772800000000, 1767772800000000, 0, '\x');
INSERT INTO ulak.events_202601 VALUES (202601, '019b95c0-d000-7000-a1be-d6ad1f118ba2', 1, 'submitted', NULL, 'counted', 'schedule:half-daily', NULL, NULL, NULL, 1, 0, NULL, 0, NULL, 1767744000000000, 0, '\xd9fa6a700a5546e8c65100000000000a');
INSERT INTO ulak.events_202601 VALUES (202601, '019b9778-4400-7000-8969-665f1d8db175', 3, 'noted', 'packing', 'packing', 'fixture-17281-6e5b10614f66', NULL, 'label', NULL, 1, 1, 'fixture-17281-6e5b10614f66', 1, 1767772800000000, 1767772800000000, 0, '\x14e1d4a0f0290d2b8ccf000000000000');
INSERT INTO ulak.events_202601 VALUES (202601, '019b9778-4400-7000-8054-66edb48a16c5', 2, 'moved', 'queued', 'done', 'fixture-17281-6e5b10614f66', NULL, NULL, NULL, 1, 1, 'fixture-17281-6e5b10614f66', 1, 1767772800000000, 1767772800000000, 0, '\x14e1d4a0f0290d2b8ccf000000000003');
INSERT INTO ulak.events_202601 VALUES (202601, '019b9778-4400-7000-9d48-b2f3737a3efd', 3, 'noted', 'packing', 'packing', 'fixture-17281-6e5b10614f66', NULL, 'label', NULL, 1, 1, 'fixture-17281-6e5b10614f66', 1, 1767772800000000, 1767772800000000, 0, '\x14e1d4a0f0290d2b8ccf000000000001');
INSERT INTO ulak.events_202601 VALUES (202601, '019b9778-4400-7000-a75a-5306d011021f', 2, 'moved', 'queued', 'done', 'fixture-17281-6e5b10614f66', NULL, NULL, NULL, 1, 1, 'fixture-17281-6e5b10614f66', 1, 1767772800000000, 1767772800000000, 0, '\x14e1d4a0f0290d2b8ccf000000000002');
INSERT INTO ulak.events_202601 VALUES (202601, '019b9778-4400-7000-a818-a7211873bc8b', 2, 'moved', 'asked', 'booked', 'fixture-17281-6e5b10614f66', NULL, NULL, NULL, 1, 1, 'fixture-17281-6e5b10614f66', 1, 1767772800000000, 1767772800000000, 0, '\x14e1d4a0f0290d2b8ccf000000000004');
INSERT INTO ulak.events_202601 VALUES (202601, '019b9778-4400-7000-b660-c6d8eb339f61', 3, 'noted', 'packing', 'packing', 'fixture-17281-6e5b10614f66', NULL, 'label', NULL, 1, 1, 'fixture-17281-6e5b10614f66', 1, 1767772800000000, 1767772800000000, 0, '\x14e1d4a0f0290d2b8ccf000000000005');
INSERT INTO ulak.events_202601 VALUES (202601, '019b9778-4400-7000-8969-665f1d8db175', 4, 'moved', 'packing', 'packed', 'fixture-17281-6e5b10614f66', NULL, NULL, NULL, 1, 1, 'fixture-17281-6e5b10614f66', 1, 1767772800000000, 1767772800000000, 1, '\x14e1d4a0f0290d2b8ccf000000000006');
INSERT INTO ulak.events_202601 VALUES (202601, '019b9778-4400-7000-9d48-b2f3737a3efd', 4, 'held', 'packing', 'held', 'fixture-17281-6e5b10614f66', 'customs', 'papers are missing', NULL, 1, 1, 'fixture-17281-6e5b10614f66', 1, 1767772800000000, 1767772800000000, 0, '\x14e1d4a0f0290d2b8ccf000000000007');
INSERT INTO ulak.events_202601 VALUES (202601, '019b9778-4400-7000-a818-a7211873bc8b', 3, 'failed', 'booked', 'undoing', 'fixture-17281-6e5b10614f66', 'raised', 'ConnectionError: there is no train today', '{"type":"ConnectionError","traceback":"Traceback (most recent call last):\n  File \"/ulak/src/ulak/engine/stages.py\", line 114, in _run_in_thread\n    returned = function(Run(run.row, run, run.is_stopping))\n               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n  File \"/ulak/tests/upgrade/program.py\", line 129, in travel\n    raise ConnectionError(\"there is no train today\")\nConnectionError: there is no train today\n"}', 1, 1, 'fixture-17281-6e5b10614f66', 1, 1767772800000000, 1767772800000000, 0, '\x14e1d4a0f0290d2b8ccf000000000008');
INSERT INTO ulak.events_202601 VALUES (202601, '019b9778-4400-7000-b660-c6d8eb339f61', 4, 'retry', 'packing', 'packing', 'fixture-17281-6e5b10614f66', 'raised', 'ConnectionError: the carrier does not answer', '{"type":"ConnectionError","traceback":"Traceback (most recent call last):\n  File \"/ulak/src/ulak/engine/stages.py\", line 114, in _run_in_thread\n    returned = function(Run(run.row, run, run.is_stopping))\n               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n  File \"/ulak/tests/upgrade/program.py\", line 96, in pack\n    by = run.resource(Outside).reach(run)\n         ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n  File \"/ulak/tests/upgrade/make.py\", line 60, in reach\n    raise ConnectionError(\"the carrier does not answer\")\nConnectionError: the carrier does not answer\n"}', 1, 1, 'fixture-17281-6e5b10614f66', 1, 1767772800000000, 1767772800000000, 0, '\x14e1d4a0f0290d2b8ccf000000000009');
INSERT INTO ulak.events_202601 VALUES (202601, '019b9778-4400-7000-8969-665f1d8db175', 5, 'moved', 'packed', 'sent', 'fixture-17281-6e5b10614f66', NULL, NULL, NULL, 1, 1, 'fixture-17281-6e5b10614f66', 1, 1767772800000000, 1767772800000000, 0, '\x14e1d4a0f0290d2b8ccf00000000000a');
INSERT INTO ulak.events_202601 VALUES (202601, '019b9778-4400-7000-a818-a7211873bc8b', 4, 'retry', 'undoing', 'undoing', 'fixture-17281-6e5b10614f66', 'raised', 'undo of asked: ConnectionError: the railway does not answer', '{"type":"ConnectionError","traceback":"Traceback (most recent call last):\n  File \"/ulak/src/ulak/engine/stages.py\", line 114, in _run_in_thread\n    returned = function(Run(run.row, run, run.is_stopping))\n               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n  File \"/ulak/tests/upgrade/program.py\", line 125, in give_back\n    run.resource(Outside).undo(run)\n  File \"/ulak/tests/upgrade/make.py\", line 68, in undo\n    raise ConnectionError(\"the railway does not answer\")\nConnectionError: the railway does not answer\n"}', 1, 1, 'fixture-17281-6e5b10614f66', 3, 1767772800000000, 1767772800000000, 0, '\x14e1d4a0f0290d2b8ccf00000000000b');
INSERT INTO ulak.events_202601 VALUES (202601, '019b9778-4400-7000-9099-6115353b3297', 1, 'submitted', NULL, 'new', 'ulak', NULL, NULL, NULL, 1, 0, NULL, 0, NULL, 1767772800000000, 0, '\x6694aef700460eafb3ad000000000000');
INSERT INTO ulak.events_202601 VALUES (202601, '019b9778-4400-7000-b7b8-202c6694aef7', 1, 'submitted', NULL, 'new', 'ulak', NULL, NULL, NULL, 1, 0, NULL, 0, NULL, 1767772800000000, 0, '\x6694aef700460eafb3ad000000000001');
INSERT INTO ulak.events_202601 VALUES (202601, '019b9778-4400-7000-8046-0eafa0f6b3ad', 1, 'submitted', NULL, 'queued', 'ulak', NULL, NULL, NULL, 1, 0, NULL, 0, NULL, 1767772800000000, 0, '\x6694aef700460eafb3ad000000000002');
INSERT INTO ulak.events_202601 VALUES (202601, '019b9778-4400-7000-90de-4e29cfddf966', 1, 'submitted', NULL, 'queued', 'ulak', NULL, NULL, NULL, 1, 0, NULL, 0, NULL, 1767772800000000, 0, '\x6694aef700460eafb3ad000000000003');
INSERT INTO ulak.events_202601 VALUES (202601, '019b9778-4400-7000-9099-6115353b3297', 2, 'entered', 'new', 'packing', 'fixture-18452-62e8d6cc8d7d', NULL, NULL, NULL, 1, 1, 'fixture-18452-62e8d6cc8d7d', 1, 1767772800000000, 1767772800000000, 0, '\x');
INSERT INTO ulak.events_202601 VALUES (202601, '019b9778-4400-7000-b7b8-202c6694aef7', 2, 'entered', 'new', 'packing', 'fixture-18452-62e8d6cc8d7d', NULL, NULL, NULL, 1, 1, 'fixture-18452-62e8d6cc8d7d', 1, 1767772800000000, 1767772800000000, 0, '\x');
INSERT INTO ulak.events_202601 VALUES (202601, '019b9778-4400-7000-9099-6115353b3297', 3, 'noted', 'packing', 'packing', 'fixture-18452-62e8d6cc8d7d', NULL, 'label', NULL, 1, 1, 'fixture-18452-62e8d6cc8d7d', 1, 1767772800000000, 1767772800000000, 0, '\xb092719a0f951fd7dd5e000000000000');
INSERT INTO ulak.events_202601 VALUES (202601, '019b9778-4400-7000-b7b8-202c6694aef7', 3, 'noted', 'packing', 'packing', 'fixture-18452-62e8d6cc8d7d', NULL, 'label', NULL, 1, 1, 'fixture-18452-62e8d6cc8d7d', 1, 1767772800000000, 1767772800000000, 0, '\xb092719a0f951fd7dd5e000000000001');
INSERT INTO ulak.events_202601 VALUES (202601, '019b9778-4400-7000-9d5a-521aa47844a9', 1, 'submitted', NULL, 'new', 'ada', NULL, NULL, NULL, 1, 0, NULL, 0, NULL, 1767772800000000, 0, '\x9470162ad8b74477a370000000000000');
INSERT INTO ulak.hos_contract_schema VALUES (2);
INSERT INTO ulak.hos_contract_subjects VALUES ('acme', 'order', 'sent', 'paid', 1, 1, 1767772800000000, 1767772800000000);
INSERT INTO ulak.hos_contract_subjects VALUES ('acme', 'order', 'rejected', 'paid', 1, 2, 1767772800000000, 1767772800000000);
INSERT INTO ulak.hos_contract_subjects VALUES ('acme', 'order', 'dead', 'paid', 1, 3, 1767772800000000, 1767772800000000);
INSERT INTO ulak.hos_contract_subjects VALUES ('acme', 'order', 'leased', 'paid', 1, 4, 1767772800000000, 1767772800000000);
INSERT INTO ulak.hos_contract_subjects VALUES ('acme', 'order', 'due', 'paid', 1, 5, 1767772800000000, 1767772800000000);
INSERT INTO ulak.hos_idempotency_keys OVERRIDING SYSTEM VALUE VALUES (1, 'acme', 'fixture.charge', 'charged', 'completed', 'cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc', 'ada', 'c0ca7192451f6b46ffbbb5d8f4820c2d', NULL, 1, NULL, NULL, 201, '[["content-type", "application/json"]]', '{"receipt": 1}', NULL, NULL, 1767600000000000, 1767600000000000, 4921200000000000);
INSERT INTO ulak.hos_idempotency_keys OVERRIDING SYSTEM VALUE VALUES (2, 'acme', 'contract.transition', 'pay sent', 'completed', '7199ad1e5c2d31ea86049f7880a6f6633bcab01826fbd6286cefb0ec64bf9f71', 'ada', '4ed5a6819d8c001541500a60291f6950', NULL, 1, NULL, NULL, 200, '[["Content-Type", "application/json"]]', '{"ok":true,"from":"pending","to":"paid","contract_version":"2025-12-28","proof_id":1,"version":1,"changed":true}', NULL, NULL, 1767772800000000, 1767772800000000, 1768377600000000);
INSERT INTO ulak.hos_idempotency_keys OVERRIDING SYSTEM VALUE VALUES (3, 'acme', 'contract.transition', 'pay rejected', 'completed', '9e5ea7e6a7483337b974eae52c9a547dc1c70130fa8a575c603877cc998a6d3b', 'ada', 'cc10c499fdf0a96063ba16e300b54303', NULL, 1, NULL, NULL, 200, '[["Content-Type", "application/json"]]', '{"ok":true,"from":"pending","to":"paid","contract_version":"2025-12-28","proof_id":2,"version":1,"changed":true}', NULL, NULL, 1767772800000000, 1767772800000000, 1768377600000000);
INSERT INTO ulak.hos_idempotency_keys OVERRIDING SYSTEM VALUE VALUES (4, 'acme', 'contract.transition', 'pay dead', 'completed', '825abce20be9dfc1e9c47f17de06af074308ca165baa5660c6a2c800d3e130b4', 'ada', 'cebd99146855c14d1f5e1a8cd0765cf5', NULL, 1, NULL, NULL, 200, '[["Content-Type", "application/json"]]', '{"ok":true,"from":"pending","to":"paid","contract_version":"2025-12-28","proof_id":3,"version":1,"changed":true}', NULL, NULL, 1767772800000000, 1767772800000000, 1768377600000000);
INSERT INTO ulak.hos_idempotency_keys OVERRIDING SYSTEM VALUE VALUES (5, 'acme', 'contract.transition', 'pay leased', 'completed', '1244dcd40a28bf90faa51dd81fca532927fcf328360bcb579b9056f60bead7be', 'ada', '8fa3c9c48157c26d2b74ff1911a885c4', NULL, 1, NULL, NULL, 200, '[["Content-Type", "application/json"]]', '{"ok":true,"from":"pending","to":"paid","contract_version":"2025-12-28","proof_id":4,"version":1,"changed":true}', NULL, NULL, 1767772800000000, 1767772800000000, 1768377600000000);
INSERT INTO ulak.hos_idempotency_keys OVERRIDING SYSTEM VALUE VALUES (6, 'acme', 'contract.transition', 'pay due', 'completed', '4d29c4ad9903b31b293c296663e6f73d7d2fc9020f26b261df558717f54592b3', 'ada', '0641ddbae708f131f8052e0a6f7ce727', NULL, 1, NULL, NULL, 200, '[["Content-Type", "application/json"]]', '{"ok":true,"from":"pending","to":"paid","contract_version":"2025-12-28","proof_id":5,"version":1,"changed":true}', NULL, NULL, 1767772800000000, 1767772800000000, 1768377600000000);
INSERT INTO ulak.hos_idempotency_keys OVERRIDING SYSTEM VALUE VALUES (7, 'acme', 'fixture.charge', 'charging', 'processing', 'dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd', 'ada', 'd55cfff2f0c97f7597e125d848f03ec8', 1767772860000000, 1, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 1767772800000000, 1767772800000000, 4921372800000000);
INSERT INTO ulak.hos_outbox_events OVERRIDING SYSTEM VALUE VALUES (5, 'acme', 'status_change', 'order:due', '{"idempotency_key":"pazar:proof:status_change:5","tenant_id":"acme","subject_ref":{"type":"order","id":"due"},"from":"pending","to":"paid","source":"ada","meta":{"local_proof_id":5,"local_contract_version":"2025-12-28"}}', 'pazar:proof:status_change:5', 'pending', 0, NULL, 1767772800000000, NULL, NULL, 1768032000000000, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '[]', 1767772800000000, 1767772800000000);
INSERT INTO ulak.hos_outbox_events OVERRIDING SYSTEM VALUE VALUES (3, 'acme', 'status_change', 'order:dead', '{"idempotency_key":"pazar:proof:status_change:3","tenant_id":"acme","subject_ref":{"type":"order","id":"dead"},"from":"pending","to":"paid","source":"ada","meta":{"local_proof_id":3,"local_contract_version":"2025-12-28"}}', 'pazar:proof:status_change:3', 'dead', 1, 'HTTP 400: no_such_field', 1767772800000000, NULL, NULL, 1768032000000000, NULL, 400, '{"code":"no_such_field"}', NULL, 1767772800000000, 18304, 1767772800000000, NULL, '[]', 1767772800000000, 1767772800000000);
INSERT INTO ulak.hos_outbox_events OVERRIDING SYSTEM VALUE VALUES (2, 'acme', 'status_change', 'order:rejected', '{"idempotency_key":"pazar:proof:status_change:2","tenant_id":"acme","subject_ref":{"type":"order","id":"rejected"},"from":"pending","to":"paid","source":"ada","meta":{"local_proof_id":2,"local_contract_version":"2025-12-28"}}', 'pazar:proof:status_change:2', 'rejected', 1, 'HTTP 422: terminal_state', 1767772800000000, NULL, NULL, 1768032000000000, NULL, 422, '{"ok":false,"reason":"terminal_state"}', 'HTTP 422: terminal_state', 1767772800000000, 608, NULL, NULL, '[]', 1767772800000000, 1767772800000000);
INSERT INTO ulak.hos_outbox_events OVERRIDING SYSTEM VALUE VALUES (1, 'acme', 'status_change', 'order:sent', '{"idempotency_key":"pazar:proof:status_change:1","tenant_id":"acme","subject_ref":{"type":"order","id":"sent"},"from":"pending","to":"paid","source":"ada","meta":{"local_proof_id":1,"local_contract_version":"2025-12-28"}}', 'pazar:proof:status_change:1', 'sent', 1, NULL, 1767772800000000, NULL, NULL, 1768032000000000, 1767772800000000, 200, '{"ok":true,"from":"pending","to":"paid"}', NULL, 1767772800000000, 851, NULL, NULL, '[]', 1767772800000000, 1767772800000000);
INSERT INTO ulak.hos_outbox_events OVERRIDING SYSTEM VALUE VALUES (4, 'acme', 'status_change', 'order:leased', '{"idempotency_key":"pazar:proof:status_change:4","tenant_id":"acme","subject_ref":{"type":"order","id":"leased"},"from":"pending","to":"paid","source":"ada","meta":{"local_proof_id":4,"local_contract_version":"2025-12-28"}}', 'pazar:proof:status_change:4', 'processing', 1, NULL, 1767776400000000, 1767776400000000, '47cfeefbb38648daacd5287b62ce59bc', 1768032000000000, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '[]', 1767772800000000, 1767772800000000);
INSERT INTO ulak.hos_proof_heads VALUES ('acme', 6, '6d5a9b4604ff975ca0de0c221ea9582f05513cb762d47aae4ec88360e98b4cdd');
INSERT INTO ulak.hos_proofs VALUES (1, 1767772800000000, 'acme', NULL, 'ada', 'status_change', 'order', 'sent', 'pending', 'paid', '{"version":1}', NULL, 'pay sent', '7199ad1e5c2d31ea86049f7880a6f6633bcab01826fbd6286cefb0ec64bf9f71', '2025-12-28', '0000000000000000000000000000000000000000000000000000000000000000', 'd0e2467edb99824d627577e2184bb634c4f9d814e8b31f31e3a46525486f5912');
INSERT INTO ulak.hos_proofs VALUES (2, 1767772800000000, 'acme', NULL, 'ada', 'status_change', 'order', 'rejected', 'pending', 'paid', '{"version":1}', NULL, 'pay rejected', '9e5ea7e6a7483337b974eae52c9a547dc1c70130fa8a575c603877cc998a6d3b', '2025-12-28', 'd0e2467edb99824d627577e2184bb634c4f9d814e8b31f31e3a46525486f5912', 'c2eea5dad3aca777d24e49abc958cdb9729feb1efd2591d1402876aca6da7b27');
INSERT INTO ulak.hos_proofs VALUES (3, 1767772800000000, 'acme', NULL, 'ada', 'status_change', 'order', 'dead', 'pending', 'paid', '{"version":1}', NULL, 'pay dead', '825abce20be9dfc1e9c47f17de06af074308ca165baa5660c6a2c800d3e130b4', '2025-12-28', 'c2eea5dad3aca777d24e49abc958cdb9729feb1efd2591d1402876aca6da7b27', 'cfd8567875d65efdde31e5e4083f0de94d41bd1b56243e9d70d13c23872c2578');
INSERT INTO ulak.hos_proofs VALUES (4, 1767772800000000, 'acme', NULL, 'ada', 'status_change', 'order', 'leased', 'pending', 'paid', '{"version":1}', NULL, 'pay leased', '1244dcd40a28bf90faa51dd81fca532927fcf328360bcb579b9056f60bead7be', '2025-12-28', 'cfd8567875d65efdde31e5e4083f0de94d41bd1b56243e9d70d13c23872c2578', 'c364dfa459111b31855e6be61714f2d661387fa6d5dddb412af859cbb39dfb1f');
INSERT INTO ulak.hos_proofs VALUES (5, 1767772800000000, 'acme', NULL, 'ada', 'status_change', 'order', 'due', 'pending', 'paid', '{"version":1}', NULL, 'pay due', '4d29c4ad9903b31b293c296663e6f73d7d2fc9020f26b261df558717f54592b3', '2025-12-28', 'c364dfa459111b31855e6be61714f2d661387fa6d5dddb412af859cbb39dfb1f', 'a47958401e2b2a8a84b395e8af81383f004678d0efa4511aac7af142a7686c83');
INSERT INTO ulak.hos_proofs VALUES (6, 1767772800000000, 'acme', NULL, 'ada', 'note', NULL, NULL, NULL, NULL, '{"text": "seen"}', NULL, 'note-1', 'b7220f966e06f18f23c6c55bcbd93ffa96cad5c8a47947310f158b41f0d33aa0', NULL, 'a47958401e2b2a8a84b395e8af81383f004678d0efa4511aac7af142a7686c83', '6d5a9b4604ff975ca0de0c221ea9582f05513cb762d47aae4ec88360e98b4cdd');
INSERT INTO ulak.jobs VALUES ('019b8d2b-8c00-7000-bcae-d3a8b94f1993', 'acme', 'claim', 1, 1767600000000000, 'ada', NULL, 1, NULL, NULL, NULL, 'settled', 'done', 3, 3, 1, 0, 0, 1767600000000000, NULL, 0, NULL, '', NULL, 1, '', 1767600000000000, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, 202601);
INSERT INTO ulak.jobs VALUES ('019b8d2b-8c00-7000-b393-0c96af0e4f4f', 'globex', 'claim', 1, 1767600000000000, 'ada', NULL, 1, NULL, NULL, NULL, 'settled', 'done', 3, 3, 1, 0, 0, 1767600000000000, NULL, 0, NULL, '', NULL, 1, '', 1767600000000000, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, 202601);
INSERT INTO ulak.jobs VALUES ('019b8d2b-8c00-7000-85a4-68a23c2aede2', 'acme', 'claim', 1, 1767600000000000, 'ada', NULL, 1, NULL, NULL, NULL, 'requested', 'held', 1, 1, 1, 0, 0, 1767600000000000, NULL, 0, NULL, '', NULL, 0, '', 1767600000000000, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, 202601);
INSERT INTO ulak.jobs VALUES ('019b8d2b-8c00-7000-863f-d75ab1e612ce', 'acme', 'claim', 1, 1767600000000000, 'ada', NULL, 1, NULL, NULL, NULL, 'approved', 'waiting', 2, 2, 1, 0, 0, 1767600000000000, NULL, 0, NULL, '', NULL, 1, '', 1767600000000000, NULL, NULL, 0, NULL, 'paid', NULL, NULL, NULL, NULL, 0, 0, 0, 0, 202601);
INSERT INTO ulak.jobs VALUES ('8de25e09-7344-4ae1-8ba5-8b31bbf40b5d', '', 'letter', 1, 1767600000000000, 'ada', NULL, 1, NULL, NULL, NULL, 'written', 'held', 1, 1, 1, 0, 0, 1767600000000000, NULL, 0, NULL, '', NULL, 0, '', 1767600000000000, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, 202601);
INSERT INTO ulak.jobs VALUES ('2b840919-7fa0-4b7f-8d3b-ad1a2770b2a1', '', 'letter', 2, 1767600000000000, 'ada', NULL, 1, NULL, NULL, NULL, 'written', 'held', 1, 1, 1, 0, 0, 1767600000000000, NULL, 0, NULL, '', NULL, 0, '', 1767600000000000, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, 202601);
INSERT INTO ulak.jobs VALUES ('019b8d2b-8c00-7000-94c1-ba173fb1247b', 'globex', 'order', 1, 1767600000000000, '', 'done too', 1, NULL, NULL, NULL, 'sent', 'done', 5, 5, 1, 0, 0, 1767600000000000, NULL, 0, NULL, '', NULL, 1, '', 1767600000000000, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, 1767600000000000, 2, 0, 0, 0, 202601);
INSERT INTO ulak.jobs VALUES ('019b8d2b-8c00-7000-95bf-23341d4baeb6', 'acme', 'order', 1, 1767600000000000, 'ada', 'done', 1, NULL, NULL, NULL, 'sent', 'done', 5, 5, 1, 0, 0, 1767600000000000, NULL, 0, NULL, '', NULL, 1, '', 1767600000000000, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, 1767600000000000, 2, 0, 0, 0, 202601);
INSERT INTO ulak.jobs VALUES ('019b8d2b-8c00-7000-9a31-d8457459a85e', '', 'order', 1, 1767600000000000, '', 'cancelled', 1, NULL, NULL, NULL, 'cancelled', 'cancelled', 2, 2, 1, 0, 0, 1767600000000000, 'cancelled', 0, 'new', '', NULL, 0, '', 1767600000000000, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, 202601);
INSERT INTO ulak.jobs VALUES ('019b8d2b-8c00-7000-8b2c-6ce343c638f8', 'acme', 'order', 1, 1767600000000000, '', 'permanent', 1, NULL, NULL, NULL, 'failed', 'failed', 4, 4, 1, 0, 0, 1767600000000000, 'permanent', 1, 'packing', '', NULL, 1, '', 1767600000000000, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, 1767600000000000, 2, 0, 0, 0, 202601);
INSERT INTO ulak.jobs VALUES ('019b8d2b-8c00-7000-b624-63d134ca804e', '', 'order', 1, 1767600000000000, '', 'dead message', 1, NULL, NULL, NULL, 'sent', 'done', 5, 5, 1, 0, 0, 1767600000000000, NULL, 0, NULL, '', NULL, 1, '', 1767600000000000, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, 1767600000000000, 2, 0, 0, 0, 202601);
INSERT INTO ulak.jobs VALUES ('019b8d2b-8c00-7000-b617-867386138993', 'acme', 'order', 1, 1767600000000000, 'ada', 'failed', 1, NULL, NULL, NULL, 'failed', 'failed', 5, 5, 1, 0, 0, 1767603600000000, 'raised', 0, 'packing', '', NULL, 1, '', 1767603600000000, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, 1767603600000000, 4, 0, 0, 0, 202601);
INSERT INTO ulak.jobs VALUES ('019b8d2b-8c00-7000-832a-c54378d4057d', '', 'order', 1, 1767600000000000, '', 'expired', 1, 1767607200000000, NULL, NULL, 'expired', 'expired', 2, 2, 1, 0, 0, 1767607200000000, 'expired', 0, 'new', '', NULL, 0, '', 1767607200000000, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, 202601);
INSERT INTO ulak.jobs VALUES ('019b8e07-4600-7000-9f01-0413f199fd8b', '', 'count', 1, 1767614400000000, 'schedule:half-daily', NULL, 1, NULL, 1767614400000000, NULL, 'done', 'done', 2, 2, 1, 0, 0, 1767657600000000, NULL, 0, NULL, '', NULL, 1, '', 1767657600000000, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, 1767657600000000, 2, 0, 0, 0, 202601);
INSERT INTO ulak.jobs VALUES ('019b909a-7400-7000-bfbe-46bbf4cdd724', '', 'count', 1, 1767657600000000, 'schedule:half-daily', NULL, 1, NULL, 1767657600000000, NULL, 'done', 'done', 2, 2, 1, 0, 0, 1767657600000000, NULL, 0, NULL, '', NULL, 1, '', 1767657600000000, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, 1767657600000000, 2, 0, 0, 0, 202601);
INSERT INTO ulak.jobs VALUES ('019b932d-a200-7000-96d5-810abc985ffa', '', 'count', 1, 1767700800000000, 'schedule:half-daily', NULL, 1, NULL, 1767700800000000, NULL, 'done', 'done', 2, 2, 1, 0, 0, 1767744000000000, NULL, 0, NULL, '', NULL, 1, '', 1767744000000000, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, 1767744000000000, 2, 0, 0, 0, 202601);
INSERT INTO ulak.jobs VALUES ('019b95c0-d000-7000-a1be-d6ad1f118ba2', '', 'count', 1, 1767744000000000, 'schedule:half-daily', NULL, 1, NULL, 1767744000000000, NULL, 'done', 'done', 2, 2, 1, 0, 0, 1767744000000000, NULL, 0, NULL, '', NULL, 1, '', 1767744000000000, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, 1767744000000000, 2, 0, 0, 0, 202601);
INSERT INTO ulak.jobs VALUES ('019b9778-4400-7000-94dd-20cf49e81f1b', '', 'order', 1, 1767772800000000, '', 'delayed', 1, NULL, NULL, NULL, 'new', 'ready', 1, 1, 1, 0, 0, 1767772800000000, NULL, 0, NULL, '', NULL, 0, 'order/thread/order@1', 1767859200000000, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, 202601);
INSERT INTO ulak.jobs VALUES ('019b9778-4400-7000-9cf8-0ac5c3fcdf86', '', 'nap', 1, 1767772800000000, '', NULL, 1, NULL, NULL, NULL, 'asleep', 'waiting', 1, 1, 1, 0, 0, 1767772800000000, NULL, 0, NULL, '', NULL, 0, '', 1767772800000000, NULL, NULL, 0, NULL, NULL, 1767945600000000, 1767945600000000, NULL, NULL, 0, 0, 0, 0, 202601);
INSERT INTO ulak.jobs VALUES ('019b9778-4400-7000-b368-eaad7341b513', '', 'quiet', 1, 1767772800000000, '', NULL, 1, NULL, NULL, NULL, 'queued', 'ready', 1, 1, 1, 0, 0, 1767772800000000, NULL, 0, NULL, '', NULL, 0, 'night/loop/quiet@1', 1767772800000000, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, 202601);
INSERT INTO ulak.jobs VALUES ('019b9778-4400-7000-9eea-7a3602cab01f', 'globex', 'report', 1, 1767772800000000, '', NULL, 1, NULL, NULL, NULL, 'queued', 'ready', 1, 1, 1, 0, 0, 1767772800000000, NULL, 0, NULL, '', NULL, 0, 'report/loop/report@1/globex', 1767772800000000, NULL, 'report/queued', 1, '/rate/report/queued', NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, 202601);
INSERT INTO ulak.jobs VALUES ('019b9778-4400-7000-ac31-3b81a951e249', 'acme', 'report', 1, 1767772800000000, '', NULL, 1, NULL, NULL, NULL, 'queued', 'ready', 1, 1, 1, 0, 0, 1767772800000000, NULL, 0, NULL, '', NULL, 0, 'report/loop/report@1/acme', 1767772800000000, NULL, 'report/queued', 1, '/rate/report/queued', NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, 202601);
INSERT INTO ulak.jobs VALUES ('019b9778-4400-7000-9d2a-3f2ed875e70d', '', 'press', 1, 1767772800000000, '', NULL, 1, NULL, NULL, '{"queued":{"slot":"B"}}', 'queued', 'ready', 1, 1, 1, 0, 0, 1767772800000000, NULL, 0, NULL, '', NULL, 0, 'press/thread/press@1', 1767772800000000, 'press/queued/B', NULL, 0, '/key/B', NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, 202601);
INSERT INTO ulak.jobs VALUES ('019b9778-4400-7000-9099-6115353b3297', 'acme', 'order', 1, 1767772800000000, '', 'crashed', 1, NULL, NULL, NULL, 'packing', 'busy', 3, 3, 1, 0, 0, 1767772800000000, NULL, 0, NULL, '', NULL, 1, 'order/thread/order@1', 1767772800000000, NULL, NULL, 0, NULL, NULL, NULL, NULL, 'fixture-18452-62e8d6cc8d7d', 1767772800000000, 1, 1, 0, 0, 202601);
INSERT INTO ulak.jobs VALUES ('019b9778-4400-7000-8054-66edb48a16c5', 'globex', 'report', 1, 1767772800000000, '', NULL, 1, NULL, NULL, NULL, 'done', 'done', 2, 2, 1, 0, 0, 1767772800000000, NULL, 0, NULL, '', NULL, 1, '', 1767772800000000, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, 1767772800000000, 2, 0, 0, 0, 202601);
INSERT INTO ulak.jobs VALUES ('019b9778-4400-7000-a75a-5306d011021f', 'acme', 'report', 1, 1767772800000000, '', NULL, 1, NULL, NULL, NULL, 'done', 'done', 2, 2, 1, 0, 0, 1767772800000000, NULL, 0, NULL, '', NULL, 1, '', 1767772800000000, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, 1767772800000000, 2, 0, 0, 0, 202601);
INSERT INTO ulak.jobs VALUES ('019b9778-4400-7000-9d48-b2f3737a3efd', 'acme', 'order', 1, 1767772800000000, 'ada', 'held', 1, NULL, NULL, NULL, 'held', 'held', 4, 4, 1, 0, 0, 1767772800000000, 'customs', 0, 'packing', '', NULL, 1, '', 1767772800000000, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, 1767772800000000, 2, 0, 0, 0, 202601);
INSERT INTO ulak.jobs VALUES ('019b9778-4400-7000-b660-c6d8eb339f61', 'acme', 'order', 1, 1767772800000000, '', 'retried', 1, NULL, NULL, NULL, 'packing', 'busy', 4, 4, 1, 1, 0, 1767772800000000, NULL, 0, NULL, '', NULL, 1, 'order/thread/order@1', 1767776400000000, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, 1767772800000000, 2, 1, 0, 0, 202601);
INSERT INTO ulak.jobs VALUES ('019b9778-4400-7000-8969-665f1d8db175', '', 'order', 1, 1767772800000000, '', 'unsent', 1, NULL, NULL, NULL, 'sent', 'done', 5, 5, 1, 0, 0, 1767772800000000, NULL, 0, NULL, '', NULL, 1, '', 1767772800000000, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, 1767772800000000, 2, 0, 0, 0, 202601);
INSERT INTO ulak.jobs VALUES ('019b9778-4400-7000-a818-a7211873bc8b', 'acme', 'booking', 1, 1767772800000000, '', NULL, 1, NULL, NULL, NULL, 'undoing', 'undoing', 4, 4, 1, 1, 0, 1767772800000000, 'raised', 0, 'booked', 'asked', 'failed', 1, 'booking/thread/booking@1', 1767776400000000, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, 1767772800000000, 4, 1, 0, 0, 202601);
INSERT INTO ulak.jobs VALUES ('019b9778-4400-7000-90de-4e29cfddf966', '', 'press', 1, 1767772800000000, '', NULL, 1, NULL, NULL, '{"queued":{"slot":"A"}}', 'queued', 'ready', 1, 1, 1, 0, 0, 1767772800000000, NULL, 0, NULL, '', NULL, 0, 'press/thread/press@1', 1767772800000000, 'press/queued/A', NULL, 0, 'press/queued/A', NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, 202601);
INSERT INTO ulak.jobs VALUES ('019b9778-4400-7000-8046-0eafa0f6b3ad', '', 'press', 1, 1767772800000000, '', NULL, 1, NULL, NULL, '{"queued":{"slot":"A"}}', 'queued', 'ready', 1, 1, 1, 0, 0, 1767772800000000, NULL, 0, NULL, '', NULL, 0, 'press/thread/press@1', 1767772800000000, 'press/queued/A', NULL, 0, NULL, NULL, NULL, NULL, 'fixture-18452-62e8d6cc8d7d', 1767772800000000, 1, 1, 0, 0, 202601);
INSERT INTO ulak.jobs VALUES ('019b9778-4400-7000-b7b8-202c6694aef7', 'acme', 'order', 1, 1767772800000000, '', 'asked', 1, NULL, NULL, NULL, 'packing', 'busy', 3, 3, 1, 0, 0, 1767772800000000, NULL, 0, NULL, '', NULL, 1, 'order/thread/order@1', 1767772800000000, NULL, NULL, 0, NULL, NULL, NULL, NULL, 'fixture-18452-62e8d6cc8d7d', 1767772800000000, 1, 1, 0, 1, 202601);
INSERT INTO ulak.jobs VALUES ('019b9778-4400-7000-9d5a-521aa47844a9', '', 'order', 1, 1767772800000000, 'ada', 'ready', 0, NULL, NULL, NULL, 'new', 'ready', 1, 1, 1, 0, 0, 1767772800000000, NULL, 0, NULL, '', NULL, 0, 'order/thread/order@1', 1767772800000000, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, 202601);
INSERT INTO ulak.limits VALUES ('press/queued', 1, 1, 1, NULL, 1767600000000000);
INSERT INTO ulak.limits VALUES ('order/packed', 5, 3, 0, 'ada', 1767600000000000);
INSERT INTO ulak.outbox OVERRIDING SYSTEM VALUE VALUES (1, '019b8d2b-8c00-7000-94c1-ba173fb1247b', 4, 0, 'shared', 'packed', '\x7b226e616d65223a22646f6e6520746f6f227d', 1767600000000000, 1767600000000000, 0, 1767600060000000, 0, 0);
INSERT INTO ulak.outbox OVERRIDING SYSTEM VALUE VALUES (2, '019b8d2b-8c00-7000-95bf-23341d4baeb6', 4, 0, '019b8d2b8c00700095bf23341d4baeb6', 'packed', '\x7b226e616d65223a22646f6e65227d', 1767600000000000, 1767600000000000, 0, 1767600060000000, 0, 0);
INSERT INTO ulak.outbox OVERRIDING SYSTEM VALUE VALUES (3, '019b8d2b-8c00-7000-b624-63d134ca804e', 4, 0, 'blocked for good', 'packed', '\x7b226e616d65223a2264656164206d657373616765227d', 1767600000000000, NULL, 11, 1767601081280546, 1, 0);
INSERT INTO ulak.outbox OVERRIDING SYSTEM VALUE VALUES (4, '019b9778-4400-7000-8969-665f1d8db175', 4, 0, 'blocked today', 'packed', '\x7b226e616d65223a22756e73656e74227d', 1767772800000000, NULL, 1, 1767772801051681, 0, 1);
INSERT INTO ulak.pauses VALUES ('queue', 'night', NULL, 'ada', 'neighbours', 1767600000000000);
INSERT INTO ulak.pauses VALUES ('key', 'B', NULL, 'ada', 'machine B is being cleaned', 1767600000000000);
INSERT INTO ulak.payloads_202601 VALUES (202601, '019b8d2b-8c00-7000-95bf-23341d4baeb6', '\x7b226e616d65223a22646f6e65227d', 1, NULL);
INSERT INTO ulak.payloads_202601 VALUES (202601, '019b8d2b-8c00-7000-94c1-ba173fb1247b', '\x7b226e616d65223a22646f6e6520746f6f222c226b6579223a22736861726564227d', 1, NULL);
INSERT INTO ulak.payloads_202601 VALUES (202601, '019b8d2b-8c00-7000-bcae-d3a8b94f1993', '\x7b226e616d65223a22736574746c65642061636d65227d', 1, NULL);
INSERT INTO ulak.payloads_202601 VALUES (202601, '019b8d2b-8c00-7000-b393-0c96af0e4f4f', '\x7b226e616d65223a22736574746c656420676c6f626578227d', 1, NULL);
INSERT INTO ulak.payloads_202601 VALUES (202601, '019b8d2b-8c00-7000-85a4-68a23c2aede2', '\x7b226e616d65223a2267617465227d', 1, NULL);
INSERT INTO ulak.payloads_202601 VALUES (202601, '019b8d2b-8c00-7000-863f-d75ab1e612ce', '\x7b226e616d65223a227369676e616c227d', 1, NULL);
INSERT INTO ulak.payloads_202601 VALUES (202601, '8de25e09-7344-4ae1-8ba5-8b31bbf40b5d', '\x7b226e616d65223a226c65747465722031227d', 1, NULL);
INSERT INTO ulak.payloads_202601 VALUES (202601, '2b840919-7fa0-4b7f-8d3b-ad1a2770b2a1', '\x7b226e616d65223a226c65747465722032227d', 1, NULL);
INSERT INTO ulak.payloads_202601 VALUES (202601, '019b8d2b-8c00-7000-b617-867386138993', '\x7b226e616d65223a226661696c6564222c22686f77223a227472616e7369656e74227d', 1, NULL);
INSERT INTO ulak.payloads_202601 VALUES (202601, '019b8d2b-8c00-7000-8b2c-6ce343c638f8', '\x7b226e616d65223a227065726d616e656e74222c22686f77223a227065726d616e656e74227d', 1, NULL);
INSERT INTO ulak.payloads_202601 VALUES (202601, '019b8d2b-8c00-7000-b624-63d134ca804e', '\x7b226e616d65223a2264656164206d657373616765222c226b6579223a22626c6f636b656420666f7220676f6f64227d', 1, NULL);
INSERT INTO ulak.payloads_202601 VALUES (202601, '019b8d2b-8c00-7000-832a-c54378d4057d', '\x7b226e616d65223a2265787069726564227d', 1, NULL);
INSERT INTO ulak.payloads_202601 VALUES (202601, '019b8d2b-8c00-7000-9a31-d8457459a85e', '\x7b226e616d65223a2263616e63656c6c6564227d', 1, NULL);
INSERT INTO ulak.payloads_202601 VALUES (202601, '019b8e07-4600-7000-9f01-0413f199fd8b', '\x7b226e616d65223a227469636b227d', 1, NULL);
INSERT INTO ulak.payloads_202601 VALUES (202601, '019b909a-7400-7000-bfbe-46bbf4cdd724', '\x7b226e616d65223a227469636b227d', 1, NULL);
INSERT INTO ulak.payloads_202601 VALUES (202601, '019b932d-a200-7000-96d5-810abc985ffa', '\x7b226e616d65223a227469636b227d', 1, NULL);
INSERT INTO ulak.payloads_202601 VALUES (202601, '019b95c0-d000-7000-a1be-d6ad1f118ba2', '\x7b226e616d65223a227469636b227d', 1, NULL);
INSERT INTO ulak.payloads_202601 VALUES (202601, '019b9778-4400-7000-9d48-b2f3737a3efd', '\x7b226e616d65223a2268656c64222c22686f77223a22686f6c64227d', 1, NULL);
INSERT INTO ulak.payloads_202601 VALUES (202601, '019b9778-4400-7000-b660-c6d8eb339f61', '\x7b226e616d65223a2272657472696564222c22686f77223a227472616e7369656e74227d', 1, NULL);
INSERT INTO ulak.payloads_202601 VALUES (202601, '019b9778-4400-7000-8969-665f1d8db175', '\x7b226e616d65223a22756e73656e74222c226b6579223a22626c6f636b656420746f646179227d', 1, NULL);
INSERT INTO ulak.payloads_202601 VALUES (202601, '019b9778-4400-7000-94dd-20cf49e81f1b', '\x7b226e616d65223a2264656c61796564227d', 1, NULL);
INSERT INTO ulak.payloads_202601 VALUES (202601, '019b9778-4400-7000-a818-a7211873bc8b', '\x7b226e616d65223a22756e646f696e67227d', 1, NULL);
INSERT INTO ulak.payloads_202601 VALUES (202601, '019b9778-4400-7000-9cf8-0ac5c3fcdf86', '\x7b226e616d65223a226e617070696e67227d', 1, NULL);
INSERT INTO ulak.payloads_202601 VALUES (202601, '019b9778-4400-7000-9d2a-3f2ed875e70d', '\x7b226e616d65223a22706175736564206b6579222c226d616368696e65223a2242227d', 1, NULL);
INSERT INTO ulak.payloads_202601 VALUES (202601, '019b9778-4400-7000-b368-eaad7341b513', '\x7b226e616d65223a22706175736564207175657565227d', 1, NULL);
INSERT INTO ulak.payloads_202601 VALUES (202601, '019b9778-4400-7000-a75a-5306d011021f', '\x7b226e616d65223a227265706f72742030227d', 1, NULL);
INSERT INTO ulak.payloads_202601 VALUES (202601, '019b9778-4400-7000-ac31-3b81a951e249', '\x7b226e616d65223a227265706f72742031227d', 1, NULL);
INSERT INTO ulak.payloads_202601 VALUES (202601, '019b9778-4400-7000-8054-66edb48a16c5', '\x7b226e616d65223a227265706f72742032227d', 1, NULL);
INSERT INTO ulak.payloads_202601 VALUES (202601, '019b9778-4400-7000-9eea-7a3602cab01f', '\x7b226e616d65223a227265706f72742033227d', 1, NULL);
INSERT INTO ulak.payloads_202601 VALUES (202601, '019b9778-4400-7000-9099-6115353b3297', '\x7b226e616d65223a2263726173686564227d', 1, NULL);
INSERT INTO ulak.payloads_202601 VALUES (202601, '019b9778-4400-7000-b7b8-202c6694aef7', '\x7b226e616d65223a2261736b6564227d', 1, NULL);
INSERT INTO ulak.payloads_202601 VALUES (202601, '019b9778-4400-7000-8046-0eafa0f6b3ad', '\x7b226e616d65223a2270726573736564222c226d616368696e65223a2241227d', 1, NULL);
INSERT INTO ulak.payloads_202601 VALUES (202601, '019b9778-4400-7000-90de-4e29cfddf966', '\x7b226e616d65223a227365636f6e64222c226d616368696e65223a2241227d', 1, NULL);
INSERT INTO ulak.payloads_202601 VALUES (202601, '019b9778-4400-7000-9d5a-521aa47844a9', '\x7b226e616d65223a227265616479227d', 1, NULL);
INSERT INTO ulak.progress VALUES ('019b9778-4400-7000-8046-0eafa0f6b3ad', 0.5, 'half way', 1767772800000000);
INSERT INTO ulak.progress VALUES ('019b9778-4400-7000-9099-6115353b3297', 0.5, 'half way', 1767772800000000);
INSERT INTO ulak.progress VALUES ('019b9778-4400-7000-b7b8-202c6694aef7', 0.5, 'half way', 1767772800000000);
INSERT INTO ulak.proof_heads VALUES ('globex', 3, '\xbdc49b104a22e3ff9525d5866f561e7f355f8411e7e6912449c3d1ac4985e8a0');
INSERT INTO ulak.proof_heads VALUES ('acme', 6, '\x5737bc74bee4f9649f50e0e614aac3e558a2f36b53765a5a9656c6a4cc413435');
INSERT INTO ulak.proofs VALUES ('acme', 1, '019b8d2b-8c00-7000-bcae-d3a8b94f1993', 1, '\x30313962386432623863303037303030626361656433613862393466313939331f311f7375626d69747465641f1f7265717565737465641f6164611f1f1f1f31373637363030303030303030303030', '\xfb2f33d33c70b51189053eece5a4c4de8d23fbd26676fe6533a39de5c5b0a3c1');
INSERT INTO ulak.proofs VALUES ('acme', 2, '019b8d2b-8c00-7000-bcae-d3a8b94f1993', 2, '\x30313962386432623863303037303030626361656433613862393466313939331f321f646563696465641f7265717565737465641f617070726f7665641f626f621f617070726f76651f7365656e1f1f31373637363030303030303030303030', '\xad1b824a8835ccac04ad7b927a99d5c3b34a34462a1a9aab650044f21bcba83f');
INSERT INTO ulak.proofs VALUES ('acme', 3, '019b8d2b-8c00-7000-bcae-d3a8b94f1993', 3, '\x30313962386432623863303037303030626361656433613862393466313939331f331f7369676e616c6c65641f617070726f7665641f736574746c65641f62616e6b1f706169641f1f1f31373637363030303030303030303030', '\x8f19e37d966a5d9e28ff4d3ba76c16c6c8dbf9fa8c2b3872efb963735ace5fc1');
INSERT INTO ulak.proofs VALUES ('globex', 1, '019b8d2b-8c00-7000-b393-0c96af0e4f4f', 1, '\x30313962386432623863303037303030623339333063393661663065346634661f311f7375626d69747465641f1f7265717565737465641f6164611f1f1f1f31373637363030303030303030303030', '\x302c036adb0b35ba2726f17bde6d415e322eebbdca8c7b28b1fb430657ba9369');
INSERT INTO ulak.proofs VALUES ('globex', 2, '019b8d2b-8c00-7000-b393-0c96af0e4f4f', 2, '\x30313962386432623863303037303030623339333063393661663065346634661f321f646563696465641f7265717565737465641f617070726f7665641f626f621f617070726f76651f7365656e1f1f31373637363030303030303030303030', '\x6273d01cf633253f48b0a949fb4aaa694b83d3fc08dc1cb8be8dda720e3b11f6');
INSERT INTO ulak.proofs VALUES ('globex', 3, '019b8d2b-8c00-7000-b393-0c96af0e4f4f', 3, '\x30313962386432623863303037303030623339333063393661663065346634661f331f7369676e616c6c65641f617070726f7665641f736574746c65641f62616e6b1f706169641f1f1f31373637363030303030303030303030', '\xbdc49b104a22e3ff9525d5866f561e7f355f8411e7e6912449c3d1ac4985e8a0');
INSERT INTO ulak.proofs VALUES ('acme', 4, '019b8d2b-8c00-7000-85a4-68a23c2aede2', 1, '\x30313962386432623863303037303030383561343638613233633261656465321f311f7375626d69747465641f1f7265717565737465641f6164611f1f1f1f31373637363030303030303030303030', '\x3de821e9d037d1cca7722003c8e0a6f339aa1c3aa7a43f8396ec2593040f42a1');
INSERT INTO ulak.proofs VALUES ('acme', 5, '019b8d2b-8c00-7000-863f-d75ab1e612ce', 1, '\x30313962386432623863303037303030383633666437356162316536313263651f311f7375626d69747465641f1f7265717565737465641f6164611f1f1f1f31373637363030303030303030303030', '\x23f5d800478bbbbe2266a86ef8c12fa0cc5df3e0bd291afa37fb0060cf6a9fbf');
INSERT INTO ulak.proofs VALUES ('acme', 6, '019b8d2b-8c00-7000-863f-d75ab1e612ce', 2, '\x30313962386432623863303037303030383633666437356162316536313263651f321f646563696465641f7265717565737465641f617070726f7665641f626f621f617070726f76651f1f1f31373637363030303030303030303030', '\x5737bc74bee4f9649f50e0e614aac3e558a2f36b53765a5a9656c6a4cc413435');
INSERT INTO ulak.rates VALUES ('report/queued', 4, 1000000, 2, 2, 1000000, 2, 'ada', 1767600000000000);
INSERT INTO ulak.requests VALUES ('019b9778-4400-7000-b7b8-202c6694aef7', 'cancel', '', 'ada', 'changed her mind', NULL, 1767772800000000);
INSERT INTO ulak.results_202601 VALUES (202601, '019b8d2b-8c00-7000-bcae-d3a8b94f1993', 1, 'requested', '', '\x7b2263686f696365223a22617070726f7665222c226163746f72223a22626f62222c226e6f7465223a227365656e222c226174223a313736373630303030303030303030302c2264617461223a6e756c6c7d');
INSERT INTO ulak.results_202601 VALUES (202601, '019b8d2b-8c00-7000-bcae-d3a8b94f1993', 1, 'approved', '', '\x7b22616d6f756e74223a31327d');
INSERT INTO ulak.results_202601 VALUES (202601, '019b8d2b-8c00-7000-b393-0c96af0e4f4f', 1, 'requested', '', '\x7b2263686f696365223a22617070726f7665222c226163746f72223a22626f62222c226e6f7465223a227365656e222c226174223a313736373630303030303030303030302c2264617461223a6e756c6c7d');
INSERT INTO ulak.results_202601 VALUES (202601, '019b8d2b-8c00-7000-b393-0c96af0e4f4f', 1, 'approved', '', '\x7b22616d6f756e74223a31327d');
INSERT INTO ulak.results_202601 VALUES (202601, '019b8d2b-8c00-7000-863f-d75ab1e612ce', 1, 'requested', '', '\x7b2263686f696365223a22617070726f7665222c226163746f72223a22626f62222c226e6f7465223a22222c226174223a313736373630303030303030303030302c2264617461223a6e756c6c7d');
INSERT INTO ulak.results_202601 VALUES (202601, '019b8d2b-8c00-7000-94c1-ba173fb1247b', 1, 'new', 'label', '\x226c6162656c20646f6e6520746f6f22');
INSERT INTO ulak.results_202601 VALUES (202601, '019b8d2b-8c00-7000-95bf-23341d4baeb6', 1, 'new', 'label', '\x226c6162656c20646f6e6522');
INSERT INTO ulak.results_202601 VALUES (202601, '019b8d2b-8c00-7000-94c1-ba173fb1247b', 1, 'new', '', '\x7b226c6162656c223a226c6162656c20646f6e6520746f6f222c226279223a2230227d');
INSERT INTO ulak.results_202601 VALUES (202601, '019b8d2b-8c00-7000-94c1-ba173fb1247b', 1, 'packed', '', '\x7b226c6162656c223a226c6162656c20646f6e6520746f6f222c226279223a2230222c2273656e745f6279223a2230227d');
INSERT INTO ulak.results_202601 VALUES (202601, '019b8d2b-8c00-7000-95bf-23341d4baeb6', 1, 'new', '', '\x7b226c6162656c223a226c6162656c20646f6e65222c226279223a2230227d');
INSERT INTO ulak.results_202601 VALUES (202601, '019b8d2b-8c00-7000-95bf-23341d4baeb6', 1, 'packed', '', '\x7b226c6162656c223a226c6162656c20646f6e65222c226279223a2230222c2273656e745f6279223a2230227d');
INSERT INTO ulak.results_202601 VALUES (202601, '019b8d2b-8c00-7000-8b2c-6ce343c638f8', 1, 'new', 'label', '\x226c6162656c207065726d616e656e7422');
INSERT INTO ulak.results_202601 VALUES (202601, '019b8d2b-8c00-7000-b617-867386138993', 1, 'new', 'label', '\x226c6162656c206661696c656422');
INSERT INTO ulak.results_202601 VALUES (202601, '019b8d2b-8c00-7000-b624-63d134ca804e', 1, 'new', 'label', '\x226c6162656c2064656164206d65737361676522');
INSERT INTO ulak.results_202601 VALUES (202601, '019b8d2b-8c00-7000-b624-63d134ca804e', 1, 'new', '', '\x7b226c6162656c223a226c6162656c2064656164206d657373616765222c226279223a2230227d');
INSERT INTO ulak.results_202601 VALUES (202601, '019b8d2b-8c00-7000-b624-63d134ca804e', 1, 'packed', '', '\x7b226c6162656c223a226c6162656c2064656164206d657373616765222c226279223a2230222c2273656e745f6279223a2230227d');
INSERT INTO ulak.results_202601 VALUES (202601, '019b8e07-4600-7000-9f01-0413f199fd8b', 1, 'counted', '', '\x223022');
INSERT INTO ulak.results_202601 VALUES (202601, '019b909a-7400-7000-bfbe-46bbf4cdd724', 1, 'counted', '', '\x223022');
INSERT INTO ulak.results_202601 VALUES (202601, '019b932d-a200-7000-96d5-810abc985ffa', 1, 'counted', '', '\x223022');
INSERT INTO ulak.results_202601 VALUES (202601, '019b95c0-d000-7000-a1be-d6ad1f118ba2', 1, 'counted', '', '\x223022');
INSERT INTO ulak.results_202601 VALUES (202601, '019b9778-4400-7000-8969-665f1d8db175', 1, 'new', 'label', '\x226c6162656c20756e73656e7422');
INSERT INTO ulak.results_202601 VALUES (202601, '019b9778-4400-7000-8054-66edb48a16c5', 1, 'queued', '', '\x223022');
INSERT INTO ulak.results_202601 VALUES (202601, '019b9778-4400-7000-9d48-b2f3737a3efd', 1, 'new', 'label', '\x226c6162656c2068656c6422');
INSERT INTO ulak.results_202601 VALUES (202601, '019b9778-4400-7000-a75a-5306d011021f', 1, 'queued', '', '\x223022');
INSERT INTO ulak.results_202601 VALUES (202601, '019b9778-4400-7000-a818-a7211873bc8b', 1, 'asked', '', '\x227365617420313222');
INSERT INTO ulak.results_202601 VALUES (202601, '019b9778-4400-7000-b660-c6d8eb339f61', 1, 'new', 'label', '\x226c6162656c207265747269656422');
INSERT INTO ulak.results_202601 VALUES (202601, '019b9778-4400-7000-8969-665f1d8db175', 1, 'new', '', '\x7b226c6162656c223a226c6162656c20756e73656e74222c226279223a2230227d');
INSERT INTO ulak.results_202601 VALUES (202601, '019b9778-4400-7000-8969-665f1d8db175', 1, 'packed', '', '\x7b226c6162656c223a226c6162656c20756e73656e74222c226279223a2230222c2273656e745f6279223a2230227d');
INSERT INTO ulak.results_202601 VALUES (202601, '019b9778-4400-7000-9099-6115353b3297', 1, 'new', 'label', '\x226c6162656c206372617368656422');
INSERT INTO ulak.results_202601 VALUES (202601, '019b9778-4400-7000-b7b8-202c6694aef7', 1, 'new', 'label', '\x226c6162656c2061736b656422');
INSERT INTO ulak.schedules VALUES ('half-daily', 'count', 1, '', 1, NULL, '\x7b226e616d65223a227469636b227d', '@every 43200s', 'UTC', 'last', 1767787200000000, NULL, NULL, NULL);
INSERT INTO ulak.schedules VALUES ('nightly', 'count', 1, '', 1, NULL, '\x7b226e616d65223a226e69676874227d', '0 3 * * *', 'Europe/Istanbul', 'last', 1767657600000000, 1767600000000000, 'ada', 'holidays');
INSERT INTO ulak.schema_version VALUES (4);
INSERT INTO ulak.slots VALUES ('order/packed', 2, NULL, 0);
INSERT INTO ulak.slots VALUES ('order/packed', 3, NULL, 0);
INSERT INTO ulak.slots VALUES ('order/packed', 4, NULL, 0);
INSERT INTO ulak.slots VALUES ('order/packed', 5, NULL, 0);
INSERT INTO ulak.slots VALUES ('order/packed', 1, NULL, 0);
INSERT INTO ulak.slots VALUES ('press/queued/A', 1, '019b9778-4400-7000-8046-0eafa0f6b3ad', 0);
INSERT INTO ulak.ticks VALUES ('half-daily', 1767614400000000, '019b8e07-4600-7000-9f01-0413f199fd8b');
INSERT INTO ulak.ticks VALUES ('half-daily', 1767657600000000, '019b909a-7400-7000-bfbe-46bbf4cdd724');
INSERT INTO ulak.ticks VALUES ('half-daily', 1767700800000000, '019b932d-a200-7000-96d5-810abc985ffa');
INSERT INTO ulak.ticks VALUES ('half-daily', 1767744000000000, '019b95c0-d000-7000-a1be-d6ad1f118ba2');
INSERT INTO ulak.turns VALUES ('report/loop/report@1/*', 'acme', 333333, 0);
INSERT INTO ulak.turns VALUES ('report/loop/report@1/*', 'globex', 1000000, 0);
INSERT INTO ulak.weights VALUES ('acme', 3, 'ada', 1767600000000000);
INSERT INTO ulak.workers VALUES ('fixture-18452-62e8d6cc8d7d', 1767772800000000, 1767772800000000, 1767772830000000, 'booking/thread/booking@1 count/loop/count@1 night/loop/quiet@1 order/loop/order@1 order/thread/order@1 press/thread/press@1 report/loop/report@1/*', 'fixture process 18452');
SELECT pg_catalog.setval('ulak.audit_position_seq', 11, true);
SELECT pg_catalog.setval('ulak.hos_idempotency_keys_id_seq', 7, true);
SELECT pg_catalog.setval('ulak.hos_outbox_events_id_seq', 5, true);
SELECT pg_catalog.setval('ulak.hos_proof_ids', 6, true);
SELECT pg_catalog.setval('ulak.outbox_position_seq', 4, true);
ALTER TABLE ONLY ulak.audit
    ADD CONSTRAINT audit_pkey PRIMARY KEY ("position");
ALTER TABLE ONLY ulak.buckets
    ADD CONSTRAINT buckets_pkey PRIMARY KEY (name);
ALTER TABLE ONLY ulak.counts
    ADD CONSTRAINT counts_pkey PRIMARY KEY (flow, flow_version, state, role);
ALTER TABLE ONLY ulak.credentials
    ADD CONSTRAINT credentials_pkey PRIMARY KEY (kind, id);
ALTER TABLE ONLY ulak.dedup
    ADD CONSTRAINT dedup_pkey PRIMARY KEY (tenant, flow, key);
ALTER TABLE ONLY ulak.events
    ADD CONSTRAINT events_pkey PRIMARY KEY (job_id, seq, month);
ALTER TABLE ONLY ulak.events_202601
    ADD CONSTRAINT events_202601_pkey PRIMARY KEY (job_id, seq, month);
ALTER TABLE ONLY ulak.events_202602
    ADD CONSTRAINT events_202602_pkey PRIMARY KEY (job_id, seq, month);
ALTER TABLE ONLY ulak.events_202603
    ADD CONSTRAINT events_202603_pkey PRIMARY KEY (job_id, seq, month);
ALTER TABLE ONLY ulak.events_other
    ADD CONSTRAINT events_other_pkey PRIMARY KEY (job_id, seq, month);
ALTER TABLE ONLY ulak.hos_contract_subjects
    ADD CONSTRAINT hos_contract_subjects_pkey PRIMARY KEY (tenant_id, type, id);
ALTER TABLE ONLY ulak.hos_idempotency_keys
    ADD CONSTRAINT hos_idempotency_keys_pkey PRIMARY KEY (id);
ALTER TABLE ONLY ulak.hos_outbox_events
    ADD CONSTRAINT hos_outbox_events_pkey PRIMARY KEY (id);
ALTER TABLE ONLY ulak.hos_proof_heads
    ADD CONSTRAINT hos_proof_heads_pkey PRIMARY KEY (tenant_id);
ALTER TABLE ONLY ulak.hos_proofs
    ADD CONSTRAINT hos_proofs_pkey PRIMARY KEY (proof_id);
ALTER TABLE ONLY ulak.jobs
    ADD CONSTRAINT jobs_pkey PRIMARY KEY (id);
ALTER TABLE ONLY ulak.limits
    ADD CONSTRAINT limits_pkey PRIMARY KEY (name);
ALTER TABLE ONLY ulak.outbox
    ADD CONSTRAINT outbox_job_id_seq_n_key UNIQUE (job_id, seq, n);
ALTER TABLE ONLY ulak.outbox
    ADD CONSTRAINT outbox_pkey PRIMARY KEY ("position");
ALTER TABLE ONLY ulak.pauses
    ADD CONSTRAINT pauses_pkey PRIMARY KEY (kind, name);
ALTER TABLE ONLY ulak.payloads
    ADD CONSTRAINT payloads_pkey PRIMARY KEY (job_id, month);
ALTER TABLE ONLY ulak.payloads_202601
    ADD CONSTRAINT payloads_202601_pkey PRIMARY KEY (job_id, month);
ALTER TABLE ONLY ulak.payloads_202602
    ADD CONSTRAINT payloads_202602_pkey PRIMARY KEY (job_id, month);
ALTER TABLE ONLY ulak.payloads_202603
    ADD CONSTRAINT payloads_202603_pkey PRIMARY KEY (job_id, month);
ALTER TABLE ONLY ulak.payloads_other
    ADD CONSTRAINT payloads_other_pkey PRIMARY KEY (job_id, month);
ALTER TABLE ONLY ulak.progress
    ADD CONSTRAINT progress_pkey PRIMARY KEY (job_id);
ALTER TABLE ONLY ulak.proof_heads
    ADD CONSTRAINT proof_heads_pkey PRIMARY KEY (tenant);
ALTER TABLE ONLY ulak.proofs
    ADD CONSTRAINT proofs_pkey PRIMARY KEY (tenant, proof_id);
ALTER TABLE ONLY ulak.rates
    ADD CONSTRAINT rates_pkey PRIMARY KEY (name);
ALTER TABLE ONLY ulak.requests
    ADD CONSTRAINT requests_pkey PRIMARY KEY (job_id, kind, name);
ALTER TABLE ONLY ulak.results
    ADD CONSTRAINT results_pkey PRIMARY KEY (job_id, round, stage, name, month);
ALTER TABLE ONLY ulak.results_202601
    ADD CONSTRAINT results_202601_pkey PRIMARY KEY (job_id, round, stage, name, month);
ALTER TABLE ONLY ulak.results_202602
    ADD CONSTRAINT results_202602_pkey PRIMARY KEY (job_id, round, stage, name, month);
ALTER TABLE ONLY ulak.results_202603
    ADD CONSTRAINT results_202603_pkey PRIMARY KEY (job_id, round, stage, name, month);
ALTER TABLE ONLY ulak.results_other
    ADD CONSTRAINT results_other_pkey PRIMARY KEY (job_id, round, stage, name, month);
ALTER TABLE ONLY ulak.retired_months
    ADD CONSTRAINT retired_months_pkey PRIMARY KEY (month);
ALTER TABLE ONLY ulak.schedules
    ADD CONSTRAINT schedules_pkey PRIMARY KEY (name);
ALTER TABLE ONLY ulak.slots
    ADD CONSTRAINT slots_job_id_key UNIQUE (job_id);
ALTER TABLE ONLY ulak.slots
    ADD CONSTRAINT slots_pkey PRIMARY KEY (limit_name, n);
ALTER TABLE ONLY ulak.ticks
    ADD CONSTRAINT ticks_pkey PRIMARY KEY (schedule, due_at);
ALTER TABLE ONLY ulak.turns
    ADD CONSTRAINT turns_pkey PRIMARY KEY (lane, tenant);
ALTER TABLE ONLY ulak.weights
    ADD CONSTRAINT weights_pkey PRIMARY KEY (tenant);
ALTER TABLE ONLY ulak.workers
    ADD CONSTRAINT workers_pkey PRIMARY KEY (id);
CREATE INDEX audit_subject ON ulak.audit USING btree (subject, "position");
CREATE INDEX buckets_ready ON ulak.buckets USING btree (ready_at) WHERE (ready_at IS NOT NULL);
CREATE INDEX hos_idempotency_keys_expiry ON ulak.hos_idempotency_keys USING btree (expires_at);
CREATE UNIQUE INDEX hos_idempotency_keys_key ON ulak.hos_idempotency_keys USING btree (tenant_id, scope, key);
CREATE INDEX hos_idempotency_keys_lease ON ulak.hos_idempotency_keys USING btree (lease_until) WHERE (lease_until IS NOT NULL);
CREATE INDEX hos_outbox_events_attempts ON ulak.hos_outbox_events USING btree (attempted_at) WHERE (attempted_at IS NOT NULL);
CREATE INDEX hos_outbox_events_drift ON ulak.hos_outbox_events USING btree (id) WHERE (drift IS NOT NULL);
CREATE INDEX hos_outbox_events_due ON ulak.hos_outbox_events USING btree (available_at, id) WHERE (status = ANY (ARRAY['pending'::text, 'processing'::text]));
CREATE UNIQUE INDEX hos_outbox_events_key ON ulak.hos_outbox_events USING btree (tenant_id, idempotency_key);
CREATE INDEX hos_outbox_events_open ON ulak.hos_outbox_events USING btree (tenant_id, aggregate, id) WHERE ((status <> 'sent'::text) AND (discarded_at IS NULL));
CREATE INDEX hos_outbox_events_stuck ON ulak.hos_outbox_events USING btree (status, id) WHERE ((status = ANY (ARRAY['rejected'::text, 'dead'::text])) AND (discarded_at IS NULL));
CREATE UNIQUE INDEX hos_proofs_key ON ulak.hos_proofs USING btree (tenant_id, kind, idempotency_key) WHERE (idempotency_key IS NOT NULL);
CREATE INDEX hos_proofs_of_subject ON ulak.hos_proofs USING btree (tenant_id, subject_type, subject_id, proof_id);
CREATE INDEX hos_proofs_of_tenant ON ulak.hos_proofs USING btree (tenant_id, proof_id);
CREATE INDEX jobs_claimable ON ulak.jobs USING btree (lane, priority, not_before, id) WHERE ((leased_by IS NULL) AND (parked_on IS NULL) AND (lane <> ''::text));
CREATE INDEX jobs_ended ON ulak.jobs USING btree (changed_at) WHERE ((lane = ''::text) AND (role <> 'held'::text) AND (role <> 'waiting'::text));
CREATE INDEX jobs_leased ON ulak.jobs USING btree (leased_by) WHERE (leased_by IS NOT NULL);
CREATE INDEX jobs_month ON ulak.jobs USING brin (month);
CREATE INDEX jobs_parked ON ulak.jobs USING btree (parked_on, priority, not_before, id) WHERE (parked_on IS NOT NULL);
CREATE INDEX jobs_remarkable ON ulak.jobs USING btree (role, id) WHERE ((role <> 'done'::text) AND (role <> 'ready'::text) AND (role <> 'busy'::text));
CREATE INDEX jobs_waking ON ulak.jobs USING btree (wake_at, id) WHERE (wake_at IS NOT NULL);
CREATE INDEX outbox_dead ON ulak.outbox USING btree ("position") WHERE (dead = 1);
CREATE INDEX outbox_heads ON ulak.outbox USING btree (not_before, "position") WHERE (head = 1);
CREATE INDEX outbox_pending ON ulak.outbox USING btree (key, "position") WHERE ((sent_at IS NULL) AND (dead = 0));
CREATE INDEX pauses_ending ON ulak.pauses USING btree (until_at) WHERE (until_at IS NOT NULL);
CREATE INDEX proofs_first ON ulak.proofs USING btree (job_id) WHERE (seq = 1);
CREATE INDEX schedules_due ON ulak.schedules USING btree (next_at, name) WHERE (paused_at IS NULL);
CREATE INDEX slots_free ON ulak.slots USING btree (limit_name, n) WHERE ((job_id IS NULL) AND (closed = 0));
CREATE INDEX ticks_of_job ON ulak.ticks USING btree (job_id);
CREATE INDEX turns_began ON ulak.turns USING btree (lane, began);
ALTER INDEX ulak.events_pkey ATTACH PARTITION ulak.events_202601_pkey;
ALTER INDEX ulak.events_pkey ATTACH PARTITION ulak.events_202602_pkey;
ALTER INDEX ulak.events_pkey ATTACH PARTITION ulak.events_202603_pkey;
ALTER INDEX ulak.events_pkey ATTACH PARTITION ulak.events_other_pkey;
ALTER INDEX ulak.payloads_pkey ATTACH PARTITION ulak.payloads_202601_pkey;
ALTER INDEX ulak.payloads_pkey ATTACH PARTITION ulak.payloads_202602_pkey;
ALTER INDEX ulak.payloads_pkey ATTACH PARTITION ulak.payloads_202603_pkey;
ALTER INDEX ulak.payloads_pkey ATTACH PARTITION ulak.payloads_other_pkey;
ALTER INDEX ulak.results_pkey ATTACH PARTITION ulak.results_202601_pkey;
ALTER INDEX ulak.results_pkey ATTACH PARTITION ulak.results_202602_pkey;
ALTER INDEX ulak.results_pkey ATTACH PARTITION ulak.results_202603_pkey;
ALTER INDEX ulak.results_pkey ATTACH PARTITION ulak.results_other_pkey;
CREATE TRIGGER hos_proofs_are_kept BEFORE DELETE OR UPDATE OR TRUNCATE ON ulak.hos_proofs FOR EACH STATEMENT EXECUTE FUNCTION ulak.hos_proofs_are_kept();
