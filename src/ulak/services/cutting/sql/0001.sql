-- oldest: 1
-- What is no part of a job. Times are microseconds since 1970, job ids as `Job.id` has them.
CREATE TABLE {schema}.cutting_customers (
    id text NOT NULL PRIMARY KEY, name text NOT NULL, phone_normalized text NOT NULL UNIQUE,
    created_at {bigint} NOT NULL
){by_key};

-- What PREPARED found, once and for all. Plans count that are no older than `attempt_at_ns`, by the
-- clock of the file system. `cleared` is 1 once the files of the job were removed.
CREATE TABLE {schema}.cutting_orders (
    job_id text NOT NULL PRIMARY KEY, rules_hash text NOT NULL, settings_json text NOT NULL,
    backing_edge_reset_count integer NOT NULL, prepared_at {bigint} NOT NULL,
    attempt_round integer NOT NULL DEFAULT 0, attempt_at_ns {bigint} NOT NULL DEFAULT 0,
    cleared integer NOT NULL DEFAULT 0
){by_key};
CREATE INDEX cutting_orders_with_files ON {schema}.cutting_orders (prepared_at) WHERE cleared = 0;

CREATE TABLE {schema}.cutting_batches (
    job_id text NOT NULL, n integer NOT NULL, batch_json text NOT NULL, import_file text NOT NULL,
    import_sha256 text, plan_path text, plan_sha256 text, solution_json text,
    PRIMARY KEY (job_id, n)
){by_key};

-- The key is the law: of any number of runners one delivers, and no name comes twice.
CREATE TABLE {schema}.cutting_deliveries (
    job_id text NOT NULL, batch_n integer NOT NULL, n integer NOT NULL, round integer NOT NULL,
    file_name text NOT NULL UNIQUE, temporary text NOT NULL, sha256 text NOT NULL,
    state text NOT NULL CHECK (state IN ('intent', 'acked', 'failed', 'withdrawn', 'unknown')),
    intent_at {bigint} NOT NULL, ended_at {bigint}, PRIMARY KEY (job_id, batch_n, n)
){by_key};

CREATE TABLE {schema}.cutting_breakers (
    name text NOT NULL PRIMARY KEY, failures integer NOT NULL DEFAULT 0, opened_at {bigint},
    probe text, probe_at {bigint}, runs integer NOT NULL DEFAULT 0,
    failed_runs integer NOT NULL DEFAULT 0, last_key text, last_run_at {bigint}, last_code text,
    last_message text, last_failed_at {bigint}, reset_at {bigint}, reset_by text
){by_key};
INSERT INTO {schema}.cutting_breakers (name) VALUES ('optimiser');

-- Who has changed the rules or the paths, to what.
CREATE TABLE {schema}.cutting_changes (
    id {serial}, at {bigint} NOT NULL,
    actor text NOT NULL, name text NOT NULL, values_json text NOT NULL
){strict};

-- Audit events, with the kind of the line that each is; without one it is a move to its state.
CREATE TABLE {schema}.cutting_messages (
    event_type text NOT NULL PRIMARY KEY, kind text, en text NOT NULL, tr text NOT NULL
){by_key};
INSERT INTO {schema}.cutting_messages (event_type, kind, en, tr) VALUES
    ('JOB_CREATED', 'submitted', 'The job was created', 'Job olusturuldu'),
    ('JOB_DEDUP', 'cutting.dedup', 'The same order came again', 'Ayni siparis tekrar geldi'),
    ('STATE_NEW', NULL, 'The job waits to be prepared', 'Job siraya alindi'),
    ('STATE_PREPARED', 'cutting.prepared', 'The job is prepared', 'Job donusum icin hazirlandi'),
    ('STATE_OPTI_IMPORTED', 'cutting.imported', 'The import files are written',
        'Import dosyalari yazildi'),
    ('STATE_OPTI_RUNNING', NULL, 'The optimiser has the job', 'Optimizasyon basladi'),
    ('STATE_OPTI_DONE', 'cutting.optimised', 'Every batch has a plan', 'Optimizasyon tamamlandi'),
    ('STATE_XML_READY', NULL, 'Every plan is valid', 'XML dosyalari hazir'),
    ('STATE_DELIVERED', NULL, 'The saw has taken every plan', 'Makine tum dosyalari aldi'),
    ('STATE_DONE', NULL, 'The job is done', 'Job tamamlandi'),
    ('STATE_HOLD', 'cutting.held', 'The job waits for an operator', 'Islem HOLD'),
    ('STATE_FAILED', NULL, 'The job has failed', 'Islem FAILED'),
    ('HOLD_APPROVED', 'released', 'An operator lets the job go on', 'Operator onayladi'),
    ('BACKING_EDGE_RESET', 'cutting.backing-edge-reset', 'Back panels lost their edge bands',
        'Arkalik bantlari sifirlandi'),
    ('JOB_RETRY_SCHEDULED', 'retried', 'The job will be tried again', 'Job tekrar denenecek'),
    ('JOB_CANCELLED', 'cancelled', 'The job was cancelled', 'Job iptal edildi'),
    ('LEASE_EXPIRED', 'lapsed', 'The runner of the job vanished', 'Isleyici kayboldu'),
    ('DELIVERY_INTENT', 'cutting.delivery-intent', 'A plan is delivered', 'Dosya gonderiliyor'),
    ('ACK', 'cutting.ack', 'The saw has taken a plan', 'Makine dosyayi aldi'),
    ('DELIVERY_WITHDRAWN', 'cutting.withdrawn', 'A plan was withdrawn', 'Dosya geri cekildi'),
    ('OPTI_RUNNER_ENDED', 'cutting.runner', 'The optimiser has ended', 'Optimizasyon bitti');

-- The trail in the words of this service. A failure's message begins with the class of the error.
CREATE VIEW {schema}.cutting_lines AS
SELECT t.*,
    CASE WHEN t.code = 'cancelled' THEN 'E_CANCELLED'
        WHEN substr(t.code, 1, 2) = 'E_' THEN t.code ELSE 'E_UNKNOWN' END AS error_code,
    CASE WHEN t.kind = 'cancelled' THEN 'by ' || t.actor || coalesce(': ' || t.message, '')
        WHEN t.kind = 'failed'
        THEN replace(replace(t.message, 'CuttingError: ', ''), 'PermanentError: ', '')
        ELSE coalesce(t.message, t.code, '') END AS reason,
    (SELECT e.code FROM {schema}.cutting_flow_trail AS e WHERE e.key = t.key AND e.seq < t.seq
        AND e.kind IN ('held', 'failed') ORDER BY e.seq DESC LIMIT 1) AS ended_code
FROM {schema}.cutting_flow_trail AS t;

-- `key` is the id as the engine keeps it: the column by which one job is found at once.
CREATE VIEW {schema}.cutting_jobs AS
SELECT j.job_id AS id, j.payload{json} ->> 'order_id' AS order_id, j.payload AS payload_json,
    j.dedup_key AS payload_hash, j.state,
    CASE WHEN j.code IS NOT NULL THEN (SELECT l.error_code FROM {schema}.cutting_lines AS l
        WHERE l.key = j.key AND l.code IS NOT NULL AND l.to_state = j.state
        ORDER BY l.seq DESC LIMIT 1) END AS error_code,
    CASE WHEN j.code IS NOT NULL THEN (SELECT l.reason FROM {schema}.cutting_lines AS l
        WHERE l.key = j.key AND l.code IS NOT NULL AND l.to_state = j.state
        ORDER BY l.seq DESC LIMIT 1) END AS error_message,
    j.round - 1 AS retry_count, j.payload{json} ->> 'opti_mode' AS opti_mode,
    j.not_before_text AS next_run_at,
    CASE (SELECT l.kind FROM {schema}.cutting_lines AS l WHERE l.key = j.key AND (
            l.kind = 'released' AND l.ended_code = 'E_OPERATOR_TRIGGER_REQUIRED'
            OR l.kind = 'retried' AND l.ended_code = 'E_OPTI_XML_TIMEOUT')
        ORDER BY l.seq DESC LIMIT 1) WHEN 'released' THEN 1 ELSE 0 END AS manual_trigger_approved,
    j.created_text AS created_at, j.changed_text AS updated_at, j.key
FROM {schema}.cutting_flow_jobs AS j;

-- A line may be two events: what was done, and the move. Where a note of the same commit has the
-- details of a move, the note is the event.
CREATE VIEW {schema}.audit_events AS
SELECT t.seq * 10 + CASE WHEN m.kind = t.kind THEN 0 ELSE 1 END AS id, t.job_id, m.event_type,
    m.en AS message,
    CASE m.event_type WHEN 'JOB_CREATED' THEN (
            SELECT format('{{"mode":%s}}', {json_quote}(j.payload{json} ->> 'opti_mode'))
            FROM {schema}.cutting_flow_jobs AS j WHERE j.key = t.key)
        WHEN 'HOLD_APPROVED' THEN format('{{"mode_c_approved":%s}}',
            CASE t.ended_code WHEN 'E_OPERATOR_TRIGGER_REQUIRED' THEN 'true' ELSE 'false' END)
        WHEN 'JOB_RETRY_SCHEDULED' THEN format(
            '{{"retry_count":%s,"backoff_minutes":%s,"next_run_at":"%s"}}', t.round - 1,
            coalesce(CAST(t.details{json} ->> 'after_s' AS {real}), 0) / 60.0,
            coalesce(t.details{json} ->> 'due_at', t.at_text))
        ELSE CASE WHEN m.kind LIKE 'cutting.%' AND m.kind = t.kind THEN coalesce(t.details, '{{}}')
            WHEN m.event_type IN ('STATE_HOLD', 'STATE_FAILED')
            THEN format('{{"errorCode":%s,"reason":%s}}', {json_quote}(t.error_code),
                {json_quote}(t.reason))
            ELSE '{{}}' END
        END AS details_json,
    t.actor, t.at_text AS created_at, t.key
FROM {schema}.cutting_lines AS t
JOIN {schema}.cutting_messages AS m ON m.kind = t.kind
    OR (m.event_type = 'STATE_' || t.to_state AND coalesce(t.from_state, '') <> t.to_state AND (
        m.kind IS NULL OR (t.kind = 'held' AND NOT EXISTS (
            SELECT 1 FROM {schema}.cutting_flow_trail AS n
            WHERE n.key = t.key AND n.seq = t.seq - 1 AND n.kind = 'cutting.held'))));
