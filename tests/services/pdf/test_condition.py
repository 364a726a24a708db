"""What `ulak doctor` says of PDF rendering: settings, and what is weaker on this machine."""

import pytest

from ulak.services.pdf.browser import ground
from ulak.services.pdf.condition import condition
from ulak.settings import Settings


def test_every_setting_is_told_with_its_source_and_no_secret_is_shown() -> None:
    found = condition(
        Settings(),
        {"PDF_HARD_TIMEOUT": "30", "S3_SECRET_ACCESS_KEY": "not to be seen", "PDF_MAX_PAGES": ""},
    )
    assert found.settings["PDF_HARD_TIMEOUT"] == ("30 s", "PDF_HARD_TIMEOUT")
    assert found.settings["PDF_MAX_PAGES"] == ("500", "default")
    assert found.settings["PDF_TEMPLATE_ALLOWLIST"] == ("none", "default")
    assert found.settings["S3_SECRET_ACCESS_KEY"] == ("set", "S3_SECRET_ACCESS_KEY")
    assert "not to be seen" not in repr(found)


@pytest.mark.shows("P-32")
def test_a_machine_without_user_namespaces_is_told_what_is_weaker_and_how_to_mend_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usual = set(condition(Settings(), {}).notes)
    monkeypatch.setattr(ground, "has_user_namespaces", lambda uid: False)
    told = set(condition(Settings(), {}).notes) - usual
    assert any("user.max_user_namespaces" in note for note in told)
    assert all(";" in note for note in told), "each says how to mend it"


@pytest.mark.shows("P-32")
def test_a_machine_without_a_browser_is_told_so_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ground, "find_browser", lambda executable, *, uid=None: None)
    assert "install a browser" in condition(Settings(), {}).notes[0]
