-- Users, who subscribes to whom, and what is delivered to whom. Times are microseconds since 1970.

CREATE TABLE ulak.publishing_users (
    id               text     NOT NULL PRIMARY KEY,
    email            text     NOT NULL,
    -- The address in the case that is compared.
    email_key        text     NOT NULL UNIQUE,
    username         text     NOT NULL UNIQUE,
    password_hash    text     NOT NULL,
    bio              text,
    image_url        text,
    -- Sealed: a dump of this table opens nothing.
    subscription_key text,
    is_active        smallint NOT NULL,
    created_at       bigint   NOT NULL,
    updated_at       bigint   NOT NULL
);

CREATE TABLE ulak.publishing_subscribers (
    author_id     text   NOT NULL,
    subscriber_id text   NOT NULL,
    created_at    bigint NOT NULL,
    PRIMARY KEY (author_id, subscriber_id)
);

-- When the subscribers of an article were counted: later ones get nothing.
CREATE TABLE ulak.publishing_fan_outs (
    article_id  text   NOT NULL PRIMARY KEY,
    author_id   text   NOT NULL,
    started_at  bigint NOT NULL,
    finished_at bigint
);

CREATE TABLE ulak.publishing_notifications (
    article_id    text    NOT NULL,
    subscriber_id text    NOT NULL,
    author_id     text    NOT NULL,
    status        text    NOT NULL
        CHECK (status IN ('pending', 'processing', 'sent', 'failed', 'skipped')),
    attempts      integer NOT NULL,
    last_error    text,
    -- While it is sent: also which claim this is.
    lease_until   bigint,
    -- When it may be claimed; NULL when it is final.
    not_before    bigint,
    created_at    bigint  NOT NULL,
    updated_at    bigint  NOT NULL,
    PRIMARY KEY (article_id, subscriber_id)
);

CREATE INDEX publishing_open_notifications
    ON ulak.publishing_notifications (article_id, subscriber_id) WHERE not_before IS NOT NULL;
