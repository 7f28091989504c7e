// Writes down what happens in the page, so that whoever uses a control can say what it did.
// Run in the page before its own scripts; `window.__effects` is what using.py asks.
(() => {
  const CONTROLS = [
    "a[href], button, summary, select, textarea, input:not([type=hidden])",
    ...["button", "link", "tab", "option", "menuitem", "checkbox", "radio", "switch", "combobox", "slider"].map(
      (role) => `[role=${role}]`,
    ),
  ].join(", ");
  const STATES = ["open", "hidden", "disabled", "class", "href", "aria-pressed", "aria-expanded", "aria-selected"];
  const MARKS = ["aria-sort", "aria-checked", "aria-current", "aria-label", "data-theme", "data-state", "data-open"];

  let isHeld = false;
  const waiting = []; // messages of the socket, while it is held
  let seen = [];
  let used = null;
  let began = "";
  let pending = 0; // requests that are not answered
  let last = 0; // when something happened
  let wake = () => undefined;

  const note = (what) => {
    last = performance.now();
    seen.push(what);
    wake();
  };

  /** Whether a click is followed to another page, which comes later. */
  const isLeaving = ({ target, defaultPrevented }) => !defaultPrevented && Boolean(target.closest?.("a[href]:not([href^='#'])"));

  /** What the server tells is no effect of a click: it waits meanwhile. */
  class Held extends WebSocket {
    set onmessage(listener) {
      super.onmessage = (event) => (isHeld ? waiting.push(() => listener(event)) : listener(event));
    }
  }
  window.WebSocket = Held;

  const asked = window.fetch;
  window.fetch = (...words) => {
    pending += 1;
    note("request");
    return asked(...words).finally(() => (pending -= 1));
  };

  for (const name of ["pushState", "replaceState"]) {
    const real = history[name].bind(history);
    history[name] = (...words) => {
      real(...words);
      if (location.href !== began) note("address");
    };
  }
  addEventListener("hashchange", () => note("address"));
  addEventListener("click", (event) => isLeaving(event) && note("leaves"));
  addEventListener("copy", () => note("clipboard"), true);
  addEventListener("input", () => used || note("value"), true); // of a field it is asked what it keeps
  addEventListener("scroll", () => note("scroll"), true);
  addEventListener("focusin", ({ target }) => target !== used && note("focus"), true);
  if (navigator.clipboard) {
    const write = navigator.clipboard.writeText.bind(navigator.clipboard);
    navigator.clipboard.writeText = (text) => {
      note("clipboard");
      return write(text);
    };
  }

  /** Times that grow, curves and the dot change by themselves. */
  const isOwn = (element) => element.closest("svg, canvas, time, [data-testid=live-dot], [class*=u-legend]") !== null;
  const hasElements = (nodes) => [...nodes].some((node) => node.nodeType === Node.ELEMENT_NODE && !isOwn(node));
  const watcher = new MutationObserver((changes) => {
    for (const { type, target, addedNodes, removedNodes, attributeName } of changes) {
      if (target.nodeType !== Node.ELEMENT_NODE || isOwn(target)) continue;
      if (type === "attributes") note(`${attributeName} of ${target.tagName.toLowerCase()}`);
      else if (hasElements(addedNodes) || hasElements(removedNodes)) note("elements");
    }
  });
  watcher.observe(document, { subtree: true, childList: true, attributes: true, attributeFilter: [...STATES, ...MARKS] });

  const words = (text) => (text ?? "").trim().replace(/\s+/g, " ").replace(/\d+/g, "#").slice(0, 80);
  const named = (element) =>
    words(element.getAttribute("aria-label")) ||
    words([...(element.labels ?? [])].map((label) => label.textContent).join(" ")) ||
    words(element.matches("select, input, textarea") ? "" : element.textContent) ||
    words(element.getAttribute("title") ?? element.getAttribute("placeholder"));

  /** Where an element is, without which of several alike it is. */
  const placeOf = (element) => {
    const parts = [];
    for (let one = element; one && one !== document.body; one = one.parentElement) {
      parts.unshift(one.tagName.toLowerCase() + (one.className?.split?.(" ")[0] ? `.${one.className.split(" ")[0]}` : ""));
    }
    return parts.join(">");
  };

  const isThere = (element) => {
    const dialogs = document.querySelectorAll("dialog[open]");
    const top = dialogs[dialogs.length - 1];
    if (top && !top.contains(element)) return false;
    return element.checkVisibility({ opacityProperty: true, visibilityProperty: true }) && !element.matches(":disabled");
  };

  /** Whether it is one of several of one name for tests: what it says is of the job, not of the page. */
  const isListed = ({ dataset: { testid } }) => Boolean(testid) && document.querySelectorAll(`[data-testid="${testid}"]`).length > 1;

  /** Whether there is nothing to do: it leads to where one is, is what is chosen, or a choice of one. */
  const isIdle = (element) =>
    element.href === location.href ||
    element.matches("[aria-current=page], [aria-pressed=true], [type=radio]:checked") ||
    (element.tagName === "SELECT" && element.options.length < 2);

  /** Every control that one could use now; of more than so many beside each other all are one kind. */
  const controls = (many = Infinity) => {
    const found = [...document.querySelectorAll(CONTROLS)].filter(isThere);
    const counts = new Map();
    const alike = new Map();
    const count = (map, key) => map.set(key, (map.get(key) ?? 0) + 1).get(key);
    const listed = found.map((element) => {
      const place = `${placeOf(element)} ${element.type ?? ""} ${element.dataset.testid ?? ""}`;
      count(alike, place);
      const name = named(element);
      const key = isListed(element) ? place : `${place} ${name}`; // marks of a timeline merge as it grows
      return { element, place, name, key: `${key} ${count(counts, key)}` };
    });
    return listed.map(({ element, place, name, key }) => ({
      key,
      kind: isListed(element) || alike.get(place) > many ? place : `${place} ${name}`,
      name: `${element.tagName.toLowerCase()} ${JSON.stringify(name)}`,
      tag: element.tagName.toLowerCase(),
      role: element.getAttribute("role") ?? "",
      type: element.getAttribute("type") ?? "",
      href: element.href ?? "",
      testid: element.dataset.testid ?? "",
      is_idle: isIdle(element),
      is_shell: element.closest("header") !== null && element.closest("main, dialog") === null,
      element,
    }));
  };

  const find = (key) => controls().find((control) => control.key === key)?.element ?? null;
  const frame = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));

  /** Come back when the page has come to rest; what the server tells from now on waits. */
  const settle = async () => {
    isHeld = true;
    const end = performance.now() + 3000;
    while (performance.now() < end && (pending > 0 || performance.now() - last < 40)) await frame();
  };

  const begin = (key) => {
    used = key ? find(key) : null;
    began = location.href;
    seen = [];
  };

  const release = () => {
    isHeld = false;
    waiting.splice(0).forEach((tell) => tell());
  };

  /** Return what has happened since `begin`: at once when something has, nothing after a while. */
  const effects = async (patience) => {
    if (!seen.length) await Promise.race([new Promise((done) => (wake = done)), new Promise((done) => setTimeout(done, patience))]);
    await frame();
    wake = () => undefined;
    return [...new Set(seen)];
  };

  const list = (many) => controls(many).map(({ element, ...control }) => control);
  window.__effects = { list, find, settle, begin, release, effects };
})();
