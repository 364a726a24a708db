-- oldest: 1
-- Posts, their tags and comments, and how each post came to its status. Times are microseconds.
CREATE TABLE {schema}.publishing_articles (
    id TEXT NOT NULL PRIMARY KEY,
    slug TEXT{bytewise} NOT NULL UNIQUE,
    title TEXT NOT NULL, description TEXT NOT NULL, body TEXT NOT NULL, author_id TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('DRAFT', 'PENDING_PUBLISH', 'PUBLISHED', 'REJECTED', 'ERROR')),
    preview_url TEXT, publication_id TEXT, revision INTEGER NOT NULL,
    verdict TEXT CHECK (verdict IN ('approve', 'reject')),
    moderation_reason TEXT, error_message TEXT, sweeps INTEGER NOT NULL,
    stepped_at {bigint}, published_at {bigint}, created_at {bigint} NOT NULL, updated_at {bigint} NOT NULL
){strict};
CREATE INDEX publishing_articles_steps ON {schema}.publishing_articles (status, stepped_at);
CREATE INDEX publishing_articles_newest ON {schema}.publishing_articles (created_at, id);
CREATE INDEX publishing_articles_authors ON {schema}.publishing_articles (author_id, created_at, id);

CREATE TABLE {schema}.publishing_tags (
    article_id TEXT NOT NULL, tag TEXT NOT NULL, PRIMARY KEY (article_id, tag)
){by_key};
CREATE INDEX publishing_tags_tags ON {schema}.publishing_tags (tag);

CREATE TABLE {schema}.publishing_comments (
    id TEXT NOT NULL PRIMARY KEY, article_id TEXT NOT NULL, author_id TEXT NOT NULL,
    body TEXT NOT NULL, created_at {bigint} NOT NULL, updated_at {bigint} NOT NULL
){strict};
CREATE INDEX publishing_comments_articles ON {schema}.publishing_comments (article_id, created_at, id);

-- Rows are added and never changed; they outlive the post.
CREATE TABLE {schema}.publishing_history (
    seq {serial}, article_id TEXT NOT NULL, at {bigint} NOT NULL,
    from_status TEXT NOT NULL, to_status TEXT NOT NULL, publication_id TEXT NOT NULL,
    cause TEXT NOT NULL, actor TEXT NOT NULL
){strict};
CREATE INDEX publishing_history_articles ON {schema}.publishing_history (article_id, seq);
