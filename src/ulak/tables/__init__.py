"""Tables of a service's own, in the database of its engine.

    notes = Schema(
        "notes", folder=files(__package__) / "sql", version_table="acme_notes_schema",
        why="a note and its job are one transaction",
    )
    tables = Tables(engine, notes)

    with tables.writing() as connection:
        tables.execute(connection, "INSERT INTO {schema}.acme_notes (text) VALUES (?)", "hello")
    tables.read("SELECT text FROM {schema}.acme_notes")

`sql/sqlite/0001.sql` and `sql/postgresql/0001.sql` make them, before they are first used.
`docs/how-to/write-a-service.md` tells the rest.
"""

from ulak.tables.tables import Database, Row, Schema, Tables, database_of, shares_store
from ulak.tables.views import DeliveryView, JobView, TrailView

__all__ = [
    "Database",
    "DeliveryView",
    "JobView",
    "Row",
    "Schema",
    "Tables",
    "TrailView",
    "database_of",
    "shares_store",
]
