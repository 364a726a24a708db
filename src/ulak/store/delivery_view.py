"""A view of the deliveries of one handler, for a service that keeps rows of its own beside them.

Its columns are a promise, those of the tables are not: `position`, `key`, `data` and `answer` as
text, `at`, `state`, `tries`, `not_before`, `give_up_at`, `sent_at` and `error`. What is inserted
there becomes a delivery, with its past if it has one: so the rows of another outbox are moved. One
that is dead or refused stops its key, as with `block=True`.
"""

from __future__ import annotations

from typing import Final

_READ: Final = """
SELECT position, key, {data} AS data, at, state, tries, not_before, give_up_at, sent_at,
    {answer} AS answer, error
FROM {schema}.deliveries WHERE handler = '{handler}';
"""
# A place in the line is found when messages are taken, as for a caller's own transaction.
_WRITE: Final = """
    INSERT INTO {table}handlers (name, topic) VALUES ('{handler}', '{topic}')
    ON CONFLICT (name) DO NOTHING;
    INSERT INTO {table}deliveries (
        job_id, seq, n, key, topic, data, at, handler, state, tries, not_before, give_up_at,
        sent_at, error, open, head
    ) VALUES (
        {id}, 0, 0, NEW.key, '{topic}', {written}, NEW.at, '{handler}', NEW.state, NEW.tries,
        NEW.not_before, NEW.give_up_at, NEW.sent_at, NEW.error,
        CASE WHEN NEW.state IN ('pending', 'dead', 'refused') THEN 1 ELSE 0 END,
        CASE WHEN NEW.state = 'pending' THEN -1 ELSE 0 END
    );
"""
_SQLITE: Final = f"""
CREATE VIEW IF NOT EXISTS {{view}} AS {_READ}
CREATE TRIGGER IF NOT EXISTS {{view}}_takes INSTEAD OF INSERT ON {{view}} BEGIN {_WRITE} END;
"""
_POSTGRESQL: Final = f"""
CREATE OR REPLACE VIEW ulak.{{view}} AS {_READ}
CREATE OR REPLACE FUNCTION ulak.{{view}}_takes() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN {_WRITE} RETURN NEW; END
$$;
DROP TRIGGER IF EXISTS {{view}}_takes ON ulak.{{view}};
CREATE TRIGGER {{view}}_takes INSTEAD OF INSERT ON ulak.{{view}}
FOR EACH ROW EXECUTE FUNCTION ulak.{{view}}_takes();
"""


def make_script(dialect: str, *, view: str, handler: str, topic: str) -> str:
    """Return the statements that make a view, in a database that may have it already.

    Args:
        dialect: `sqlite` or `postgresql`.
        view: Its name.
        handler: It shows the deliveries to this one.
        topic: The topic of what is inserted.
    """
    named = {"view": view, "handler": handler, "topic": topic}
    if dialect == "sqlite":
        return _SQLITE.format(
            **named, schema="main", table="", data="CAST(data AS TEXT)",
            answer="CAST(answer AS TEXT)", id="randomblob(16)", written="CAST(NEW.data AS BLOB)",
        )  # fmt: skip
    return _POSTGRESQL.format(
        **named, schema="ulak", table="ulak.", data="convert_from(data, 'UTF8')",
        answer="convert_from(answer, 'UTF8')", id="gen_random_uuid()",
        written="convert_to(NEW.data, 'UTF8')",
    )  # fmt: skip
