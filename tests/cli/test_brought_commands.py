"""Packages bring groups of commands, or add to ulak's own, and replace nothing."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.installed import Site

GROUP = """
import pathlib
import typer

pathlib.Path("imported").touch()
commands = typer.Typer()


@commands.command("{name}")
def one() -> None:
    "{help}"
    print("{says}")


@commands.command()
def other() -> None:
    ...
"""


def group(name: str = "check", says: str = "checked", help: str = "Check it.") -> str:
    return GROUP.format(name=name, says=says, help=help)


@pytest.fixture
def bring(site: Site) -> Callable[[str, str, str], None]:
    """Install a package whose commands stand under a name."""

    def install(package: str, name: str, code: str) -> None:
        module = package.replace("-", "_")
        site.install(package, f"[ulak.commands]\n{name} = {module}:commands\n", code)

    return install


def test_a_group_of_a_package_appears_without_importing_it(bring, run, tmp_path: Path) -> None:
    bring("acme-seals", "seal", group())
    said = run("--help")
    assert "seal" in said.out
    assert "package acme-seals" in " ".join(said.out.split())
    assert run("jobs", "--help").code == 0
    assert not (tmp_path / "imported").exists()
    assert run("seal", "check").out == "checked\n"
    assert "Check it." in run("seal", "--help").out
    assert run("seal", "nothing").code == 2
    assert run("seal").code == 2


def test_the_help_of_a_group_says_what_it_is(bring, run) -> None:
    code = group().replace("typer.Typer()", 'typer.Typer(help="Seals of documents.")')
    bring("acme-seals", "seal", code)
    said = run("seal", "--help").out
    assert "Seals of documents." in said
    assert "Commands of package" not in said
    proof = run("proof", "--help").out
    assert "Proofs of what happened to contract subjects." in proof


def test_commands_are_added_to_a_group_of_ulaks_own(bring, run, tmp_path: Path) -> None:
    bring("acme-posts", "outbox", group())
    assert run("--help").code == 0
    assert not (tmp_path / "imported").exists()
    said = run("outbox", "--help").out
    assert said.index("revive") < said.index("check")
    assert run("outbox", "check").out == "checked\n"


def test_a_command_of_ulaks_own_is_never_replaced(bring, run, tmp_path: Path) -> None:
    bring("sly", "outbox", group("dead", "sly", "Sly."))
    bring("slyer", "verify", group("check", "sly"))
    assert "Sly." not in run("outbox", "--help").out
    assert "gave up" in run("outbox", "dead", "--help").out
    assert "Replay every trail" in " ".join(run("verify", "--help").out.split())


@pytest.mark.parametrize(
    "order", [sorted, lambda names: sorted(names, reverse=True)], ids=["a-first", "c-first"]
)
def test_several_packages_share_a_group_until_they_bring_the_same(
    bring, run, monkeypatch: pytest.MonkeyPatch, order: Callable[[list[str]], list[str]]
) -> None:
    listed = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path=".": order(listed(path)))
    bring("acme-a", "seal", group("a", "of a").replace("def other", "def last"))
    bring("acme-b", "seal", group("b", "of b"))
    assert run("seal", "a").out == "of a\n"
    assert run("seal", "b").out == "of b\n"
    bring("acme-c", "seal", group("a", "of c"))
    answer = run("seal", "a")
    assert (answer.code, answer.out) == (1, "")
    assert 'package acme-a and package acme-c both bring "ulak seal a"' in answer.err
    assert run("seal", "b").out == "of b\n"


@pytest.mark.parametrize(
    ("code", "about"),
    [
        ("import not_installed", "No module named 'not_installed'"),
        ("commands = 7", "bad:commands is a int"),
        ("", "has no attribute 'commands'"),
    ],
    ids=["cannot-be-imported", "no-group", "nothing"],
)
def test_a_broken_package_takes_nothing_but_its_own_away(bring, run, code, about) -> None:
    bring("bad", "outbox", code)
    bring("good", "outbox", group())
    assert run("outbox", "check").out == "checked\n"
    assert run("outbox", "dead", "--help").code == 0
    said = run("outbox", "--help")
    assert said.code == 0
    assert "check" in said.out
    assert 'the commands "ulak outbox" of package bad cannot be' in said.err
    assert about in said.err
    answer = run("outbox", "nonsense")
    assert answer.code == 1
    assert answer.err.startswith("error: ")
    assert about in answer.err


def test_a_service_keeps_its_name(bring, site: Site, run) -> None:
    code = "from ulak.service import Service\nservice = Service('seal', attach=print)\n"
    site.install("acme-service", "[ulak.services]\nseal = acme_service:service\n", code)
    bring("acme-seals", "seal", group())
    assert 'the service "seal" has no commands' in run("seal", "check").err
    assert "acme_seals" not in sys.modules
