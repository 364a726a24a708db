"""Codes of links: good for one artifact of one job, for a while."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ulak.artifacts import DownloadLinks
from ulak.artifacts.signing import LINK_LIFE, LONGEST_LIFE, PURPOSE
from ulak.auth.tokens import Tokens
from ulak.clock import ManualClock
from ulak.errors import BadInput, Unauthenticated

KEY = "pdfs/4711/report.pdf"
SECOND = timedelta(seconds=1)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def links(clock: ManualClock) -> DownloadLinks:
    return DownloadLinks(b"k" * 32, clock)


def reason(links: DownloadLinks, code: str, key: str = KEY, job_id: str = "4711") -> str:
    """Why a code is refused."""
    with pytest.raises(Unauthenticated) as raised:
        links.must_allow(code, key, job_id)
    assert code not in str(raised.value)
    return raised.value.reason


@pytest.mark.shows("P-58")
def test_a_code_is_good_until_its_life_is_over(links: DownloadLinks, clock: ManualClock) -> None:
    code = links.make_code(KEY, "4711")
    links.must_allow(code, KEY, "4711")
    clock.advance(LINK_LIFE - timedelta(microseconds=1))
    links.must_allow(code, KEY, "4711")
    clock.advance(timedelta(microseconds=1))
    assert reason(links, code) == "expired"


@pytest.mark.shows("P-58")
def test_a_code_is_good_for_one_artifact_of_one_job(links: DownloadLinks) -> None:
    code = links.make_code(KEY, "4711")
    assert reason(links, code, job_id="4712") == "unknown"
    assert reason(links, code, key="pdfs/4711/other.pdf") == "unknown"


@pytest.mark.shows("P-58")
def test_where_one_field_ends_is_signed_too(links: DownloadLinks) -> None:
    code = links.make_code("pdfs/a", "b/c")
    assert reason(links, code, key="pdfs/a/b", job_id="c") == "unknown"


@pytest.mark.shows("P-58")
def test_the_end_of_a_code_cannot_be_moved(links: DownloadLinks, clock: ManualClock) -> None:
    ends_at, _, signature = links.make_code(KEY, "4711").partition(".")
    clock.advance(LINK_LIFE)
    assert reason(links, f"{int(ends_at) + 3600}.{signature}") == "unknown"


@pytest.mark.shows("P-58")
def test_processes_with_one_secret_take_each_others_codes_and_nobody_else_does(
    clock: ManualClock,
) -> None:
    def of(secret: str, purpose: str = PURPOSE) -> DownloadLinks:
        return DownloadLinks(Tokens(secret).derive(purpose), clock)

    code = of("s" * 32).make_code(KEY, "4711")
    of("s" * 32).must_allow(code, KEY, "4711")
    assert reason(of("t" * 32), code) == "unknown"
    assert reason(of("s" * 32, "bulk"), code) == "unknown"


@pytest.mark.parametrize(
    "code", ["", ".", "x", "1.2", "9" * 11 + "." + "A" * 43, "-1." + "A" * 43, "\u0661." + "A" * 43,
             "1." + "A" * 43 + "\n", "1." + "A" * 42 + "="],
)  # fmt: skip
def test_what_is_no_code_is_refused(links: DownloadLinks, code: str) -> None:
    with pytest.raises(Unauthenticated) as raised:
        links.must_allow(code, KEY, "4711")
    assert raised.value.reason == "malformed"


@given(place=st.integers(0, 53), letter=st.sampled_from("0123456789ABCxyz-_."))
def test_a_code_with_another_letter_is_refused(place: int, letter: str) -> None:
    links = DownloadLinks(b"k" * 32, ManualClock())
    code = links.make_code(KEY, "4711")
    changed = code[:place] + letter + code[place + 1 :]
    if changed != code:
        with pytest.raises(Unauthenticated):
            links.must_allow(changed, KEY, "4711")


@pytest.mark.shows("P-58")
@pytest.mark.parametrize("life", [timedelta(0), -SECOND, LONGEST_LIFE + SECOND])
def test_a_code_lives_a_second_to_an_hour(links: DownloadLinks, life: timedelta) -> None:
    with pytest.raises(BadInput):
        links.make_code(KEY, "4711", life)
    links.must_allow(links.make_code(KEY, "4711", LONGEST_LIFE), KEY, "4711")


def test_a_short_key_and_a_key_of_no_artifact_are_refused(links: DownloadLinks) -> None:
    with pytest.raises(BadInput):
        DownloadLinks(b"short")
    with pytest.raises(BadInput):
        links.make_code("../x", "4711")
