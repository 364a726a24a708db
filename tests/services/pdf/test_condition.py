"""What `ulak doctor` says of PDF rendering: settings, and what is weaker on this machine."""

from pathlib import Path

import pytest

from ulak.services.pdf import ground
from ulak.services.pdf.configuration import condition
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
    monkeypatch.setattr(ground, "has_user_namespaces", lambda uid: True)
    usual = set(condition(Settings(), {}).notes)
    monkeypatch.setattr(ground, "has_user_namespaces", lambda uid: False)
    told = set(condition(Settings(), {}).notes) - usual
    assert any("user.max_user_namespaces" in note for note in told)
    assert all(";" in note for note in told), "each says how to mend it"


@pytest.mark.shows("P-62")
def test_a_machine_without_the_fonts_that_are_pinned_is_told_which(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def told() -> str:
        monkeypatch.setattr(ground, "_FONTS", (str(tmp_path),))
        return "\n".join(condition(Settings(), {}).notes)

    assert "there are no fonts" in told()
    for name in ground.PINNED[:2]:
        (tmp_path / name).touch()
    assert "there is no LiberationMono-Regular.ttf" in told()
    assert "apt-get install fonts-liberation" in told()
    (tmp_path / ground.PINNED[2]).touch()
    assert "Liberation" not in told()


@pytest.mark.shows("P-32")
def test_a_machine_without_a_browser_is_told_so_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ground, "find_browser", lambda executable, *, uid=None: None)
    assert "install a browser" in condition(Settings(), {}).notes[0]


@pytest.mark.shows("P-32")
def test_what_only_a_start_shows_is_told_when_it_is_tried(tmp_path: Path) -> None:
    broken = tmp_path / "chromium"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(folder.stat().st_mode | 0o011)
    found = condition(Settings(), {"PDF_CHROMIUM": str(broken), "PDF_DRIVER": "devtools"})
    assert found.try_out is not None
    (said,) = found.try_out()
    assert "takes no PDF job" in said
    assert condition(Settings(), {"PDF_DRIVER": "devtools"}).try_out() == []
