-- The eighth schema.
-- oldest: 5

-- First, since it needs the table alone: whoever cannot have it has built nothing in vain.
DROP INDEX ulak.jobs_parked;

-- Who owns the jobs of flows with `owners=True`: their submitters, also of repeats. The trigger is
-- for workers of the release before too, which prune jobs and know no owners.
CREATE TABLE ulak.owners (
    job_id uuid   NOT NULL,
    owner  text COLLATE "C" NOT NULL,
    at     bigint NOT NULL,
    PRIMARY KEY (job_id, owner)
);

CREATE INDEX owners_jobs ON ulak.owners (owner, job_id);

CREATE INDEX owners_since ON ulak.owners (owner, at, job_id);

CREATE FUNCTION ulak.forget_owners() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM ulak.owners AS o USING gone WHERE o.job_id = gone.id;
    RETURN NULL;
END
$$;

CREATE TRIGGER owners_of_gone_jobs AFTER DELETE ON ulak.jobs
REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION ulak.forget_owners();

CREATE INDEX jobs_keyed ON ulak.jobs (dedup_key, id) WHERE dedup_key IS NOT NULL;

-- By date, the jobs of which the id tells none: it is no UUIDv7.
CREATE INDEX jobs_unordered ON ulak.jobs (created_at) WHERE get_byte(uuid_send(id), 6) >> 4 <> 7;

-- As before, and parked jobs are counted by lane without reading their rows.
CREATE INDEX jobs_parked ON ulak.jobs (parked_on, priority, not_before, id) INCLUDE (lane)
    WHERE parked_on IS NOT NULL;

-- A follower is a handler of the events of a flow: its topic is empty, which no message has.
ALTER TABLE ulak.handlers ADD COLUMN flow text COLLATE "C";
