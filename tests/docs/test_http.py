"""docs/reference/http.md says which routes there are, who may call them, and how errors come."""

import re

from tests.docs.pages import DOCS
from ulak import errors
from ulak.web.access import ACCESS, KNOWN, PUBLIC
from ulak.web.problems import STATUS

PAGE = DOCS / "reference" / "http.md"

ABOUT = {"job": "one job", "jobs": "the caller's jobs", "all": "the whole installation"}
NEEDS = {PUBLIC: "nothing", KNOWN: "a credential"}


def routes() -> str:
    """The table of routes, as the page must have it."""
    rows = [
        f"| `{line.method} {written(line.path)}` | {NEEDS.get(line.scope, f'`{line.scope}`')} | "
        f"{'' if line.is_public else ABOUT[line.about]} |"
        for line in ACCESS.values()
    ]
    return "\n".join(["| Route | Needs | Is about |", "| --- | --- | --- |", *rows])


def codes() -> str:
    """The table of codes, as the page must have it."""
    rows = [
        f"| `{kind.code}` | {STATUS[kind].value} | {sentence(kind)} |"
        for kind in sorted(STATUS, key=lambda kind: (STATUS[kind], kind.code))
    ]
    return "\n".join(["| Code | Status | Means |", "| --- | --- | --- |", *rows])


def sentence(kind: type[errors.UlakError]) -> str:
    first = (kind.__doc__ or "").strip().partition("\n\n")[0]
    return re.sub(r"\s+", " ", first)


def written(path: str) -> str:
    return re.sub(r":\w+}", "}", path)


def part(name: str) -> str:
    found = re.search(rf"<!-- {name} -->\n\n(.*?)\n\n<!-- end -->", PAGE.read_text("utf-8"), re.S)
    assert found is not None, f"http.md lacks its part {name}"
    return found[1]


def test_the_page_has_every_route_and_who_may_call_it() -> None:
    assert part("routes") == routes(), f"the page must say:\n\n{routes()}"


def test_the_page_has_every_code_and_its_status() -> None:
    assert part("codes") == codes(), f"the page must say:\n\n{codes()}"


def test_what_the_page_says_to_type_is_served() -> None:
    known = {
        (method, re.sub(r"{\w+}", "[^/]+", written(path)))
        for method, path in ACCESS
    }  # fmt: skip
    typed = re.findall(r"curl .*?(?:-X (\w+) )?[\"']?\$ULAK(/[^\s\"'?]*)", PAGE.read_text("utf-8"))
    assert typed
    for method, path in typed:
        shown = path.replace("$JOB", "JOB")
        wanted = method or "GET"
        assert any(m == wanted and re.fullmatch(p, shown) for m, p in known), (wanted, path)
