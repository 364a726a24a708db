-- What is no part of a job. Times are microseconds since 1970, as everywhere.

-- Who else may read a job, besides whoever created it.
CREATE TABLE pdf_owners (
    job_id   TEXT    NOT NULL,
    owner    TEXT    NOT NULL,
    added_at INTEGER NOT NULL,
    PRIMARY KEY (job_id, owner)
) STRICT, WITHOUT ROWID;
-- Of somebody the latest first, for their list.
CREATE INDEX pdf_owned ON pdf_owners (owner, added_at, job_id);

-- What load control said last: one row, by its key.
CREATE TABLE pdf_backpressure (
    id                  INTEGER NOT NULL PRIMARY KEY CHECK (id = 1),
    active              INTEGER NOT NULL,
    retry_after_seconds INTEGER NOT NULL,
    since               INTEGER NOT NULL,
    correlation_id      TEXT    NOT NULL
) STRICT;

-- How far the trail of a job was counted.
CREATE TABLE pdf_counted (
    job_id BLOB    NOT NULL PRIMARY KEY,
    seq    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- What that came to, of every job that there ever was.
CREATE TABLE pdf_totals (
    name  TEXT NOT NULL,
    label TEXT NOT NULL,
    n     REAL NOT NULL,
    PRIMARY KEY (name, label)
) STRICT, WITHOUT ROWID;

-- What workers told last, and when everything was counted last.
CREATE TABLE pdf_told (
    name TEXT    NOT NULL PRIMARY KEY,
    text TEXT    NOT NULL,
    at   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Who wants to be told of the end of a job, until a job of its own does that.
CREATE TABLE pdf_callbacks (
    job_id BLOB NOT NULL,
    url    TEXT NOT NULL,
    root   TEXT NOT NULL,
    PRIMARY KEY (job_id, url)
) STRICT, WITHOUT ROWID;
