"""Names, URLs, addresses and variables: what may pass, and in which spelling."""

from __future__ import annotations

import html
import re
import string
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markupsafe import Markup

from ulak.errors import BadInput
from ulak.services.pdf.document import UrlBlocked
from ulak.services.pdf.model import PdfErrorCode, PermanentPdfError
from ulak.services.pdf.security import template_input, urls
from ulak.services.pdf.security.template_input import (
    find_unprintable,
    must_be_listed,
    sanitize_html_variables,
    validate_template,
)
from ulak.services.pdf.security.urls import (
    BadScheme,
    BadUrl,
    UrlPatterns,
    compile_pattern,
    is_public,
    parse,
    validate_url,
)

NAMES = st.text(string.ascii_letters + string.digits + "_-", min_size=1, max_size=40)
HOSTS = st.from_regex(r"[a-z][a-z0-9]{0,9}(\.[a-z][a-z0-9]{0,9}){1,3}", fullmatch=True)
PATHS = st.lists(st.text(string.ascii_letters + string.digits + "-_", max_size=8), max_size=4)
URLS = st.builds(
    lambda scheme, host, path: f"{scheme}://{host}/" + "/".join(path),
    st.sampled_from(["http", "https"]), HOSTS, PATHS,
)  # fmt: skip


def normalise(url: str) -> str:
    """Write a URL in its one spelling."""
    return str(parse(url))


# P-P5


@pytest.mark.shows("P-P5", "P-26")
@settings(max_examples=200, deadline=None)
@given(listed=st.sets(NAMES, max_size=5), other=NAMES)
def test_only_listed_names_are_accepted(listed: set[str], other: str) -> None:
    """Feature: pdf-render-worker, Property 5: allow-lists accept what they list and nothing else"""
    assert all(validate_template(name, listed) for name in listed)
    assert validate_template(other, listed) == (other in listed)
    assert validate_template(other, ()) is False
    with pytest.raises(PermanentPdfError) as refused:
        must_be_listed(other, ())
    assert refused.value.code == PdfErrorCode.TEMPLATE_ERROR
    assert not any(validate_template(f"{name}/x", {f"{name}/x"}) for name in listed)


@pytest.mark.shows("P-P5", "P-27")
@settings(max_examples=200, deadline=None)
@given(listed=st.sets(URLS, max_size=4), other=URLS)
def test_only_listed_urls_are_accepted(listed: set[str], other: str) -> None:
    """Feature: pdf-render-worker, Property 5: allow-lists accept what they list and nothing else"""
    allowed = [re.escape(normalise(url)) for url in listed]
    assert all(validate_url(url, allowed) for url in listed)
    assert validate_url(other, allowed) == (normalise(other) in {normalise(u) for u in listed})
    assert validate_url(other, ()) is False
    with pytest.raises(UrlBlocked):
        UrlPatterns(()).check(other)
    assert {str(UrlPatterns(allowed).check(url)) for url in listed} == set(map(normalise, listed))


# P-P6

PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False)
TEXTS = st.text(st.characters(), max_size=60)
KEYS = st.from_regex(r"[a-z][a-z0-9_]{0,9}", fullmatch=True)
VALUES = st.recursive(
    PLAIN | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=20,
)


def unescaped(value: Any) -> Any:
    if isinstance(value, str):
        assert isinstance(value, Markup)
        assert not set(value) & set("<>\"'")
        assert not re.search(r"&(?!amp;|lt;|gt;|#34;|#39;)", value)
        # html.unescape would also read what the input itself wrote as an entity by number.
        return re.sub(r"&(?:amp|lt|gt|#34|#39);", lambda found: html.unescape(found[0]), value)
    if isinstance(value, dict):
        return {key: unescaped(inner) for key, inner in value.items()}
    return [unescaped(inner) for inner in value] if isinstance(value, list) else value


@pytest.mark.shows("P-P6", "P-31")
@settings(max_examples=300, deadline=None)
@given(variables=st.dictionaries(KEYS, VALUES, max_size=5))
def test_escaping_loses_nothing_and_leaves_no_markup(variables: dict[str, Any]) -> None:
    """Feature: pdf-render-worker, Property 6: escaping is complete and not lossy"""
    sanitized = sanitize_html_variables(variables)
    assert unescaped(sanitized) == variables
    assert repr(unescaped(sanitized)) == repr(variables)  # 1, 1.0 and True are equal, not the same
    assert sanitize_html_variables(sanitized) == sanitized


# Names


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\\b", "a b", "ş", "a\n", "x" * 201])
@pytest.mark.shows("P-26")
def test_what_is_no_name_is_rejected_even_when_listed(name: str) -> None:
    assert not validate_template(name, {name})


@pytest.mark.shows("P-26")
def test_a_list_that_is_one_text_allows_no_part_of_it() -> None:
    assert not validate_template("voice", "invoice")


# URLs

SPELLINGS = {
    "HTTP://EXAMPLE.com": "http://example.com/",
    "https://example.com:443/a": "https://example.com/a",
    "https://example.com:8443/a": "https://example.com:8443/a",
    "http://example.com:/": "http://example.com/",
    "http://example.com/a/../../b/./c": "http://example.com/b/c",
    "http://example.com/a/%2E%2e/b": "http://example.com/b",
    "http://example.com/a/..": "http://example.com/",
    "http://example.com/%7euser/%c3%a7": "http://example.com/~user/%C3%A7",
    "http://example.com/ç?ş=1#part": "http://example.com/%C3%A7?%C5%9F=1",
    "http://example.com/100%": "http://example.com/100%25",
    "http://example.com?q=a\\b": "http://example.com/?q=a%5Cb",
    "http://example.com./": "http://example.com/",
    "http://Bücher.example/": "http://xn--bcher-kva.example/",
    "http://example。com/": "http://example.com/",
    "http://ex%61mple.com/": "http://example.com/",
    "http://2130706433/": "http://127.0.0.1/",
    "http://0177.0.0.1/": "http://127.0.0.1/",
    "http://0x7f.1/": "http://127.0.0.1/",
    "http://0x7F000001/": "http://127.0.0.1/",
    "http://127.1/": "http://127.0.0.1/",
    "http://\uff11\uff12\uff17.0.0.1/": "http://127.0.0.1/",
    "http://127%2e0%2e0%2e1/": "http://127.0.0.1/",
    "http://[0:0::1]/": "http://[::1]/",
    "http://[::FFFF:127.0.0.1]:81/": "http://[::ffff:7f00:1]:81/",
}


@pytest.mark.parametrize(("given_url", "spelt"), SPELLINGS.items())
@pytest.mark.shows("P-28")
def test_a_url_has_one_spelling(given_url: str, spelt: str) -> None:
    assert normalise(given_url) == spelt
    assert normalise(spelt) == spelt


@pytest.mark.parametrize(
    "url",
    [
        "http://user@example.com/", "http://user:word@example.com/", "http://a%40example.com/",
        "http://example.com\\@evil.example/", "http:\\\\example.com/", "http:/example.com/",
        "http:example.com", "http://", "http:///example.com/", "http://exa mple.com/",
        "http://exam\tple.com/", "http://example.com/\n", " http://example.com/",
        "http://example.com/\x7f", "http://example.com/\ud800", "http://[fe80::1%25eth0]/",
        "http://[fe80::1%eth0]/", "http://[::1", "http://[::1]x/", "http://[1.2.3.4]/",
        "http://1.2.3.4.5/", "http://1.2.3.256/", "http://4294967296/", "http://08.0.0.1/",
        "http://example.0x1/", "http://example.com:0/", "http://example.com:65536/",
        "http://example.com:8a/", "http://example.com:٨٠/", "http://exa%2fmple.com/",
        "http://exa%2523mple.com/", "http://example..com/", "http://xn--a-.example/",
        "http://example.com/a/..%2fb", "http://example.com/..%5c..%5cb", "http://%ff.example/",
        "http://example.com/" + "a" * 2048, "http://" + "a" * 64 + ".example/",
    ],
)  # fmt: skip
@pytest.mark.shows("P-28")
def test_what_others_may_read_differently_is_refused(url: str) -> None:
    with pytest.raises(BadUrl):
        normalise(url)
    assert not validate_url(url, [".*"])


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd", "ftp://example.com/", "javascript:alert(1)", "chrome://version",
        "view-source:http://example.com/", "blob:https://example.com/x", "data:text/html,x",
        "ws://example.com/", "//example.com/", "example.com", "", "jar:http://example.com/",
    ],
)  # fmt: skip
@pytest.mark.shows("P-27")
def test_other_schemes_never_pass_whatever_the_list_says(url: str) -> None:
    with pytest.raises(BadScheme):
        normalise(url)
    assert not validate_url(url, [".*", re.escape(url)])


@settings(max_examples=300, deadline=None)
@given(
    st.text(st.sampled_from("ab%2eEfF/.\\?#@:[]0x7ş "), max_size=30).map("http://a.example/".__add__)
    | st.text(st.sampled_from("ab%2eE.0x1789ş\uff11。-"), max_size=20).map("http://".__add__)
)  # fmt: skip
def test_the_one_spelling_is_its_own(url: str) -> None:
    try:
        spelt = normalise(url)
    except BadUrl:
        return
    assert spelt.isascii()
    assert normalise(spelt) == spelt


@pytest.mark.shows("P-27")
def test_a_pattern_must_match_all_of_the_url() -> None:
    allowed = [r"https://cdn\.example\.com/.*"]
    assert validate_url("HTTPS://CDN.example.com:443/x.png", allowed)
    for url in (
        "https://cdn.example.com.evil.example/x.png",
        "https://evil.example/?https://cdn.example.com/x.png",
        "https://cdnxexample.com/x.png",
        "http://cdn.example.com/x.png",
    ):
        assert not validate_url(url, allowed)


ATOMS = st.sampled_from(["a", "b", "[ab]", "[^a]", ".", r"\d", r"\w", r"[\da-]", "(?:ab)"])
REGEXES = st.recursive(
    ATOMS,
    lambda inner: (
        st.builds("({}|{})".format, inner, inner)
        | st.builds("{}{}".format, inner, inner)
        | st.builds(
            "(?:{}){}".format, inner, st.sampled_from(["*", "+", "?", "{1,3}", "{2}", "+?"])
        )
    ),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None)
@given(pattern=REGEXES, text=st.text("ab1/", max_size=8))
def test_patterns_mean_what_python_says_they_mean(pattern: str, text: str) -> None:
    assert bool(compile_pattern(pattern).fullmatch(text)) == bool(re.fullmatch(pattern, text))


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        (r"(?i)HTTP://A/[x-z]+\d", "http://a/XyZ7", True),
        (r"^a(?:b|cd){2}$", "acdb", True),
        (r"^a(?:b|cd){2}$", "acd", False),
        (r"a$b", "ab", False),
        (r"a{2,}", "a", False),
        (r"(?P<n>[^/]*)/\S", "/x", True),
        (r"()*a", "a", True),
    ],
)
def test_patterns_know_flags_anchors_and_counts(pattern: str, text: str, matches: bool) -> None:
    assert (compile_pattern(pattern).fullmatch(text) is not None) is matches


@pytest.mark.parametrize("pattern", [r"http://a\.example/(a+)+b", r"(.*)*(.*)*(.*)*(.*)*!"])
def test_no_pattern_takes_exponential_time(pattern: str) -> None:
    # Python's own matcher does not come back from these.
    url = "http://a.example/" + "a" * (urls.LONGEST - 20)
    assert not validate_url(url, [pattern])


@pytest.mark.parametrize("pattern", [r"(?=a)b", r"(a)\1", r"(?>a)", r"a*+", "(", "a{9999}"])
def test_patterns_that_cannot_be_bounded_are_refused(pattern: str) -> None:
    with pytest.raises(BadInput, match="URL pattern"):
        validate_url("http://a.example/", [pattern])


# Addresses


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.255.255.255", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.0.1",
        "169.254.169.254", "169.254.0.1", "0.1.2.3", "0.255.255.255", "100.64.0.1",
        "100.127.255.255",
        "192.0.0.1", "192.0.2.1", "198.18.0.1", "198.19.255.255", "198.51.100.1", "203.0.113.1",
        "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255", "168.63.129.16",
        "::", "::1", "::2", "::7f00:1", "::ffff:127.0.0.1", "::ffff:10.0.0.1",
        "::ffff:169.254.169.254", "fc00::1", "fd00:ec2::254", "fe80::1", "febf::1", "fec0::1",
        "ff02::1", "100::1", "2001::1", "2001:0:7f00:1::", "2001:db8::1", "2002:7f00:1::",
        "64:ff9b::7f00:1", "64:ff9b:1::1", "fe80::1%eth0", "4000::1", "", "example.com", "127.1",
    ],
)  # fmt: skip
@pytest.mark.shows("P-29")
def test_an_address_that_is_not_public_is_refused(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize(
    "address",
    [
        "1.1.1.1", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "126.255.255.255",
        "128.0.0.0", "168.63.129.15", "168.63.129.17", "169.253.255.255", "169.255.0.0",
        "172.15.255.255", "172.32.0.0", "192.0.1.0", "192.0.3.0", "198.17.255.255", "198.20.0.0",
        "223.255.255.255", "2606:4700::1111", "2001:4860:4860::8888", "2003::1", "::ffff:1.1.1.1",
    ],
)  # fmt: skip
@pytest.mark.shows("P-29")
def test_its_public_neighbours_are_not(address: str) -> None:
    assert is_public(address)


@pytest.mark.shows("P-29")
def test_both_ends_of_every_range_are_refused() -> None:
    for network in urls.REFUSED:
        assert not is_public(network[0])
        assert not is_public(network[-1])


# Variables


@pytest.mark.shows("P-31")
def test_scalars_keep_their_type_and_the_variables_given_are_left_alone() -> None:
    variables = {"a": [1, True, 1.5, None, "<"], "b": {"c": "&amp;"}}
    sanitized = sanitize_html_variables(variables)
    assert [type(value) for value in sanitized["a"]] == [int, bool, float, type(None), Markup]
    assert sanitized["b"]["c"] == "&amp;amp;"
    assert variables == {"a": [1, True, 1.5, None, "<"], "b": {"c": "&amp;"}}


@pytest.mark.parametrize("key", ["", "_x", "1x", "a-b", "a.b", "__class__", "a b", "ş", "x" * 101])
@pytest.mark.shows("P-31")
def test_a_name_that_is_none_is_refused_and_not_repeated(key: str) -> None:
    for variables in ({key: "v"}, {"outer": [{key: "v"}]}):
        with pytest.raises(PermanentPdfError, match="a name") as caught:
            sanitize_html_variables(variables)
        assert not key or repr(key) not in str(caught.value)


def test_what_json_does_not_have_is_refused() -> None:
    with pytest.raises(PermanentPdfError, match=r"variable a\.b\[1\] is a bytes"):
        sanitize_html_variables({"a": {"b": [1, b"secret"]}})


def test_depth_and_number_of_values_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    deep: Any = "x"
    for _ in range(template_input.DEEPEST - 1):
        deep = [deep]
    sanitize_html_variables({"a": deep})
    with pytest.raises(PermanentPdfError, match="deep"):
        sanitize_html_variables({"a": [deep]})
    monkeypatch.setattr(template_input, "MOST_VALUES", 5)
    sanitize_html_variables({"a": [1, 2, 3, 4]})
    with pytest.raises(PermanentPdfError, match="more than 5 values"):
        sanitize_html_variables({"a": [1, 2, 3, 4, 5]})


def test_what_html_cannot_hold_is_found() -> None:
    assert find_unprintable({"a": ["fine", "😀\n"], "b": {"c": "\x01"}}) is None
    assert find_unprintable({"a": ["fine", "x\x00"]}) == "a[1]"
    assert find_unprintable({"b": {"c": "\udc00"}}) == "b.c"
