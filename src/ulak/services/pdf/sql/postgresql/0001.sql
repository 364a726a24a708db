-- What is no part of a job. Times are microseconds since 1970, as everywhere.

-- Who else may read a job, besides whoever created it.
CREATE TABLE ulak.pdf_owners (
    job_id   text   NOT NULL,
    owner    text   NOT NULL,
    added_at bigint NOT NULL,
    PRIMARY KEY (job_id, owner)
);
-- Of somebody the latest first, for their list.
CREATE INDEX pdf_owned ON ulak.pdf_owners (owner, added_at, job_id);

-- What load control said last: one row, by its key.
CREATE TABLE ulak.pdf_backpressure (
    id                  integer NOT NULL PRIMARY KEY CHECK (id = 1),
    active              integer NOT NULL,
    retry_after_seconds integer NOT NULL,
    since               bigint  NOT NULL,
    correlation_id      text    NOT NULL
);

-- How far the trail of a job was counted.
CREATE TABLE ulak.pdf_counted (
    job_id uuid    NOT NULL PRIMARY KEY,
    seq    integer NOT NULL
);

-- What that came to, of every job that there ever was.
CREATE TABLE ulak.pdf_totals (
    name  text NOT NULL,
    label text NOT NULL,
    n     double precision NOT NULL,
    PRIMARY KEY (name, label)
);

-- What workers told last, and when everything was counted last.
CREATE TABLE ulak.pdf_told (
    name text   NOT NULL PRIMARY KEY,
    text text   NOT NULL,
    at   bigint NOT NULL
);

-- Who wants to be told of the end of a job, until a job of its own does that.
CREATE TABLE ulak.pdf_callbacks (
    job_id uuid NOT NULL,
    url    text NOT NULL,
    root   text NOT NULL,
    PRIMARY KEY (job_id, url)
);
