"""Documents put behind each other: pages, links, outline and structure.

What one document calls by a name of its own - a place that is linked to, an element, a number of
the structure - another may call the same, so the names of those that follow are changed.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator

from pikepdf import Array, Dictionary, Name, NameTree, NumberTree, Object, Pdf, String


def append(pdf: Pdf, other: Pdf, *, number: int) -> None:
    """Put all of a document behind another.

    Structure is kept where the first document has one; pages of a document that has none stand in
    it without.

    Args:
        pdf: The first document, changed in place.
        other: What follows; its names are changed, so it is of no use afterwards. It must stay
            open until the first one is written.
        number: Of the document among all of them: part of its new names.
    """
    before = f"document-{number}."
    _rename_places(other, before)
    is_tagged = Name.StructTreeRoot in pdf.Root and Name.StructTreeRoot in other.Root
    _renumber(other, _next_number(pdf) if is_tagged else None)
    with warnings.catch_warnings():
        # Of the names that pages are linked by: those are added right below.
        warnings.simplefilter("ignore")
        pdf.pages.extend(other.pages)
    # Only now: what refers to a page finds the copy of it.
    _add_places(pdf, other, before)
    if Name.Outlines in other.Root:
        if not is_tagged:
            for entry in _entries(other.Root.Outlines):
                if Name.SE in entry:  # its element, which would bring the structure along
                    del entry[Name.SE]
        _add_outline(pdf, _copied(pdf, other, other.Root.Outlines))
    if is_tagged:
        _add_structure(pdf, other, before)


def _copied(pdf: Pdf, other: Pdf, thing: Object) -> Object:
    return pdf.copy_foreign(thing if thing.is_indirect else other.make_indirect(thing))


def _rename_places(pdf: Pdf, before: str) -> None:
    for holder in _links(pdf):
        for key in (Name.Dest, Name.D):
            if key in holder and isinstance(place := _renamed(holder[key], before), Object):
                holder[key] = place
    places = pdf.Root.get(Name.Dests)
    if places is not None:
        pdf.Root[Name.Dests] = pdf.make_indirect(
            Dictionary({f"/{before}{name[1:]}": place for name, place in places.items()})
        )


def _renamed(place: Object, before: str) -> Object | None:
    if isinstance(place, Name):
        return Name(f"/{before}{str(place)[1:]}")
    return String(before + str(place)) if isinstance(place, String) else None


def _links(pdf: Pdf) -> Iterator[Object]:
    """Return whatever may name a place: links, entries of the outline, and their actions."""
    found = [one for page in pdf.pages for one in page.obj.get(Name.Annots, Array())]
    if Name.Outlines in pdf.Root:
        found += list(_entries(pdf.Root.Outlines))
    for one in found:
        yield one
        action = one.get(Name.A)
        if isinstance(action, Dictionary) and action.get(Name.S) == Name.GoTo:
            yield action


def _add_places(pdf: Pdf, other: Pdf, before: str) -> None:
    if Name.Dests in other.Root:
        if Name.Dests not in pdf.Root:
            pdf.Root[Name.Dests] = pdf.make_indirect(Dictionary())
        for name, place in _copied(pdf, other, other.Root.Dests).items():
            pdf.Root.Dests[name] = place
    # The same in the way of later PDFs: a tree, by texts.
    tree = other.Root.get(Name.Names, Dictionary()).get(Name.Dests)
    if tree is not None:
        if Name.Names not in pdf.Root:
            pdf.Root[Name.Names] = Dictionary()
        _add_names(pdf, pdf.Root.Names, Name.Dests, _copied(pdf, other, tree), before)


def _entries(parent: Object) -> Iterator[Object]:
    """Return the entries of an outline, at every depth."""
    waiting = [parent]
    while waiting:
        entry = waiting.pop().get(Name.First)
        while entry is not None:
            yield entry
            waiting.append(entry)
            entry = entry.get(Name.Next)


def _add_outline(pdf: Pdf, added: Object) -> None:
    outline = pdf.Root.get(Name.Outlines)
    if outline is None or Name.First not in outline:
        pdf.Root[Name.Outlines] = added
        return
    if Name.First not in added:
        return
    entry: Object | None = added.First
    while entry is not None:
        entry[Name.Parent] = outline
        entry = entry.get(Name.Next)
    outline.Last[Name.Next] = added.First
    added.First[Name.Prev] = outline.Last
    outline[Name.Last] = added.Last
    outline[Name.Count] = int(outline.get(Name.Count, 0)) + int(added.get(Name.Count, 0))


def _next_number(pdf: Pdf) -> int:
    """Return the first number that no page and no link of a document has in its structure."""
    root = pdf.Root.StructTreeRoot
    used = NumberTree(root.ParentTree).keys() if Name.ParentTree in root else ()
    return max(int(root.get(Name.ParentTreeNextKey, 0)), *(int(one) + 1 for one in used), 0)


def _renumber(pdf: Pdf, by: int | None) -> None:
    """Move the numbers by which pages and links are found in the structure; None removes them."""
    for page in pdf.pages:
        for holder in (page.obj, *page.obj.get(Name.Annots, Array())):
            for key in (Name.StructParents, Name.StructParent):
                if key in holder:
                    if by is None:
                        del holder[key]
                    else:
                        holder[key] = int(holder[key]) + by


def _add_structure(pdf: Pdf, other: Pdf, before: str) -> None:
    root, first = pdf.Root.StructTreeRoot, _next_number(pdf)
    added = _copied(pdf, other, other.Root.StructTreeRoot)
    language = other.Root.get(Name.Lang)
    for element in _elements(added):
        _rename_element(element, before)
    tops = _list_of(added.get(Name.K))
    for top in tops:
        top[Name.P] = root
        if language is not None and Name.Lang not in top:
            top[Name.Lang] = String(str(language))
    root[Name.K] = Array([*_list_of(root.get(Name.K)), *tops])
    if Name.ParentTree in added:
        if Name.ParentTree not in root:
            root[Name.ParentTree] = NumberTree.new(pdf).obj
        numbers = NumberTree(root.ParentTree)
        for number, parents in NumberTree(added.ParentTree).items():
            numbers[int(number) + first] = parents
    root[Name.ParentTreeNextKey] = _next_number(pdf)
    if Name.IDTree in added:
        _add_names(pdf, root, Name.IDTree, added.IDTree, before)
    if Name.RoleMap in added:
        known = root.get(Name.RoleMap, Dictionary())
        root[Name.RoleMap] = Dictionary({**dict(added.RoleMap.items()), **dict(known.items())})


def _elements(root: Object) -> Iterator[Object]:
    """Return the elements of a structure, none twice: it is a tree."""
    waiting = _list_of(root.get(Name.K))
    while waiting:
        element = waiting.pop()
        if isinstance(element, Dictionary) and Name.S in element:
            yield element
            waiting += _list_of(element.get(Name.K))


def _rename_element(element: Object, before: str) -> None:
    if Name.ID in element:
        element[Name.ID] = String(before + str(element.ID))
    for attributes in _list_of(element.get(Name.A)):
        # Cells of a table name the cells that are their headers.
        if isinstance(attributes, Dictionary) and Name.Headers in attributes:
            attributes[Name.Headers] = Array(
                [String(before + str(one)) for one in attributes.Headers]
            )


def _add_names(pdf: Pdf, holder: Object, key: Name, added: Object, before: str) -> None:
    """Add what a tree names to another, by names that begin with the document's own."""
    if key not in holder:
        holder[key] = NameTree.new(pdf).obj
    known = NameTree(holder[key])
    for text, thing in NameTree(added).items():
        known[before + (text if isinstance(text, str) else text.decode("latin-1"))] = thing


def _list_of(thing: Object | None) -> list[Object]:
    if thing is None:
        return []
    return list(thing) if isinstance(thing, Array) else [thing]
