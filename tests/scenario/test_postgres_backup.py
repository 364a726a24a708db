"""A dump of PostgreSQL, restored elsewhere, is the same store."""

import subprocess
from pathlib import Path

from tests.conformance.stores import make_schema
from tests.databases import Databases
from tests.unit.engine import museum
from ulak.testing.servers import find_program


def test_a_dump_is_a_backup(databases: Databases, postgres_url: str, tmp_path: Path) -> None:
    file = str(tmp_path / "app.dump")
    with databases.lend(make_schema) as url:
        built = museum.build(url)
        jobs = {name: built.harness.trail(job_id) for name, job_id in built.ids.items()}
        dump = [find_program("pg_dump"), "--format=custom", f"--file={file}", url]
        subprocess.run(dump, check=True)
        built.harness.close()
    restore = [find_program("pg_restore"), "--clean", "--if-exists", f"--dbname={postgres_url}"]
    subprocess.run([*restore, file], check=True)
    restored = museum.reopened(built, postgres_url)
    with restored.harness as harness:
        assert {name: harness.trail(job_id) for name, job_id in built.ids.items()} == jobs
        assert harness.verify() == []
        assert harness.run(harness.engine.inspect.flows[0], {}).role == "done"
