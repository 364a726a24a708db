CREATE TABLE ulak.acme_letters (
    letter text PRIMARY KEY, job text, tenant text, addressee text, posted_at bigint, filed bigint
);
CREATE TABLE ulak.acme_clerks (token text NOT NULL PRIMARY KEY, name text NOT NULL);
