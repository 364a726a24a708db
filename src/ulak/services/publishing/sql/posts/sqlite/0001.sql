-- oldest: 1
-- Posts, their tags and comments, and how each post came to its status. Times are microseconds.
CREATE TABLE publishing_articles (
    id TEXT NOT NULL PRIMARY KEY,
    slug TEXT NOT NULL UNIQUE,
    title TEXT NOT NULL, description TEXT NOT NULL, body TEXT NOT NULL, author_id TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('DRAFT', 'PENDING_PUBLISH', 'PUBLISHED', 'REJECTED', 'ERROR')),
    preview_url TEXT, publication_id TEXT, revision INTEGER NOT NULL,
    verdict TEXT CHECK (verdict IN ('approve', 'reject')),
    moderation_reason TEXT, error_message TEXT, sweeps INTEGER NOT NULL,
    stepped_at INTEGER, published_at INTEGER, created_at INTEGER NOT NULL, updated_at INTEGER NOT NULL
) STRICT;
CREATE INDEX publishing_articles_steps ON publishing_articles (status, stepped_at);
CREATE INDEX publishing_articles_newest ON publishing_articles (created_at, id);
CREATE INDEX publishing_articles_authors ON publishing_articles (author_id, created_at, id);

CREATE TABLE publishing_tags (
    article_id TEXT NOT NULL, tag TEXT NOT NULL, PRIMARY KEY (article_id, tag)
) STRICT, WITHOUT ROWID;
CREATE INDEX publishing_tags_tags ON publishing_tags (tag);

CREATE TABLE publishing_comments (
    id TEXT NOT NULL PRIMARY KEY, article_id TEXT NOT NULL, author_id TEXT NOT NULL,
    body TEXT NOT NULL, created_at INTEGER NOT NULL, updated_at INTEGER NOT NULL
) STRICT;
CREATE INDEX publishing_comments_articles ON publishing_comments (article_id, created_at, id);

-- Rows are added and never changed; they outlive the post.
CREATE TABLE publishing_history (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, article_id TEXT NOT NULL, at INTEGER NOT NULL,
    from_status TEXT NOT NULL, to_status TEXT NOT NULL, publication_id TEXT NOT NULL,
    cause TEXT NOT NULL, actor TEXT NOT NULL
) STRICT;
CREATE INDEX publishing_history_articles ON publishing_history (article_id, seq);
