"""The contract of services: public imports only, and no SQL on the engine's tables.

Everything is read from source text; nothing is imported. Exceptions of today stand in
`exceptions.txt`, which may only shrink: `python -m tests.architecture.contract` removes the lines
that are no longer needed and prints what is left to do.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).parents[2] / "src"
EXCEPTIONS: Final = Path(__file__).with_name("exceptions.txt")

PUBLIC: Final = (
    "ulak", "ulak.errors", "ulak.service", "ulak.kit", "ulak.kit.commands", "ulak.kit.clock",
    "ulak.kit.ids", "ulak.kit.bodies", "ulak.kit.breakers", "ulak.kit.config_files",
    "ulak.kit.drawings", "ulak.kit.files", "ulak.kit.logins", "ulak.kit.pages",
    "ulak.kit.processes", "ulak.kit.programs", "ulak.kit.addresses", "ulak.kit.sealing",
    "ulak.kit.texts", "ulak.kit.threads", "ulak.kit.workbooks", "ulak.kit.xml", "ulak.web",
    "ulak.control", "ulak.tables", "ulak.artifacts", "ulak.idempotency", "ulak.auth", "ulak.render",
    "ulak.settings",
)  # fmt: skip
"""What a service may import; docs/design.md, section 4. Some of these are still to come."""

IMPORTS: Final = "private imports"
SQL: Final = "engine sql"
OWNERS: Final = {IMPORTS: ("contracts", "pdf"), SQL: ("testing",)}
"""Who may have exceptions of a kind. No name is ever added: a new service starts without."""
SQL_ROOMS: Final = ("store", "engine")
OTHER_ROOMS: Final = ("services", "testing", "artifacts")
"""The rooms that may name a shipped service: its own, the tests of all, and a storage of files."""

# What stands before a table in SQL, in capitals. Prose has "from jobs" too, so small letters count
# in whole statements only.
_WORDS: Final = (
    r"\b(?:FROM|JOIN|INTO|UPDATE(?:\s+OR\s+\w+)?|TABLE(?:\s+IF(?:\s+NOT)?\s+EXISTS)?|REFERENCES|"
    r"TRUNCATE|ON|USING|LIKE|LOCK|COPY|VACUUM|ANALYZE)(?:\s+ONLY)?\s+"
)
_STATEMENT: Final = (
    r"(?:\bselect\b.*?\b(?:from|join)|\binsert\s+(?:or\s+\w+\s+)?into|\breplace\s+into|"
    r"\bdelete\s+from|\b(?:alter|drop|create|truncate|lock)\s+table)\s+"
)
_MAYBE_SQL: Final = re.compile(rf"{_WORDS}|\{{schema\}}|(?is:{_STATEMENT}|\bupdate\s)")
_SECTION: Final = re.compile(r"\[([a-z ]+): (\w+) (\d+)\]")
_SHRINK: Final = "`python -m tests.architecture.contract` does it"


@dataclass(frozen=True, slots=True, order=True)
class Breach:
    """One place that does not keep the contract."""

    kind: str
    owner: str
    """The service, or the room outside `services`."""
    where: str
    what: str
    line: int = field(default=0, compare=False)

    def __str__(self) -> str:
        """Return its line in the file of exceptions."""
        return f"{self.where} {self.what}"

    @property
    def advice(self) -> str:
        """Say what is wrong and what would work."""
        at = f"{self.where}, line {self.line}"
        if self.kind == SQL:
            return (
                f"{at}: SQL on the engine's table {self.what}; only ulak.store and ulak.engine "
                "hold that. Call a verb of the engine, or add the one that is missing; keep rows "
                "of a service's own by ulak.tables."
            )
        if self.what.startswith("ulak.services."):
            return (
                f"{at}: import of {self.what}; services do not know each other. Move what both "
                "need below them, to a public module."
            )
        return (
            f"{at}: import of {self.what}, which is not public. Import a public name that does "
            "the same; if there is none, the public API lacks a word: add it to `__all__` of one "
            f"of {', '.join(PUBLIC)}, with a line in docs/reference/services.md."
        )


@dataclass(frozen=True, slots=True)
class Section:
    """The exceptions of one owner, as the file has them."""

    kind: str
    owner: str
    ceiling: int
    lines: tuple[str, ...]


def problems(
    source: Path = SOURCE,
    exceptions: Path = EXCEPTIONS,
    owners: Mapping[str, Iterable[str]] = OWNERS,
) -> list[str]:
    """Return a sentence for each breach of the contract and each fault of the exceptions."""
    sections = read_sections(exceptions)
    breaches = [*private_imports(source), *engine_sql(source)]
    listed = {(s.kind, s.owner, line) for s in sections for line in s.lines}
    needed = {(b.kind, b.owner, str(b)) for b in breaches}
    name = exceptions.name
    found = [b.advice for b in sorted(breaches) if (b.kind, b.owner, str(b)) not in listed]
    for section in sections:
        title = f"[{section.kind}: {section.owner} {section.ceiling}] of {name}"
        if section.owner not in owners.get(section.kind, ()):
            found.append(f"{title}: {section.owner} may have none; a new service starts without.")
        if len(section.lines) != section.ceiling:
            found.append(
                f"{title} has {len(section.lines)} lines. The number is their ceiling and only "
                f"goes down: remove a line and lower it ({_SHRINK}), never add one."
            )
        if list(section.lines) != sorted(set(section.lines)):
            found.append(f"{title} is not sorted, or has a line twice.")
        found += [
            f"{title}: `{line}` is no longer needed; remove the line and lower the number "
            f"({_SHRINK})."
            for line in section.lines
            if (section.kind, section.owner, line) not in needed
        ]
    titles = [(s.kind, s.owner) for s in sections]
    found += [
        f"{name} has two sections [{k}: {o} ...]." for k, o in {*titles} if titles.count((k, o)) > 1
    ]
    found += [
        f"{owner} has no exception of {kind} left; remove it from OWNERS in {Path(__file__).name}."
        for kind, names in owners.items()
        for owner in names
        if (kind, owner) not in titles
    ]
    return found


def private_imports(source: Path = SOURCE) -> set[Breach]:
    """Find every import of a service that is not of a public name or of its own package."""
    public = _public_names(source)
    found: set[Breach] = set()
    for path in _files(source / "ulak" / "services", "*.py"):
        module = _module_name(source, path)
        service = module.split(".")[2] if module.count(".") > 1 else "services"
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for name, line in sorted(_imported_names(tree, package, {}), key=itemgetter(1)):
            private = _private_part(source, name, f"ulak.services.{service}", public)
            if private is not None:
                found.add(Breach(IMPORTS, service, module, private, line))
    return found


def private_names(folder: Path) -> set[str]:
    """Return the names of ulak that a package outside of it imports and that are not public."""
    public, found = _public_names(SOURCE), set[str | None]()
    for path in _files(folder, "*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for name, _ in _imported_names(tree, folder.name, {}):
            found.add(_private_part(SOURCE, name, folder.name, public))
    return {name for name in found if name is not None}


SPELLED = {"control": "pdf"}
"""Decision 0021: the interface of adaptive control has `pdf_slo_target`, `PdfJobStore`, `pdf`."""


def service_words(source: Path = SOURCE) -> list[str]:
    """Return each line of the kernel that has the word of a shipped service in it."""
    folders = [path for path in (source / "ulak" / "services").iterdir() if path.is_dir()]
    words = [path.name.rstrip("s") for path in folders if not path.name.startswith("_")]
    word = re.compile(rf"(?<![a-z])(?:{'|'.join(sorted(words))}|x-hos)", re.I)
    return [
        f"{path.relative_to(source)}, line {number}: {line.strip()}"
        for path in _files(source / "ulak", "*.py", "*.sql")
        if path.relative_to(source).parts[1] not in OTHER_ROOMS
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if word.search(_without_own_words(path.relative_to(source).parts[1], line))
    ]


def _without_own_words(room: str, line: str) -> str:
    """Leave out the one service that the specification of a room names in its interface."""
    return re.sub(SPELLED[room], "", line, flags=re.I) if room in SPELLED else line


def engine_sql(source: Path = SOURCE) -> set[Breach]:
    """Find every string and every .sql file outside store and engine with SQL on their tables."""
    patterns = _sql_patterns(engine_tables(source))
    found: set[Breach] = set()
    for path in _files(source / "ulak", "*.py", "*.sql"):
        parts = path.relative_to(source / "ulak").parts
        if parts[0] in SQL_ROOMS:
            continue
        owner = (
            parts[1] if parts[0] == "services" and len(parts) > 2 else parts[0].removesuffix(".py")
        )
        for where, text, line in _texts(source, path):
            for table in {m["table"].lower() for p in patterns for m in p.finditer(text)}:
                found.add(Breach(SQL, owner, where, table, line))
    return found


def engine_tables(source: Path = SOURCE) -> set[str]:
    """Return the tables that the stores create, in their schema files and in their code."""
    created = re.compile(
        r"(?:CREATE TABLE (?:IF NOT EXISTS )?(?:ulak\.)?|\bRENAME TO )(\w+)\b(?![.{])"
    )
    files = _files(source / "ulak" / "store", "*.py", "*.sql")
    return {name for path in files for name in created.findall(path.read_text(encoding="utf-8"))}


def public_names(module: str, source: Path = SOURCE) -> list[str] | None:
    """Return the `__all__` of a module, or None when the module does not exist.

    Raises:
        ValueError: the module has no `__all__` that is a plain list of texts.
    """
    path = _module_path(source, module)
    if path is None:
        return None
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return [str(name) for name in ast.literal_eval(node.value)]
    raise ValueError(f"{module} is public and has no __all__; name in it what services may use")


def read_sections(path: Path) -> list[Section]:
    """Read the file of exceptions.

    Raises:
        ValueError: a line stands outside a section, or the head of a section cannot be read.
    """
    sections: list[Section] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if head := _SECTION.fullmatch(line):
            sections.append(Section(head[1], head[2], int(head[3]), ()))
        elif line and not line.startswith("#"):
            if line.startswith("[") or not sections:
                raise ValueError(f"{path.name}: `{line}`; a section begins `[KIND: OWNER NUMBER]`")
            last = sections.pop()
            sections.append(Section(last.kind, last.owner, last.ceiling, (*last.lines, line)))
    return sections


def shrink(source: Path = SOURCE, exceptions: Path = EXCEPTIONS) -> None:
    """Remove exceptions that are no longer needed, and lower the numbers; nothing is added."""
    needed = {(b.kind, b.owner, str(b)) for b in private_imports(source) | engine_sql(source)}
    head = re.split(r"^\[", exceptions.read_text(encoding="utf-8"), maxsplit=1, flags=re.M)[0]
    text = head.rstrip() + "\n"
    for section in read_sections(exceptions):
        lines = [x for x in section.lines if (section.kind, section.owner, x) in needed]
        if lines:
            ceiling = min(section.ceiling, len(lines))
            title = f"[{section.kind}: {section.owner} {ceiling}]"
            text += "\n" + "\n".join([title, *lines]) + "\n"
    exceptions.write_text(text, encoding="utf-8")


def _public_names(source: Path) -> dict[str, frozenset[str]]:
    return {name: frozenset(public_names(name, source) or ()) for name in PUBLIC}


def _files(folder: Path, *patterns: str) -> Iterator[Path]:
    for pattern in patterns:
        yield from sorted(folder.rglob(pattern))


def _module_name(source: Path, path: Path) -> str:
    parts = path.relative_to(source).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _module_path(source: Path, module: str) -> Path | None:
    path = source.joinpath(*module.split("."))
    candidates = (path / "__init__.py", path.with_suffix(".py"))
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def _private_part(
    source: Path, name: str, own: str, public: Mapping[str, frozenset[str]]
) -> str | None:
    """Return the shortest beginning of a dotted name that is not public, or None."""
    if f"{name}.".startswith(f"{own}."):
        return None
    module, *rest = name.split(".")
    for part in rest:
        if module in public and (part == "*" or part in public[module]):
            return None
        # Not in `__all__`, and yet public in every package of Python.
        if (module, part) == ("ulak", "__version__"):
            return None
        module = f"{module}.{part}"
        if (
            _module_path(source, module) is None
            and not source.joinpath(*module.split(".")).is_dir()
        ):
            return module
    return None if module in public else module


def _imported_names(
    scope: ast.AST, package: str, outer: Mapping[str, str]
) -> Iterator[tuple[str, int]]:
    """Yield every name of ulak that a scope imports, and every attribute that it reads of one."""
    bound = {**outer, **_bindings(scope, package)}
    inner: set[int] = set()  # `a.b` of `a.b.c`
    for node in _own_nodes(scope):
        if isinstance(node, ast.Attribute):
            inner.add(id(node.value))
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((name, node.lineno) for _, name in _aliases(node, package) if _ours(name))
        elif isinstance(node, ast.Attribute) and id(node) not in inner:
            if name := _dotted(node, bound):
                yield name, node.lineno
        elif isinstance(node, ast.Call) and (name := _loaded(node, package)):
            yield name, node.lineno
        if isinstance(node, _SCOPES):
            yield from _imported_names(node, package, bound)


_SCOPES: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def _own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a scope; of a function in it, only the function itself."""
    pending = list(ast.iter_child_nodes(scope))
    while pending:
        node = pending.pop()
        yield node
        if not isinstance(node, _SCOPES):
            pending += ast.iter_child_nodes(node)


def _bindings(scope: ast.AST, package: str) -> dict[str, str]:
    """Return what names mean in a scope: what they import, or '' when they are the scope's own."""
    bound: dict[str, str] = {}
    for node in _own_nodes(scope):
        if isinstance(node, ast.arg):
            bound.setdefault(node.arg, "")
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.setdefault(node.id, "")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            bound.setdefault(node.name, "")
        elif isinstance(node, ast.Import | ast.ImportFrom):
            bound |= {alias: name if _ours(name) else "" for alias, name in _aliases(node, package)}
    return bound


def _aliases(node: ast.Import | ast.ImportFrom, package: str) -> Iterator[tuple[str, str]]:
    """Yield what an import binds, and the dotted name that it imports."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield alias.asname or alias.name.partition(".")[0], alias.name
        return
    base = _absolute("." * node.level + (node.module or ""), package)
    for alias in node.names:
        yield alias.asname or alias.name, f"{base}.{alias.name}"


def _absolute(name: str, package: str) -> str:
    stripped = name.lstrip(".")
    level = len(name) - len(stripped)
    if not level:
        return name
    parts = package.split(".")
    return ".".join([*parts[: len(parts) - level + 1], *filter(None, [stripped])])


def _ours(name: str) -> bool:
    return name.partition(".")[0] == "ulak"


def _dotted(node: ast.Attribute, bound: Mapping[str, str]) -> str | None:
    """Return the dotted name of an attribute that is read of an imported name of ulak."""
    parts: list[str] = []
    value: ast.expr = node
    while isinstance(value, ast.Attribute):
        parts.append(value.attr)
        value = value.value
    if not isinstance(value, ast.Name) or not (base := bound.get(value.id)):
        return None
    # `import ulak.web` binds `ulak`; `import ulak.web as web` binds the module itself.
    root = "ulak" if value.id == "ulak" else base
    return ".".join([root, *reversed(parts)])


def _loaded(node: ast.Call, package: str) -> str | None:
    """Return the module that `import_module("ulak...")` or `__import__("ulak...")` loads."""
    function = node.func.attr if isinstance(node.func, ast.Attribute) else node.func
    called = function.id if isinstance(function, ast.Name) else function
    texts = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    if called not in ("import_module", "__import__") or not texts:
        return None
    name = _absolute(texts[0], texts[1] if len(texts) > 1 else package)
    return name if _ours(name) else None


def _texts(source: Path, path: Path) -> Iterator[tuple[str, str, int]]:
    """Yield what a file writes as text: where, the text, and the line."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".sql":
        without_comments = re.sub(r"--[^\n]*|/\*.*?\*/", " ", text, flags=re.S)
        line = 1
        for statement in without_comments.split(";"):
            begin = line + statement[: -len(statement.lstrip()) or None].count("\n")
            yield path.relative_to(source).as_posix(), statement, begin
            line += statement.count("\n")
        return
    if not _MAYBE_SQL.search(text):
        return  # parsing is what takes time
    module = _module_name(source, path)
    for name, statement in _named_statements(ast.parse(text).body):
        docstrings: set[int] = set()
        for node in ast.walk(statement):
            if isinstance(node, ast.Expr):
                docstrings.add(id(node.value))
            elif id(node) not in docstrings and (written := _written(node)):
                yield f"{module}:{name}", written, getattr(node, "lineno", 0)


def _named_statements(body: Iterable[ast.stmt], prefix: str = "") -> Iterator[tuple[str, ast.stmt]]:
    for statement in body:
        if isinstance(statement, ast.ClassDef):
            yield from _named_statements(statement.body, f"{statement.name}.")
            continue
        name = "-"
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            name = statement.name
        elif isinstance(statement, ast.Assign):
            name = ast.unparse(statement.targets[0])
        elif isinstance(statement, ast.AnnAssign):
            name = ast.unparse(statement.target)
        yield prefix + name, statement


def _written(node: ast.AST) -> str | None:
    """Return the text that an expression writes, `{}` for each part that is not literal."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(_written(value) or "{}" for value in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _written(node.left), _written(node.right)
        return None if left is right is None else (left or "{}") + (right or "{}")
    return None


def _sql_patterns(tables: set[str]) -> list[re.Pattern[str]]:
    names = "|".join(sorted(tables)) or r"(?!)"
    table = rf'(?:"?(?:ulak|main|\{{\w*\}})"?\.)?"?(?P<table>{names})\b'
    listed = r"\bFROM\s+(?:[^\s,()]+(?:\s+(?:AS\s+)?\w+)?\s*,\s*)+"
    return [
        re.compile(rf"{_WORDS}\(*\s*{table}"),
        re.compile(listed + table),
        re.compile(rf"\{{schema\}}\.(?P<table>{names})\b"),
        re.compile(_STATEMENT + table, re.I | re.S),
        re.compile(rf"\bupdate\s+{table}\s+(?:as\s+\w+\s+)?set\b", re.I),
    ]


if __name__ == "__main__":
    shrink()
    raise SystemExit("\n".join(problems()) or 0)
