-- oldest: 1
-- Users, who subscribes to whom, and what is delivered to whom. Times are microseconds.
CREATE TABLE {schema}.publishing_users (
    id TEXT NOT NULL PRIMARY KEY,
    -- As it was typed, and in the case that is compared.
    email TEXT NOT NULL, email_key TEXT NOT NULL UNIQUE,
    username TEXT NOT NULL UNIQUE, password_hash TEXT NOT NULL, bio TEXT, image_url TEXT,
    -- Sealed: a dump of this table opens nothing.
    subscription_key TEXT,
    is_active {smallint} NOT NULL, created_at {bigint} NOT NULL, updated_at {bigint} NOT NULL
){strict};

CREATE TABLE {schema}.publishing_subscribers (
    author_id TEXT NOT NULL, subscriber_id TEXT NOT NULL, created_at {bigint} NOT NULL,
    PRIMARY KEY (author_id, subscriber_id)
){by_key};

-- When the subscribers of an article were counted: later ones get nothing.
CREATE TABLE {schema}.publishing_fan_outs (
    article_id TEXT NOT NULL PRIMARY KEY, author_id TEXT NOT NULL,
    started_at {bigint} NOT NULL, finished_at {bigint}
){by_key};

CREATE TABLE {schema}.publishing_notifications (
    article_id TEXT NOT NULL, subscriber_id TEXT NOT NULL, author_id TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('pending', 'processing', 'sent', 'failed', 'skipped')),
    attempts INTEGER NOT NULL, last_error TEXT,
    -- The end of its lease, also which claim this is; and when it may be claimed, NULL for never.
    lease_until {bigint}, not_before {bigint},
    created_at {bigint} NOT NULL, updated_at {bigint} NOT NULL,
    PRIMARY KEY (article_id, subscriber_id)
){by_key};
CREATE INDEX publishing_notifications_open ON {schema}.publishing_notifications (article_id, subscriber_id)
    WHERE not_before IS NOT NULL;
