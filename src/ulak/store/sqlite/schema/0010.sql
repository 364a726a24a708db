-- The tenth schema.
-- oldest: 7

-- Who owns the jobs of flows with `owners=True`: their submitters, also of repeats. The trigger is
-- for workers of the release before too, which prune jobs and know no owners.
CREATE TABLE owners (
    job_id BLOB    NOT NULL,
    owner  TEXT    NOT NULL,
    at     INTEGER NOT NULL,
    PRIMARY KEY (job_id, owner)
) STRICT, WITHOUT ROWID;

CREATE INDEX owners_jobs ON owners (owner, job_id);

CREATE INDEX owners_since ON owners (owner, at, job_id);

CREATE TRIGGER owners_of_gone_jobs AFTER DELETE ON jobs BEGIN
    DELETE FROM owners WHERE job_id = OLD.id;
END;

CREATE INDEX jobs_keyed ON jobs (dedup_key, id) WHERE dedup_key IS NOT NULL;

-- By date, the jobs of which the id tells none: it is no UUIDv7.
CREATE INDEX jobs_unordered ON jobs (created_at)
    WHERE substr(id, 7, 1) NOT BETWEEN x'70' AND x'7f';

-- As before, and parked jobs are counted by lane without reading their rows.
DROP INDEX jobs_parked;

CREATE INDEX jobs_parked ON jobs (parked_on, priority, not_before, id, lane)
    WHERE parked_on IS NOT NULL;

-- A follower is a handler of the events of a flow: its topic is empty, which no message has.
ALTER TABLE handlers ADD COLUMN flow TEXT;
