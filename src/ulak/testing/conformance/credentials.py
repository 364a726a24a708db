"""Credentials: keys, people and links; each change guarded by a version and audited."""

from __future__ import annotations

import json
from functools import partial

import pytest

from ulak.clock import SECOND
from ulak.store.protocol import CredentialRow
from ulak.testing.conformance.desk import Desk, Reopen, Suite, at_once

HASH = "5f" * 32
BY_ADA = {"actor": "ada", "note": "because"}


def credential(desk: Desk, id: str = "ab12cd34", *, kind: str = "key") -> CredentialRow:
    """Make a credential without storing it."""
    return CredentialRow(
        kind, id, "ci", "acme", "operator viewer", "jobs:read", HASH, desk.now, "ada",
        desk.now + 60 * SECOND, None, None, 1,
    )  # fmt: skip


def add(desk: Desk, row: CredentialRow) -> CredentialRow:
    """Store a credential that must be new."""
    assert desk.store.add_credential(row, act="created", **BY_ADA)
    return row


def change(desk: Desk, row: CredentialRow) -> bool:
    return desk.store.change_credential(row, act="revoked", **BY_ADA)


class TestCredentials(Suite):
    """What is stored is what was given; of two that change it at once, one wins."""

    def test_a_credential_is_found_as_it_was_given(self, desk: Desk) -> None:
        row = add(desk, credential(desk))
        assert desk.store.find_credential("key", row.id) == row
        assert desk.store.find_credential("key", "other") is None
        assert desk.store.find_credential("user", row.id) is None

    def test_an_id_is_taken_once_in_its_kind(self, desk: Desk) -> None:
        row = add(desk, credential(desk))
        other = row._replace(name="other", version=7)
        assert not desk.store.add_credential(other, act="created", **BY_ADA)
        assert desk.store.find_credential("key", row.id) == row
        assert len(desk.store.audit_trail()) == 1
        add(desk, credential(desk, kind="link"))

    def test_no_tenant_is_another_than_the_empty_one(self, desk: Desk) -> None:
        for id, tenant in (("all", None), ("unnamed", ""), ("acme", "acme")):
            add(desk, credential(desk, id)._replace(tenant=tenant))
        found = {row.id: row.tenant for row in desk.store.credentials("key")}
        assert found == {"all": None, "unnamed": "", "acme": "acme"}

    def test_the_credentials_of_a_kind_come_by_id_revoked_and_expired_ones_too(
        self, desk: Desk
    ) -> None:
        for id in ("b", "a_", "C", "a0", "ä"):
            add(desk, credential(desk, id)._replace(revoked_at=desk.now, expires_at=desk.now))
        add(desk, credential(desk, kind="user"))
        assert [row.id for row in desk.store.credentials("key")] == ["C", "a0", "a_", "b", "ä"]

    def test_a_change_is_stored_whole_with_the_next_version(self, desk: Desk) -> None:
        row = add(desk, credential(desk))
        new = row._replace(
            name="cd", tenant=None, roles="viewer", scopes="", hash="6e" * 32, expires_at=None,
            revoked_at=desk.now,
        )  # fmt: skip
        assert change(desk, new)
        assert desk.store.find_credential("key", row.id) == new._replace(version=2)

    def test_a_change_of_what_has_changed_meanwhile_is_refused(self, desk: Desk) -> None:
        row = add(desk, credential(desk))
        assert change(desk, row._replace(name="first"))
        assert not change(desk, row._replace(name="second"))
        assert not change(desk, row._replace(name="third", version=3))
        assert not change(desk, credential(desk, "nobody"))
        stored = desk.store.find_credential("key", row.id)
        assert stored is not None
        assert (stored.name, stored.version) == ("first", 2)
        assert [line.act for line in desk.store.audit_trail()] == ["revoked", "created"]

    def test_of_many_threads_that_spend_a_link_exactly_one_wins(self, desk: Desk) -> None:
        for n in range(10):
            row = add(desk, credential(desk, f"link-{n}", kind="link"))
            spent = row._replace(revoked_at=desk.now)
            assert sorted(at_once(*[partial(change, desk, spent)] * 4)) == [0, 0, 0, 1]
        acts = [line.act for line in desk.store.audit_trail()]
        assert acts.count("revoked") == 10

    def test_of_many_threads_that_add_one_id_exactly_one_wins(self, desk: Desk) -> None:
        row = credential(desk)

        def once() -> bool:
            return desk.store.add_credential(row, act="created", **BY_ADA)

        assert sorted(at_once(*[once] * 4)) == [0, 0, 0, 1]
        assert len(desk.store.audit_trail()) == 1

    def test_each_change_is_audited_with_what_was_before_and_without_hashes(
        self, desk: Desk
    ) -> None:
        row = add(desk, credential(desk))
        change(desk, row._replace(revoked_at=desk.now + 1, hash="6e" * 32))
        revoked, created = desk.store.audit_trail(subject="credential/key/ab12cd34")
        assert (created.actor, created.act, created.note) == ("ada", "created", "because")
        assert (revoked.actor, revoked.act, revoked.at) == ("ada", "revoked", desk.now)
        first, then = json.loads(created.details), json.loads(revoked.details)
        assert first.pop("before") is None
        assert then.pop("before") == first
        assert first == {
            "name": "ci", "tenant": "acme", "roles": "operator viewer", "scopes": "jobs:read",
            "created_at": desk.now, "created_by": "ada", "expires_at": desk.now + 60 * SECOND,
            "revoked_at": None, "used_at": None, "version": 1,
        }  # fmt: skip
        assert then == first | {"revoked_at": desk.now + 1, "version": 2}

    def test_a_use_is_kept_never_backwards_and_moves_no_version(self, desk: Desk) -> None:
        row = add(desk, credential(desk))
        for at, kept in ((50, 50), (40, 50), (60, 60)):
            desk.store.note_use("key", row.id, at)
            assert desk.store.find_credential("key", row.id) == row._replace(used_at=kept)
        desk.store.note_use("key", "nobody", 70)
        assert len(desk.store.audit_trail()) == 1

    def test_a_refusal_is_audited_whether_there_is_such_a_credential_or_not(
        self, desk: Desk
    ) -> None:
        row = add(desk, credential(desk, kind="user"))
        for id in (row.id, "nobody"):
            desk.store.note_refusal("user", id, act="refused", actor="anonymous", note="from ::1")
            line = desk.store.audit_trail(subject=f"credential/user/{id}")[0]
            assert (line.act, line.actor, line.note) == ("refused", "anonymous", "from ::1")
            assert line.at == desk.now
            assert json.loads(line.details) == {}
        assert desk.store.find_credential("user", row.id) == row

    def test_a_change_does_not_lose_a_use_that_was_noted_meanwhile(self, desk: Desk) -> None:
        row = add(desk, credential(desk))
        desk.store.note_use("key", row.id, 50)
        assert change(desk, row._replace(name="cd"))
        stored = desk.store.find_credential("key", row.id)
        assert stored == row._replace(name="cd", used_at=50, version=2)

    def test_what_expired_before_a_date_is_forgotten_and_nothing_else(self, desk: Desk) -> None:
        for id, expires_at in (("over", 9), ("now", 10), ("later", 11), ("never", None)):
            add(desk, credential(desk, id, kind="link")._replace(expires_at=expires_at))
        add(desk, credential(desk, "over")._replace(expires_at=9))
        assert desk.store.forget_credentials("link", before=10) == 1
        assert desk.store.forget_credentials("link", before=10) == 0
        assert [row.id for row in desk.store.credentials("link")] == ["later", "never", "now"]
        assert [row.id for row in desk.store.credentials("key")] == ["over"]

    def test_another_process_sees_a_change_at_once(self, desk: Desk, reopen: Reopen) -> None:
        if not desk.store.features.shared:
            pytest.skip("this store serves one process")
        row = add(desk, credential(desk))
        other = reopen()
        other.open()
        try:
            assert other.find_credential("key", row.id) == row
            change(desk, row._replace(revoked_at=desk.now))
            seen = other.find_credential("key", row.id)
            assert seen is not None
            assert seen.revoked_at == desk.now
            assert not other.change_credential(row, act="revoked", **BY_ADA)
        finally:
            other.close()
