"""A mark before each text of a page, so that what is printed tells every box's character.

Of each font the browser keeps the first character that became a box, and writes the text of others
alone. When that first one is a mark that no font has, it is all others of the document.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Final

from ulak.services.pdf.browser.agreement import Send, value_of
from ulak.services.pdf.document import Document

MARK: Final = "\U0010ffff"
"""No character, and never will be: no font has it."""

_MOST: Final = 5000
"""Marks in one document: those of its first pages, which are enough where there are so many."""

_MARK_TEXTS: Final = """((mark, most) => {
  const roots = [document], texts = [];
  for (const root of roots) {
    const walker = document.createTreeWalker(root, NodeFilter.SHOW_ELEMENT | NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const node = walker.currentNode;
      if (node.shadowRoot) roots.push(node.shadowRoot);
      if (node.contentDocument) roots.push(node.contentDocument);
      if (node.nodeType !== Node.TEXT_NODE || !node.data.trim() || !node.parentElement) continue;
      if (!node.parentElement.closest("style, script, textarea, title, option")) texts.push(node);
    }
  }
  const drawn = "http://www.w3.org/2000/svg";
  const made = inside => {
    const element = inside.namespaceURI === drawn
      ? document.createElementNS(drawn, "tspan") : document.createElement("ulak-mark");
    element.textContent = mark;
    // Of another size, so that it is shaped apart: whoever looks for a font that has the mark
    // gives the characters beside it up as well.
    element.style.fontSize = "99%";
    most--;
    return element;
  };
  // The marker of a list is painted before its text.
  if (document.body) document.body.prepend(made(document.body));
  for (const text of texts) {
    if (most < 0) break;
    const parent = text.parentElement, pieces = [made(parent)];
    // On both sides of a word: what is written from the right is painted from the left.
    for (const piece of text.data.split(/(\\s+)/))
      if (/[^\\x00-\\x7f]/.test(piece)) pieces.push(made(parent), piece, made(parent));
      else pieces.push(piece);
    text.replaceWith(...pieces);
  }
  return true;
})"""
_MADE: Final = f'<i style="all: unset; font-size: 99%">{MARK}</i>'
# Not behind a style sheet's tag: it would be part of its first rule.
_TEXT_OF_A_HEADER: Final = re.compile(r"(<(?!style\b|script\b)[^<>]*>)(?=\s*[^<\s])", re.IGNORECASE)


async def mark_texts(send: Send, world: int) -> None:
    """Write a mark before each text of the page, which is good for nothing else afterwards.

    Raises:
        PageFailed: the page went elsewhere.
    """
    await value_of(send, f"{_MARK_TEXTS}({json.dumps(MARK)}, {_MOST})", world)


def with_marks(document: Document) -> Document:
    """Return the document with marks in what is drawn into its margins."""
    return replace(document, header=_marked(document.header), footer=_marked(document.footer))


def _marked(html: str) -> str:
    return _TEXT_OF_A_HEADER.sub(rf"\g<1>{_MADE}", _MADE + html) if html else ""
