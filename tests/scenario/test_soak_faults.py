"""The faults of the soak in their shorter form: whether anything is lost or doubled, not how soon
the former rate is back, which `make soak` measures."""

from pathlib import Path

import pytest

from bench.soak.faults.__main__ import find_faults
from bench.soak.faults.frame import SHORT, run_fault
from ulak.testing.networks import NoNetwork

ALWAYS = {"sqlite": ["lock-file"], "postgres": ["stopped"]}
EVERY = [(store, name) for store in ALWAYS for name in find_faults(store)]


def strike(store: str, name: str, folder: Path) -> None:
    try:
        outcome = run_fault(find_faults(store)[name], store, folder, SHORT)
    except NoNetwork as error:
        pytest.skip(str(error))
    assert outcome.wrong == []


@pytest.mark.shows("E-83", "E-84")
@pytest.mark.parametrize("store", ALWAYS)
def test_nothing_is_lost_and_nothing_counts_twice_by_a_fault(store: str, tmp_path: Path) -> None:
    for name in ALWAYS[store]:
        strike(store, name, tmp_path)


@pytest.mark.sampled
@pytest.mark.parametrize(("store", "name"), EVERY)
def test_nothing_is_lost_and_nothing_counts_twice_by_any_fault(
    store: str, name: str, tmp_path: Path
) -> None:
    strike(store, name, tmp_path)
