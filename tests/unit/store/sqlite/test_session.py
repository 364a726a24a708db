"""SQLite runs the statements that both databases share."""

import pytest

from ulak.store.sql.reads import IN_ITS_MONTH, WITHOUT_DATE
from ulak.store.sqlite import SqliteStore
from ulak.store.sqlite.session import translate


@pytest.mark.parametrize(
    ("shared", "own"),
    [
        ("SELECT n FROM ulak.limits WHERE name = %s::text", "SELECT n FROM limits WHERE name = ?"),
        ("x = %(id)s::uuid AND y LIKE '%%/%%'", "x = :id AND y LIKE '%/%'"),
        ("EXISTS (SELECT FROM ulak.jobs)", "EXISTS (SELECT 1 FROM jobs)"),
        ("SELECT 1 FROM ulak.rates FOR UPDATE SKIP LOCKED", "SELECT 1 FROM rates"),
        ("SELECT 1 FROM ulak.jobs FOR NO KEY UPDATE OF j", "SELECT 1 FROM jobs"),
        ("FROM ulak.jobs /* INDEXED BY jobs_waking */", "FROM jobs INDEXED BY jobs_waking"),
        (
            "starts_with(lane, %(term_1)s::text)",
            "substr(lane, 1, length(:term_1)) = :term_1",
        ),
        (f"job_id = %(id)s::uuid {IN_ITS_MONTH}", "job_id = :id "),
        (f"NOT ({WITHOUT_DATE})", "NOT (substr(id, 7, 1) NOT BETWEEN x'70' AND x'7f')"),
        ("sum(jobs)::bigint", "sum(jobs)"),
    ],
)
def test_a_shared_statement_is_written_as_sqlite_reads_it(shared: str, own: str) -> None:
    assert translate(shared) == own


def test_a_shared_write_counts_the_rows_that_it_touched(store: SqliteStore) -> None:
    store.keep_handlers([])
    touched = store._write(
        "handlers", lambda t: t.db.touch("DELETE FROM ulak.handlers WHERE name = %s::text", ("",))
    )
    assert touched == 0
