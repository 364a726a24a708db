"""JavaScript that a page is asked by: whether it is complete, how high it is, to mark its texts."""

from typing import Final

HOLD: Final = """(async () => {
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

REPORT: Final = "ulakReport"
"""By this name a page could tell of its connections, until the next script has taken it away."""

TELL_CONNECTIONS: Final = f"""(() => {{
  const report = globalThis.{REPORT}, Real = globalThis.RTCPeerConnection;
  delete globalThis.{REPORT};
  if (!report || !Real) return;
  globalThis.RTCPeerConnection = globalThis.webkitRTCPeerConnection = new Proxy(Real, {{
    construct(target, given, made) {{
      report("");
      return Reflect.construct(target, given, made);
    }},
  }});
}})()"""
"""Has each WebRTC connection of a page told of: its packets are no requests."""

LAY_OUT: Final = """document.addEventListener("load", ({target}) => {
  if (target.sheet) document.documentElement.getBoundingClientRect();
}, true)"""
"""Applies each style sheet as soon as it is there, so that the images it names belong to what the
document has to load. Otherwise it may have loaded before they are asked for."""

READY: Final = """(async () => {
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
  const roots = [document], texts = [];
  for (const root of roots) {
    const walker = document.createTreeWalker(root);
    do {
      nodes++;
      const node = walker.currentNode;
      if (node.shadowRoot) roots.push(node.shadowRoot);
      if (node.nodeType === Node.TEXT_NODE && node.length > 1000) texts.push(node);
    } while (walker.nextNode());
  }
  const range = document.createRange();
  const isTooLong = text => {
    range.selectNodeContents(text);
    return Array.from(range.getClientRects()).some(
      line => Math.max(line.width, line.height) > 19200);
  };
  for (const {parentElement} of texts.filter(isTooLong)) {
    parentElement?.style.setProperty("overflow-wrap", "anywhere", "important");
    parentElement?.style.setProperty("text-wrap-mode", "wrap", "important");
  }
  return texts.some(isTooLong) ? -1 : nodes;
})()"""
"""Waits for the fonts and images of a document that has loaded, lazy and broken ones too; gives the
number of nodes. A line of text that is longer than the longest paper is broken where that can be,
and else the answer is -1: the time that printing takes grows with the square of a line's length,
and a word of 256 kB took minutes."""

WAIT: Final = """(async (selector, scripts) => {
  for (;;) {
    try { if (document.querySelector(selector)) return "found"; } catch { return "unreadable"; }
    if (!scripts) return "missing";
    await new Promise(done => setTimeout(done, 20));
  }
})"""

FRAME: Final = """((width, height) => {
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

FIT: Final = """((width, top, right, bottom, left, slack, most) => {
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

MARK_TEXTS: Final = """((mark, most) => {
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
