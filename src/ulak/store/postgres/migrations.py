"""The schema and its versions: numbered SQL files, forward only."""

from __future__ import annotations

from importlib.resources import files

from psycopg import errors

from ulak.errors import StoreError
from ulak.store.postgres.connections import Session

OLDEST_SERVER = 14
"""The oldest PostgreSQL whose partitions, statistics and statements are those we use."""

NEWEST = 4
"""The schema that this release reads and writes; the number of the last file of `schema/`."""

# Whoever creates or upgrades the schema does it alone; the number is "ulak" in letters.
ALONE = f"SELECT pg_advisory_xact_lock({int.from_bytes(b'ulak', 'big')})"
HAS_VERSION = "SELECT to_regclass('ulak.schema_version') IS NOT NULL"
VERSION = "SELECT version FROM ulak.schema_version"
PREPARE = """
    CREATE SCHEMA IF NOT EXISTS ulak;
    CREATE TABLE IF NOT EXISTS ulak.schema_version (version integer NOT NULL);
    INSERT INTO ulak.schema_version SELECT 0 WHERE NOT EXISTS (SELECT FROM ulak.schema_version)
"""


def version_of(db: Session) -> int:
    """Answer the version of the schema, 0 when there is none."""
    found = db.row(HAS_VERSION)
    if found is None or not found[0]:
        return 0
    version = db.row(VERSION)
    return 0 if version is None else int(version[0])


def create_or_check(db: Session) -> None:
    """Create the schema where there is none; refuse one of another version.

    Raises:
        StoreError: naming both versions and the cure.
    """
    check_server(db)
    version = version_of(db)
    if version == 0:
        upgrade(db)
    elif version < NEWEST:
        raise StoreError(
            f"the database is at schema {version}, this ulak needs {NEWEST}; run `ulak migrate`"
        )
    elif version > NEWEST:
        raise StoreError(
            f"the database is at schema {version}, this ulak knows {NEWEST}: a newer release has "
            "run `ulak migrate` on it; install that release"
        )


def check_server(db: Session) -> None:
    """Refuse a server that is too old.

    Raises:
        StoreError: naming its version and ours.
    """
    version = db.connection.info.server_version
    if version < OLDEST_SERVER * 10_000:
        raise StoreError(
            f"the server is PostgreSQL {version // 10_000}.{version % 10_000}, ulak needs "
            f"{OLDEST_SERVER} or newer; upgrade the server"
        )


def upgrade(db: Session) -> tuple[int, int]:
    """Bring the schema to this release, all of it or nothing; answer the versions.

    Raises:
        StoreError: the server is too old, or the role may not do this; it says who may.
    """
    check_server(db)
    try:
        db.plainly("BEGIN")
        db.execute(ALONE)
        before = version_of(db)
        if before < NEWEST:
            db.plainly(PREPARE)
            for version in range(before + 1, NEWEST + 1):
                db.plainly(script(version))
                db.plainly(f"UPDATE ulak.schema_version SET version = {version}")
        db.plainly("COMMIT")
    except errors.InsufficientPrivilege as error:
        user, name = db.connection.info.user, db.connection.info.dbname
        raise StoreError(
            f"role {user} may not create or change the schema ulak in database {name} "
            f"({error.diag.message_primary}); run `ulak migrate` as a role that may, or let "
            f"its owner GRANT CREATE ON DATABASE {name} TO {user}"
        ) from error
    return before, max(before, NEWEST)


def script(version: int) -> str:
    """Answer the statements that lead from the version before to this one."""
    path = files(__package__) / "schema" / f"{version:04}.sql"
    return path.read_text(encoding="utf-8")
