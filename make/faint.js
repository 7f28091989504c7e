// Text that is too faint on what lies behind it, a line each; by WCAG 2.2 AA. Run in the page by screens.py.
(() => {
  const [LEAST, LEAST_LARGE] = [4.5, 3];
  const pen = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  pen.canvas.width = pen.canvas.height = 1;

  /** Any colour that CSS knows as red, green, blue and how solid it is, each 0 to 1. */
  const parts = (colour) => {
    pen.clearRect(0, 0, 1, 1);
    pen.fillStyle = colour;
    pen.fillRect(0, 0, 1, 1);
    return [...pen.getImageData(0, 0, 1, 1).data].map((part) => part / 255);
  };

  const over = ([r, g, b, a], under) => [r, g, b].map((part, at) => part * a + under[at] * (1 - a));

  const light = (colour) => {
    const [r, g, b] = colour.map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };

  const ratio = (a, b) => {
    const [high, low] = [light(a), light(b)].sort((one, other) => other - one);
    return (high + 0.05) / (low + 0.05);
  };

  const ancestors = (element) => {
    const found = [];
    for (let one = element; one; one = one.parentElement) found.push(one);
    return found;
  };

  const ground = (element) =>
    ancestors(element)
      .reverse()
      .reduce((under, one) => over(parts(getComputedStyle(one).backgroundColor), under), parts("Canvas").slice(0, 3));

  const seen = (element) =>
    ancestors(element)
      .map((one) => Number(getComputedStyle(one).opacity))
      .reduce((all, one) => all * one, 1);

  const isLarge = (style) => parseFloat(style.fontSize) >= (Number(style.fontWeight) >= 700 ? 18.66 : 24);

  const faint = (owner, words) => {
    const style = getComputedStyle(owner);
    const under = ground(owner);
    const [r, g, b, a] = parts(style.color);
    const found = ratio(over([r, g, b, a * seen(owner)], under), under);
    if (found >= (isLarge(style) ? LEAST_LARGE : LEAST)) return "";
    return `faint: ${JSON.stringify(words.trim().slice(0, 40))} ${found.toFixed(2)} to 1`;
  };

  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const found = new Set();
  while (walker.nextNode()) {
    const { data, parentElement: owner } = walker.currentNode;
    if (!data.trim() || !owner || owner.closest("script, style, noscript, :disabled, [aria-disabled=true]")) continue;
    if (!owner.checkVisibility({ opacityProperty: true, visibilityProperty: true })) continue;
    if (ancestors(owner).some((one) => getComputedStyle(one).clipPath !== "none")) continue; // only said
    found.add(faint(owner, data));
  }
  found.delete("");
  return [...found];
})()
