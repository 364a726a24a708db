"""A mark before each text of a page, so that what is printed tells every box's character.

Of each font the browser keeps the first character that became a box, and writes the text of others
alone. When that first one is a mark that no font has, it is all others of the document.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Final

from ulak.services.pdf.browser.asking import Send
from ulak.services.pdf.browser.driver import PageFailed
from ulak.services.pdf.document import Document

MARK: Final = "\U0010ffff"
"""No character, and never will be: no font has it."""

_MARK_TEXTS: Final = """(mark => {
  const roots = [document], texts = [], fields = [];
  for (const root of roots) {
    const walker = document.createTreeWalker(root, NodeFilter.SHOW_ELEMENT | NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const node = walker.currentNode, around = node.parentElement?.localName;
      if (node.nodeType === Node.TEXT_NODE) {
        if (around !== "style" && around !== "script" && node.data.trim()) texts.push(node);
        continue;
      }
      if (node.shadowRoot) roots.push(node.shadowRoot);
      if (node.contentDocument) roots.push(node.contentDocument);
      if (node.localName === "textarea" || node.localName === "input") fields.push(node);
    }
  }
  // On both sides of words: what is written from the right is painted from the left all the same.
  const around_words = text => mark + text.replace(/\\S*[^\\x00-\\x7f]\\S*/g, `${mark}$&${mark}`);
  for (const text of texts) text.data = around_words(text.data);
  // The marker of a list is painted before its text.
  document.body?.prepend(mark);
  for (const field of fields)
    try { if (field.value) field.value = around_words(field.value); } catch { continue; }
  return texts.length;
})"""
# Not behind a style sheet's tag: it would be part of its first rule.
_TEXTS_OF_A_HEADER: Final = re.compile(
    r"(<(?!style\b|script\b)[^<>]*>)(?=\s*[^<\s])", re.IGNORECASE
)


async def mark_texts(send: Send, world: int) -> None:
    """Write a mark before each text of the page, which is good for nothing else afterwards.

    Raises:
        PageFailed: the page went elsewhere.
    """
    answer = await send(
        "Runtime.evaluate",
        expression=f"{_MARK_TEXTS}({json.dumps(MARK)})",
        contextId=world,
        returnByValue=True,
    )
    if "value" not in answer["result"] or "exceptionDetails" in answer:
        raise PageFailed


def with_marks(document: Document) -> Document:
    """Answer the document with marks in what is drawn into its margins."""
    return replace(document, header=_marked(document.header), footer=_marked(document.footer))


def _marked(html: str) -> str:
    return MARK + _TEXTS_OF_A_HEADER.sub(rf"\g<1>{MARK}", html) if html else ""
