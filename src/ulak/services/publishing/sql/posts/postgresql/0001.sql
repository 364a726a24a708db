-- oldest: 1
-- Posts, their tags and comments, and how each post came to its status. Times are microseconds.
CREATE TABLE ulak.publishing_articles (
    id TEXT NOT NULL PRIMARY KEY,
    slug TEXT COLLATE "C" NOT NULL UNIQUE,
    title TEXT NOT NULL, description TEXT NOT NULL, body TEXT NOT NULL, author_id TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('DRAFT', 'PENDING_PUBLISH', 'PUBLISHED', 'REJECTED', 'ERROR')),
    preview_url TEXT, publication_id TEXT, revision INTEGER NOT NULL,
    verdict TEXT CHECK (verdict IN ('approve', 'reject')),
    moderation_reason TEXT, error_message TEXT, sweeps INTEGER NOT NULL,
    stepped_at BIGINT, published_at BIGINT, created_at BIGINT NOT NULL, updated_at BIGINT NOT NULL
);
CREATE INDEX publishing_articles_steps ON ulak.publishing_articles (status, stepped_at);
CREATE INDEX publishing_articles_newest ON ulak.publishing_articles (created_at, id);
CREATE INDEX publishing_articles_authors ON ulak.publishing_articles (author_id, created_at, id);

CREATE TABLE ulak.publishing_tags (
    article_id TEXT NOT NULL, tag TEXT NOT NULL, PRIMARY KEY (article_id, tag)
);
CREATE INDEX publishing_tags_tags ON ulak.publishing_tags (tag);

CREATE TABLE ulak.publishing_comments (
    id TEXT NOT NULL PRIMARY KEY, article_id TEXT NOT NULL, author_id TEXT NOT NULL,
    body TEXT NOT NULL, created_at BIGINT NOT NULL, updated_at BIGINT NOT NULL
);
CREATE INDEX publishing_comments_articles ON ulak.publishing_comments (article_id, created_at, id);

-- Rows are added and never changed; they outlive the post.
CREATE TABLE ulak.publishing_history (
    seq BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, article_id TEXT NOT NULL, at BIGINT NOT NULL,
    from_status TEXT NOT NULL, to_status TEXT NOT NULL, publication_id TEXT NOT NULL,
    cause TEXT NOT NULL, actor TEXT NOT NULL
);
CREATE INDEX publishing_history_articles ON ulak.publishing_history (article_id, seq);
