"""JavaScript that a page is asked by: whether it is complete, how high it is, to mark its texts.

It is evaluated in a world apart, where scripts of the page have changed nothing, and where it is
answered though the page's own scripts are off. Only an expression that a document waits for is
evaluated among those scripts, for it speaks of them.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable
from typing import Any, Final

from ulak.services.pdf.browser.driver import PageFailed, Unfit
from ulak.services.pdf.document import Document
from ulak.services.pdf.page import LARGEST_PAPER

Send = Callable[..., Awaitable[dict[str, Any]]]
"""Sends a command to the page (`send(method, **params)`); fails with `PageFailed`."""

DRAWN_SMALL: Final = {
    "width": 1280,
    "height": 720,
    "deviceScaleFactor": 1,
    "mobile": False,
    "scale": 0.05,
}
"""The window (`Emulation.setDeviceMetricsOverride`): a page is laid out at its full size and drawn
small, for nobody sees it on a screen."""
MARK: Final = "\U0010ffff"
"""No character, and never will be: no font has it."""

_MOST_MARKS: Final = 5000
"""In one document: those of its first pages, which are enough where there are so many."""
_POLL_S: Final = 0.02
_PER_INCH: Final = 96
_SLACK: Final = 2
"""Pixels: what rounding may cost between what is measured and what is printed."""

_HOLD: Final = """(async () => {
  if (document.readyState === "complete")
    return Array.from(document.scripts).some(
      script => script.type === "module" || (script.defer && script.src));
  await new Promise(done => document.addEventListener("readystatechange", () => {
    if (document.readyState === "complete") done();
  }));
  return false;
})()"""
"""Where it tells that no script holds up the reading, the document has loaded, or its reading was
broken off."""

LAY_OUT: Final = """document.addEventListener("load", ({target}) => {
  if (target.sheet) document.documentElement.getBoundingClientRect();
}, true)"""
"""Applies each style sheet as soon as it is there, so that the images it names belong to what the
document has to load. Otherwise it may have loaded before they are asked for."""

_READY: Final = """(async () => {
  for (const image of document.images) image.loading = "eager";
  document.documentElement?.getBoundingClientRect();
  await document.fonts.ready;
  await Promise.all(Array.from(document.images, async image => {
    if (!image.complete) await new Promise(done => {
      image.addEventListener("load", done, {once: true});
      image.addEventListener("error", done, {once: true});
    });
    if (image.naturalWidth) await image.decode().catch(() => 0);
  }));
  let nodes = 0;
  const roots = [document];
  for (const root of roots) {
    const walker = document.createTreeWalker(root);
    do {
      nodes++;
      if (walker.currentNode.shadowRoot) roots.push(walker.currentNode.shadowRoot);
    } while (walker.nextNode());
  }
  return nodes;
})()"""
"""Waits for the fonts and images of a document that has loaded, lazy and broken ones too; gives the
number of nodes."""

_WAIT: Final = """(async (selector, scripts) => {
  for (;;) {
    try { if (document.querySelector(selector)) return "found"; } catch { return "unreadable"; }
    if (!scripts) return "missing";
    await new Promise(done => setTimeout(done, 20));
  }
})"""

_FRAME: Final = """((width, height) => {
  const names = {
    a5: [148, 210], a4: [210, 297], a3: [297, 420], b5: [176, 250], b4: [250, 353],
    "jis-b5": [182, 257], "jis-b4": [257, 364], letter: [215.9, 279.4], legal: [215.9, 355.6],
    ledger: [279.4, 431.8],
  };
  const said = {}, strong = {}, rules = [];
  const applies = media => !media || !media.length || matchMedia(media.mediaText).matches;
  const walk = list => {
    for (const rule of list) {
      if (rule instanceof CSSPageRule) rules.push(rule);
      else if (rule.cssRules && applies(rule.media)) walk(rule.cssRules);
    }
  };
  for (const sheet of document.styleSheets)
    try { if (!sheet.disabled && applies(sheet.media)) walk(sheet.cssRules); } catch { continue; }
  const sides = ["margin-top", "margin-right", "margin-bottom", "margin-left"];
  for (const which of ["", ":right", ":first"])
    for (const {selectorText, style} of rules)
      if (selectorText === which)
        for (const name of ["size", ...sides]) {
          const value = style.getPropertyValue(name), wins = style.getPropertyPriority(name);
          if (value && (wins || !strong[name])) { said[name] = value; strong[name] = wins; }
        }
  const pixels = (text, whole) => {
    if (!text || text === "auto") return 0;
    if (text.endsWith("%")) return whole * parseFloat(text) / 100;
    try { return CSSNumericValue.parse(text).to("px").value; }
    catch { return 16 * parseFloat(text) || 0; }
  };
  const words = (said.size || "auto").split(" ");
  const lengths = words.filter(word => /^[.\\d]/.test(word)).map(word => pixels(word, 0));
  const named = words.map(word => names[word.toLowerCase()]).find(Boolean);
  if (named) [width, height] = named.map(mm => mm * 96 / 25.4);
  if (lengths.length) [width, height] = [lengths[0], lengths[1] ?? lengths[0]];
  if (words.includes("landscape") && height > width) [width, height] = [height, width];
  if (words.includes("portrait") && height < width) [width, height] = [height, width];
  const [top, right, bottom, left] =
    sides.map((side, i) => pixels(said[side], i % 2 ? width : height));
  return [width, top, right, bottom, left];
})"""
"""Reads what the style sheets say of the first page, in pixels: a width, and the four margins."""

_FIT: Final = """((width, top, right, bottom, left, slack, most) => {
  const style = document.createElement("style");
  const whole = "*, *::before, *::after { break-before: auto !important; "
    + "break-after: auto !important; page: auto !important } "
    // As high as a page, where the page is to be as high as these, would never end.
    + "html, body { height: auto !important; min-height: 0 !important }";
  style.textContent = whole;
  document.documentElement.append(style);
  // Without a doctype it is the body that scrolls.
  const content = [document.documentElement, document.body, document.scrollingElement]
    .map(element => element?.scrollHeight ?? 0);
  const height = Math.ceil(Math.max(...content) + top + bottom) + slack;
  if (height > most) return 0;
  style.textContent = whole + `@page { size: ${width}px ${height}px !important; `
    + `margin: ${top}px ${right}px ${bottom}px ${left}px !important }`;
  return height;
})"""
"""Makes the page as high as its content, and answers the height; 0 when no paper is so long."""

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


async def value_of(send: Send, expression: str, world: int) -> Any:
    """Evaluate an expression out of reach of the page's scripts, and return what it comes to.

    Raises:
        PageFailed: it fails, or the page went elsewhere.
    """
    answer = await send(
        "Runtime.evaluate",
        expression=expression,
        contextId=world,
        awaitPromise=True,
        returnByValue=True,
    )
    if "value" not in answer["result"] or "exceptionDetails" in answer:
        raise PageFailed
    return answer["result"]["value"]


async def hold(send: Send, world: int) -> bool:
    """Wait for scripts that hold up the reading; tell whether others do that come after it."""
    return bool(await value_of(send, _HOLD, world))


async def complete(send: Send, world: int) -> int:
    """Wait for the fonts and images of a document that has loaded; return its number of nodes."""
    return int(await value_of(send, _READY, world))


async def wait(document: Document, send: Send, world: int) -> None:
    """Wait until the document says that it is complete; never returns when it does not say so.

    Raises:
        Unfit: it never will, or what it should be asked cannot be read.
        PageFailed: the page went elsewhere.
    """
    if document.wait_for:
        arguments = f"({json.dumps(document.wait_for)}, {json.dumps(document.javascript)})"
        found = await value_of(send, _WAIT + arguments, world)
        if found == "missing":
            raise Unfit("wait_for", "nothing matches the selector, and no script will change that")
        if found != "found":
            raise Unfit("wait_for", "the selector cannot be read")
    while document.wait_for_expression and not await _is_true(document.wait_for_expression, send):
        await asyncio.sleep(_POLL_S)


async def make_one_page(document: Document, send: Send, world: int) -> None:
    """Give the document a page as high as its content, with the margins that it has.

    Raises:
        Unfit: it is longer than paper can be.
        PageFailed: the page went elsewhere.
    """
    paper = tuple(edge * _PER_INCH for edge in document.paper)
    frame = await value_of(send, f"{_FRAME}({paper[0]}, {paper[1]})", world)
    width, top, right, bottom, left = map(float, frame)
    # As wide as what is printed will be, and flat: the height of a window is part of the content's.
    inner = max(1, math.floor(width - left - right))
    await send("Emulation.setDeviceMetricsOverride", **{**DRAWN_SMALL, "width": inner, "height": 1})
    most = LARGEST_PAPER * _PER_INCH
    arguments = ", ".join(map(repr, (width, top, right, bottom, left, _SLACK, most)))
    if not await value_of(send, f"{_FIT}({arguments})", world):
        raise Unfit("page_too_long", f"one page would be longer than {LARGEST_PAPER:g} inches")


async def _is_true(expression: str, send: Send) -> bool:
    answer = await send(
        "Runtime.evaluate",
        expression=f"(async () => !!(await (\n{expression}\n)))()",
        awaitPromise=True,
        returnByValue=True,
    )
    if "exceptionDetails" in answer:
        raise Unfit("wait_for", "the expression fails")
    return bool(answer["result"].get("value"))


async def mark_texts(send: Send, world: int) -> None:
    """Write a mark before each text of the page, which is good for nothing else afterwards.

    Raises:
        PageFailed: the page went elsewhere.
    """
    await value_of(send, f"{_MARK_TEXTS}({json.dumps(MARK)}, {_MOST_MARKS})", world)
