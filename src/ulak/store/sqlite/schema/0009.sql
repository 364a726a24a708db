-- The ninth schema.
-- oldest: 7

-- Handlers of messages: columns in the order of ulak.store.protocol.HandlerRow.
CREATE TABLE handlers (
    name       TEXT NOT NULL PRIMARY KEY,
    topic      TEXT NOT NULL,
    give_up_us INTEGER
) STRICT, WITHOUT ROWID;

-- A message for one handler. `position` is the order of commits. An open delivery stands in the
-- line of its handler and key: it is pending, or it gave up and blocks. `head` marks the pending
-- one that is the first of its line, so that a relay finds what it may deliver without walking past
-- what it may not; -1 is a delivery whose place nobody has looked up yet. `seq` is 0 of a message
-- that no stage has sent: its `job_id` is no job's.
CREATE TABLE deliveries (
    position   INTEGER PRIMARY KEY AUTOINCREMENT,
    job_id     BLOB    NOT NULL,
    seq        INTEGER NOT NULL,
    n          INTEGER NOT NULL,
    key        TEXT    NOT NULL,
    topic      TEXT    NOT NULL,
    data       BLOB    NOT NULL,
    at         INTEGER NOT NULL,
    handler    TEXT    NOT NULL,
    state      TEXT    NOT NULL DEFAULT 'pending',
    tries      INTEGER NOT NULL DEFAULT 0,
    not_before INTEGER NOT NULL,
    give_up_at INTEGER,
    sent_at    INTEGER,
    answer     BLOB,
    error      TEXT,
    open       INTEGER NOT NULL DEFAULT 1,
    head       INTEGER NOT NULL DEFAULT 0,
    UNIQUE (job_id, seq, n, handler)
) STRICT;

CREATE INDEX deliveries_open ON deliveries (handler, key, position) WHERE open = 1;

CREATE INDEX deliveries_heads ON deliveries (handler, not_before, position) WHERE head = 1;

CREATE INDEX deliveries_unranked ON deliveries (handler, key) WHERE head = -1;

CREATE INDEX deliveries_gave_up ON deliveries (position) WHERE state IN ('dead', 'refused');

CREATE INDEX deliveries_lone ON deliveries (at) WHERE seq = 0 AND open = 0;

-- The messages of the release before are for the publisher, whose name is ''. It counts as known
-- where it has sent or tried something.
INSERT INTO handlers (name, topic)
SELECT '', '*' WHERE EXISTS (SELECT 1 FROM outbox WHERE sent_at IS NOT NULL OR tries > 0);

INSERT INTO deliveries (
    job_id, seq, n, key, topic, data, at, handler, state, tries, not_before, sent_at, open, head
)
SELECT job_id, seq, n, key, topic, data, at, '',
    CASE WHEN sent_at IS NOT NULL THEN 'sent' WHEN dead = 1 THEN 'dead' ELSE 'pending' END,
    tries, not_before, sent_at, sent_at IS NULL AND dead = 0, head
FROM outbox ORDER BY position;

DELETE FROM outbox;

-- What a worker of the release before sends is delivered by this release.
CREATE TRIGGER outbox_of_the_release_before AFTER INSERT ON outbox BEGIN
    INSERT INTO deliveries (
        job_id, seq, n, key, topic, data, at, handler, not_before, give_up_at, head
    )
    SELECT NEW.job_id, NEW.seq, NEW.n, NEW.key, NEW.topic, NEW.data, NEW.at, coalesce(h.name, ''),
        NEW.at, NEW.at + h.give_up_us, -1
    FROM (SELECT 1) LEFT JOIN handlers AS h ON h.topic = NEW.topic OR h.topic = '*';
    DELETE FROM outbox WHERE position = NEW.position;
END;
