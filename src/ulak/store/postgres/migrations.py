"""The schema and its versions: numbered SQL files, forward only."""

from __future__ import annotations

import logging
from importlib.resources import files
from time import sleep

from psycopg import errors

from ulak.errors import StoreError
from ulak.store.postgres.session import Session
from ulak.store.schemas import find_oldest, too_old

log = logging.getLogger("ulak.postgres")

# The oldest PostgreSQL whose partitions, statistics and statements are those we use.
OLDEST_SERVER = 14
# The schema that this release reads and writes; the number of the last file of `schema/`.
NEWEST = 10
# The first schema that stores which is the oldest that may run on it.
NAMES_OLDEST = 5

# A migration that waits for a table holds up everybody who comes after it. So it waits a moment,
# gives way for longer than that, and tries again: below the second after which the server would
# end a deadlock, so that the migration is what ends.
PATIENCE_MS = 100
PAUSE_S = 0.4
MOST_TRIES = 80

# Whoever creates or upgrades the schema does it alone; the number is "ulak" in letters.
ALONE = f"SELECT pg_advisory_xact_lock({int.from_bytes(b'ulak', 'big')})"
HAS_VERSION = "SELECT to_regclass('ulak.schema_version') IS NOT NULL"
VERSION = "SELECT version FROM ulak.schema_version"
OLDEST = "SELECT oldest FROM ulak.schema_version"
SHOWS_IDEMPOTENCY_KEYS = """
    SELECT EXISTS (
        SELECT FROM pg_trigger AS t JOIN pg_class AS c ON c.oid = t.tgrelid
        WHERE t.tgname = 'hos_idempotency_keys_deleted'
            AND c.relnamespace = to_regnamespace('public')
    )
"""
PREPARE = """
    CREATE SCHEMA IF NOT EXISTS ulak;
    CREATE TABLE IF NOT EXISTS ulak.schema_version (version integer NOT NULL);
    INSERT INTO ulak.schema_version SELECT 0 WHERE NOT EXISTS (SELECT FROM ulak.schema_version)
"""


def version_of(db: Session) -> int:
    if db.row(HAS_VERSION) != (True,):
        return 0
    version = db.row(VERSION)
    return 0 if version is None else int(version[0])


def oldest_of(db: Session) -> int:
    """Return the oldest schema whose release may run on the database, as migrations named it."""
    version = version_of(db)
    found = db.row(OLDEST) if version >= NAMES_OLDEST else None
    return version if found is None else int(found[0])


def shows_idempotency_keys(db: Session) -> bool:
    """Tell whether the view of idempotency keys is in the schema `public`."""
    return db.row(SHOWS_IDEMPOTENCY_KEYS) == (True,)


def create_or_check(db: Session) -> None:
    """Create the schema where there is none; refuse one that this release must not run on."""
    check_server(db)
    version = version_of(db)
    if version == 0:
        upgrade(db)
    elif version < NEWEST:
        raise StoreError(
            f"the database is at schema {version}, this ulak needs {NEWEST}; run `ulak migrate`"
        )
    elif version > NEWEST:
        _must_be_known(db)


def check_server(db: Session) -> None:
    version = db.connection.info.server_version
    if version < OLDEST_SERVER * 10_000:
        raise StoreError(
            f"the server is PostgreSQL {version // 10_000}.{version % 10_000}, ulak needs "
            f"{OLDEST_SERVER} or newer; upgrade the server"
        )


def upgrade(db: Session) -> tuple[int, int]:
    """Bring the schema to this release, all of it or nothing; return the versions.

    A database of a newer release stays as it is. Workers may run meanwhile: a table that they do
    not leave free in time is asked for again.

    Raises:
        StoreError: it cannot be done; the error says why, and what would help.
    """
    check_server(db)
    for tries in range(MOST_TRIES):
        try:
            return _upgrade(db)
        except (errors.LockNotAvailable, errors.DeadlockDetected) as error:
            in_the_way = error
            db.plainly("ROLLBACK")
            if not tries:
                log.warning(
                    "a transaction holds a table that must change; the migration tries again until "
                    "it is free",
                    extra={"error": error.diag.message_primary},
                )
            sleep(PAUSE_S)
    raise StoreError(
        "the schema was not changed: for "
        f"{MOST_TRIES * (PATIENCE_MS / 1000 + PAUSE_S):.0f} s a transaction has held a table that "
        f"must change ({in_the_way.diag.message_primary}); end it, or wait for it, and run "
        "`ulak migrate` again"
    ) from in_the_way


def _upgrade(db: Session) -> tuple[int, int]:
    try:
        db.plainly("BEGIN")
        db.execute(ALONE)
        before = version_of(db)
        _must_be_known(db)
        if before < NEWEST:
            db.plainly(f"SET LOCAL lock_timeout = {PATIENCE_MS}")
            db.plainly(PREPARE)
            for version in range(before + 1, NEWEST + 1):
                db.plainly(script(version))
                db.plainly(f"UPDATE ulak.schema_version SET version = {version}")
                if version >= NAMES_OLDEST:
                    oldest = find_oldest(script, version)
                    db.plainly(f"UPDATE ulak.schema_version SET oldest = {oldest}")
        db.plainly("COMMIT")
    except errors.InsufficientPrivilege as error:
        user, name = db.connection.info.user, db.connection.info.dbname
        raise StoreError(
            f"role {user} may not create or change the schema ulak in database {name} "
            f"({error.diag.message_primary}); run `ulak migrate` as a role that may, or let "
            f"its owner GRANT CREATE ON DATABASE {name} TO {user}"
        ) from error
    return before, max(before, NEWEST)


def _must_be_known(db: Session) -> None:
    if (oldest := oldest_of(db)) > NEWEST:
        raise StoreError(
            too_old("the database is", version_of(db), oldest=oldest, newest=NEWEST)
        )  # fmt: skip


def script(version: int) -> str:
    return (files(__package__) / "schema" / f"{version:04}.sql").read_text(encoding="utf-8")
