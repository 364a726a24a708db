-- What is no part of a job. Times are microseconds since 1970, as everywhere.

-- Who else may read a job, besides whoever created it.
CREATE TABLE {schema}.pdf_owners (
    job_id TEXT NOT NULL,
    owner TEXT NOT NULL,
    added_at {bigint} NOT NULL,
    PRIMARY KEY (job_id, owner)
){by_key};
-- Of somebody the latest first, for their list.
CREATE INDEX pdf_owned ON {schema}.pdf_owners (owner, added_at, job_id);

-- What load control said last: one row, by its key.
CREATE TABLE {schema}.pdf_backpressure (
    id INTEGER NOT NULL PRIMARY KEY CHECK (id = 1),
    active INTEGER NOT NULL,
    retry_after_seconds INTEGER NOT NULL,
    since {bigint} NOT NULL,
    correlation_id TEXT NOT NULL
){strict};

-- How far the trail of a job was counted.
CREATE TABLE {schema}.pdf_counted (
    job_id {uuid} NOT NULL PRIMARY KEY,
    seq INTEGER NOT NULL
){by_key};

-- What that came to, of every job that there ever was.
CREATE TABLE {schema}.pdf_totals (
    name TEXT NOT NULL,
    label TEXT NOT NULL,
    n {real} NOT NULL,
    PRIMARY KEY (name, label)
){by_key};

-- What workers told last, and when everything was counted last.
CREATE TABLE {schema}.pdf_told (
    name TEXT NOT NULL PRIMARY KEY,
    text TEXT NOT NULL,
    at {bigint} NOT NULL
){by_key};

-- Who wants to be told of the end of a job, until a job of its own does that.
CREATE TABLE {schema}.pdf_callbacks (
    job_id {uuid} NOT NULL,
    url TEXT NOT NULL,
    root TEXT NOT NULL,
    PRIMARY KEY (job_id, url)
){by_key};
