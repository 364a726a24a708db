"""What SQLite and PostgreSQL share, written once: statements in PostgreSQL's words.

`ulak.store.sqlite.session` reads them to SQLite. Where the databases need different statements,
each of them has its own.
"""
