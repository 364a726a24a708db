CREATE TABLE ulak.acme_letters (
    letter text NOT NULL PRIMARY KEY, job text NOT NULL, tenant text NOT NULL,
    addressee text NOT NULL, posted_at bigint
);
CREATE TABLE ulak.acme_clerks (token text NOT NULL PRIMARY KEY, name text NOT NULL);
