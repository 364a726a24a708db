-- The seventh schema.
-- oldest: 5

-- Handlers of messages: columns in the order of ulak.store.protocol.HandlerRow.
CREATE TABLE ulak.handlers (
    name       text COLLATE "C" NOT NULL PRIMARY KEY,
    topic      text COLLATE "C" NOT NULL,
    give_up_us bigint
);

-- A message for one handler. `position` is the order of posting. An open delivery stands in the
-- line of its handler and key: it is pending, or it gave up and blocks. `head` marks the pending
-- one that is the first of its line, so that a relay finds what it may deliver without walking past
-- what it may not; -1 is a delivery whose place nobody has looked up yet. `seq` is 0 of a message
-- that no stage has sent: its `job_id` is no job's.
CREATE TABLE ulak.deliveries (
    position   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_id     uuid     NOT NULL,
    seq        integer  NOT NULL,
    n          integer  NOT NULL,
    key        text COLLATE "C" NOT NULL,
    topic      text COLLATE "C" NOT NULL,
    data       bytea    NOT NULL,
    at         bigint   NOT NULL,
    handler    text COLLATE "C" NOT NULL,
    state      text COLLATE "C" NOT NULL DEFAULT 'pending',
    tries      integer  NOT NULL DEFAULT 0,
    not_before bigint   NOT NULL,
    give_up_at bigint,
    sent_at    bigint,
    answer     bytea,
    error      text,
    open       smallint NOT NULL DEFAULT 1,
    head       smallint NOT NULL DEFAULT 0,
    UNIQUE (job_id, seq, n, handler)
);

CREATE INDEX deliveries_open ON ulak.deliveries (handler, key, position) WHERE open = 1;

CREATE INDEX deliveries_heads ON ulak.deliveries (handler, not_before, position) WHERE head = 1;

CREATE INDEX deliveries_unranked ON ulak.deliveries (handler, key) WHERE head = -1;

CREATE INDEX deliveries_gave_up ON ulak.deliveries (position) WHERE state IN ('dead', 'refused');

CREATE INDEX deliveries_lone ON ulak.deliveries (at) WHERE seq = 0 AND open = 0;

-- Nobody writes there between the copy and the trigger.
LOCK TABLE ulak.outbox IN SHARE ROW EXCLUSIVE MODE;

-- The messages of the release before are for the publisher, whose name is ''. It counts as known
-- where it has sent or tried something.
INSERT INTO ulak.handlers (name, topic)
SELECT '', '*' WHERE EXISTS (SELECT FROM ulak.outbox WHERE sent_at IS NOT NULL OR tries > 0);

INSERT INTO ulak.deliveries (
    job_id, seq, n, key, topic, data, at, handler, state, tries, not_before, sent_at, open, head
)
SELECT job_id, seq, n, key, topic, data, at, '',
    CASE WHEN sent_at IS NOT NULL THEN 'sent' WHEN dead = 1 THEN 'dead' ELSE 'pending' END,
    tries, not_before, sent_at, (sent_at IS NULL AND dead = 0)::integer, head
FROM ulak.outbox ORDER BY position;

DELETE FROM ulak.outbox;

-- What a worker of the release before sends is delivered by this release.
CREATE FUNCTION ulak.deliver_for_the_release_before() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO ulak.deliveries (
        job_id, seq, n, key, topic, data, at, handler, not_before, give_up_at, head
    )
    SELECT NEW.job_id, NEW.seq, NEW.n, NEW.key, NEW.topic, NEW.data, NEW.at, coalesce(h.name, ''),
        NEW.at, NEW.at + h.give_up_us, -1
    FROM (SELECT 1) AS one LEFT JOIN ulak.handlers AS h ON h.topic = NEW.topic OR h.topic = '*';
    RETURN NULL;
END
$$;

CREATE TRIGGER outbox_of_the_release_before BEFORE INSERT ON ulak.outbox
FOR EACH ROW EXECUTE FUNCTION ulak.deliver_for_the_release_before();
