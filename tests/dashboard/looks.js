// What is wrong with how the page looks now, a line each. Run in the page by looks.py.
(() => {
  const SLACK = 1.5; // pixels: less is rounding

  /** Text that somebody sees: not hidden, not for screen readers alone, not drawn as a shape. */
  const texts = () => {
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    const found = [];
    while (walker.nextNode()) {
      const node = walker.currentNode;
      const owner = node.parentElement;
      if (!node.data.trim() || !owner || owner.closest("svg, script, style, option, noscript")) continue;
      if (!owner.checkVisibility({ opacityProperty: true, visibilityProperty: true })) continue;
      if (ancestors(owner).some((one) => getComputedStyle(one).clipPath !== "none")) continue;
      found.push(...boxes(node).map((box) => ({ node, owner, box, words: short(node.data) })));
    }
    return found;
  };

  const boxes = (node) => {
    const range = document.createRange();
    range.selectNodeContents(node);
    return [...range.getClientRects()].filter(({ width, height }) => width > 1 && height > 1);
  };

  const ancestors = (element) => {
    const found = [];
    for (let one = element; one; one = one.parentElement) found.push(one);
    return found;
  };

  const short = (text) => JSON.stringify(text.trim().replace(/\s+/g, " ").slice(0, 40));

  const named = (element) => {
    const known = ancestors(element).find((one) => one.dataset.testid || one.getAttribute("aria-label"));
    const where = known ? ` of ${known.dataset.testid ?? known.getAttribute("aria-label")}` : "";
    return element.tagName.toLowerCase() + where;
  };

  const hides = (way) => way === "hidden" || way === "clip";
  const scrolls = (way) => way === "auto" || way === "scroll";

  /** Why a text is not seen whole; empty where it is, or where one can scroll to the rest. */
  const cut = ({ owner, box, words }) => {
    const low = 0.25 * box.height; // a line is lower than the box of its glyphs
    for (const one of ancestors(owner)) {
      if (one === document.body || one === document.documentElement) return "";
      const style = getComputedStyle(one);
      const frame = one.getBoundingClientRect();
      const isShort = style.textOverflow === "ellipsis";
      const slack = isShort ? 0.5 : SLACK; // dots come at once
      const wide = box.right > frame.right + slack || box.left < frame.left - slack;
      const tall = box.bottom > frame.bottom + low || box.top < frame.top - low;
      if ((wide && scrolls(style.overflowX)) || (tall && scrolls(style.overflowY))) return "";
      const isOut = (wide && hides(style.overflowX)) || (tall && hides(style.overflowY));
      if (!isOut) continue;
      const isGone = box.top >= frame.bottom - low || box.bottom <= frame.top + low;
      if (isGone || box.left >= frame.right - SLACK || box.right <= frame.left + SLACK) return ""; // not there
      const isTold = isShort && !tall && one.closest('[title]:not([title=""])');
      return isTold ? "" : `cut: ${words} in ${named(one)}`;
    }
    return "";
  };

  /** Why a text does not fit the box that it is in. */
  const large = ({ owner, box, words }) => {
    const home = ancestors(owner).find((one) => !/^(inline|contents)$/.test(getComputedStyle(one).display));
    if (!home || home === document.body) return "";
    const style = getComputedStyle(home);
    if (style.overflowX !== "visible" || style.overflowY !== "visible") return ""; // `cut` says it
    const frame = home.getBoundingClientRect();
    const isOut = box.right > frame.right + SLACK || box.left < frame.left - SLACK;
    const isTall = box.bottom > frame.bottom + 0.3 * box.height;
    return isOut || isTall ? `larger than its box: ${words} in ${named(home)}` : "";
  };

  const solid = (style) => style.backgroundColor !== "transparent" && !/, 0\)$/.test(style.backgroundColor);

  /** What lies over the rest on purpose: a bar that stays, a menu, a dialog. */
  const layer = (element) =>
    ancestors(element).find((one) => {
      const style = getComputedStyle(one);
      if (one.matches("dialog[open]") || /fixed|sticky/.test(style.position)) return true;
      return style.position === "absolute" && solid(style);
    }) ?? null;

  /** The part of a text that is seen. */
  const seen = ({ owner, box }) => {
    let { left, right, top, bottom } = box;
    for (const one of ancestors(owner)) {
      const style = getComputedStyle(one);
      const frame = one.getBoundingClientRect();
      if (style.overflowX !== "visible") [left, right] = [Math.max(left, frame.left), Math.min(right, frame.right)];
      if (style.overflowY !== "visible") [top, bottom] = [Math.max(top, frame.top), Math.min(bottom, frame.bottom)];
    }
    const trim = 0.2 * (bottom - top); // letters do not fill their line
    return { left, right, top: top + trim, bottom: bottom - trim };
  };

  const overlaps = (found) => {
    const parts = found
      .map((text) => ({ ...text, ...seen(text), layer: layer(text.owner) }))
      .filter(({ left, right, top, bottom }) => right - left > 1 && bottom - top > 1)
      .sort((a, b) => a.top - b.top);
    const said = [];
    parts.forEach((a, at) => {
      for (const b of parts.slice(at + 1)) {
        if (b.top >= a.bottom - 1) break;
        const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
        if (a.node !== b.node && a.layer === b.layer && wide > 2) said.push(`overlap: ${a.words} and ${b.words}`);
      }
    });
    return said;
  };

  /** Hints in fields that are longer than the field. */
  const hints = () => {
    const pen = document.createElement("canvas").getContext("2d");
    return [...document.querySelectorAll("input[placeholder]")]
      .filter((field) => field.checkVisibility() && field.placeholder && !field.value)
      .filter((field) => {
        const style = getComputedStyle(field);
        pen.font = `${style.fontWeight} ${style.fontSize} ${style.fontFamily}`;
        const room = field.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
        return pen.measureText(field.placeholder).width > room + 2;
      })
      .map((field) => `cut: ${short(field.placeholder)} in ${named(field)}`);
  };

  const sideways = () => {
    const { scrollWidth, clientWidth } = document.documentElement;
    if (scrollWidth <= clientWidth) return [];
    const wide = [...document.body.querySelectorAll("*")].filter(
      (one) => one.checkVisibility() && one.getBoundingClientRect().right > clientWidth + SLACK,
    );
    const who = wide.filter((one) => !wide.some((other) => other !== one && one.contains(other))).map(named);
    return [`scrolls sideways: ${scrollWidth} px in ${clientWidth}: ${[...new Set(who)].slice(0, 4).join(", ")}`];
  };

  const found = texts();
  const each = found.map((text) => cut(text) || large(text)).filter(Boolean);
  return [...new Set([...sideways(), ...each, ...overlaps(found), ...hints()])];
})()
