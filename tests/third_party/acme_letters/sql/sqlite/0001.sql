CREATE TABLE acme_letters (
    letter TEXT PRIMARY KEY, job TEXT, tenant TEXT, addressee TEXT, posted_at INTEGER, filed INTEGER
) STRICT;
CREATE TABLE acme_clerks (token TEXT NOT NULL PRIMARY KEY, name TEXT NOT NULL) STRICT;
