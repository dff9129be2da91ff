
"use strict";
(() => {
  const find = (id) => document.getElementById(id);
  const facts = JSON.parse(find("facts").textContent);
  const text = find("text"), panel = find("panel"), tip = find("tip");
  const spans = Array.from(text.getElementsByTagName("span"));
  spans.forEach((span, index) => { span.index = index; });
  const hint = panel.firstElementChild, live = find("live");
  const types = { Uint8Array, Uint16Array, Uint32Array, Float32Array };
  const decoded = {};
  let chosen = -1, head = 0, marked = [], pointed = null;

  // The arrays are decoded when they are first needed, so that a large page opens quickly.
  function read(name) {
    if (!decoded[name]) {
      const binary = atob(find(name).textContent);
      const bytes = new Uint8Array(binary.length);
      for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
      decoded[name] = new types[facts.arrays[name]](bytes.buffer);
    }
    return decoded[name];
  }

  function make(tag, name, content) {
    const element = document.createElement(tag);
    if (name) element.className = name;
    if (content !== undefined) element.append(content);
    return element;
  }

  const name = (index) => facts.symbols[read("ids")[index]];
  const unpack = (byte) => (byte / 255) ** 2;
  const percent = (share) =>
    share >= 0.0995 ? `${Math.round(100 * share)}%`
      : share >= 0.00005 ? `${(100 * share).toPrecision(2)}%` : share > 0 ? "<0.01%" : "0%";

  // A continued character is shown at its first token.
  function nameInFull(index) {
    let first = index;
    while (first > 0 && spans[first].classList.contains("more")) first--;
    const character = spans[first].textContent;
    const isPart = first < index || spans[index + 1]?.classList.contains("more");
    return isPart ? `${name(index)} (in ${character})` : name(index);
  }

  function describe(index) {
    const line = make("p");
    line.append(make("span", "symbol", nameInFull(index)));
    if (index === 0) {
      line.append(" is the first token, and is not predicted");
      return line;
    }
    const nats = read("nats")[index - 1];
    const of = facts.n_symbols === null ? "" : ` of ${facts.n_symbols.toLocaleString("en")}`;
    line.append(
      ` ${(nats / Math.LN2).toFixed(2)} bits, ${percent(Math.exp(-nats))}, `
      + `rank ${read("ranks")[index - 1].toLocaleString("en")}${of}`
    );
    return line;
  }

  function listAlternatives(index) {
    const table = make("table", "alternatives");
    const count = facts.n_alternatives, ids = read("alternatives");
    for (let place = (index - 1) * count; index > 0 && place < index * count; place++) {
      const row = make("tr", ids[place] === read("ids")[index] ? "true" : "");
      row.append(make("td", "symbol", facts.symbols[ids[place]]));
      row.append(make("td", "number", percent(Math.exp(read("log_probs")[place]))));
      table.append(row);
    }
    return table;
  }

  // The attention is that of the token before, the last one read when this one is predicted.
  function listKeys(index, row) {
    const query = index - 1, place = query * facts.heads.length + row;
    const segment = query - query % facts.tgt_len;
    const keys = [];
    for (let i = place * facts.n_keys; i < (place + 1) * facts.n_keys; i++) {
      const weight = unpack(read("weights")[i]);
      const key = query - read("distances")[i];
      if (weight >= 0.001) keys.push({ key, weight, isOld: key < segment });
    }
    return keys;
  }

  function makeChip({ key, weight, isOld }, index) {
    const chip = make("span", isOld ? "chip old" : "chip", name(key));
    chip.style.setProperty("--weight", (0.1 + 0.5 * Math.sqrt(weight)).toFixed(3));
    chip.append(" ", make("small", "", percent(weight)));
    chip.dataset.key = key;
    chip.title = `token ${key}, ${index - key} before${isOld ? ", in the memory" : ""}`;
    return chip;
  }

  function listHeads(index) {
    const table = make("table");
    table.id = "heads";
    const hasEmpty = "empty" in facts.arrays;
    const top = make("tr");
    for (const title of ["head", "memory", ...(hasEmpty ? ["empty"] : []), "strongest keys"]) {
      top.append(make("th", "", title));
    }
    table.append(top);
    facts.heads.forEach((label, row) => {
      const line = make("tr", row === head ? "on" : "");
      const button = make("button", "", label);
      button.type = "button";
      button.dataset.head = row;
      button.setAttribute("aria-pressed", row === head);
      const place = (index - 1) * facts.heads.length + row;
      line.append(make("td", "", button));
      line.append(make("td", "", percent(unpack(read("in_memory")[place]))));
      if (hasEmpty) line.append(make("td", "", percent(unpack(read("empty")[place]))));
      const cell = make("td", "chips");
      for (const key of listKeys(index, row)) cell.append(makeChip(key, index), " ");
      line.append(cell);
      table.append(line);
    });
    return table;
  }

  function mark() {
    for (const span of marked) {
      span.classList.remove("key", "old");
      span.style.removeProperty("--weight");
    }
    marked = [];
    if (chosen < 1) return;
    for (const { key, weight, isOld } of listKeys(chosen, head)) {
      const span = spans[key];
      span.classList.add("key", ...(isOld ? ["old"] : []));
      span.style.setProperty("--weight", (0.1 + 0.6 * Math.sqrt(weight)).toFixed(3));
      marked.push(span);
    }
  }

  function point(span) {
    pointed?.classList.remove("pointed");
    pointed = span;
    pointed?.classList.add("pointed");
  }

  function showPanel() {
    const scroll = panel.scrollTop;
    const summary = describe(chosen);
    live.textContent = summary.textContent;
    panel.replaceChildren(
      make("h2", "", `Token ${chosen.toLocaleString("en")}`), summary, listAlternatives(chosen)
    );
    if (chosen > 0) {
      panel.append(
        make("h2", "", "Where the heads look"),
        make("p", "note", `The attention with which token ${chosen} is predicted: that of token `
          + `${chosen - 1}, the last one read. The text shows the chosen head. Dashed: in the `
          + "memory. Esc brings the colors of surprisal back."),
        listHeads(chosen)
      );
    }
    panel.scrollTop = scroll;
  }

  function choose(index, { keepsPlace = false } = {}) {
    spans[chosen]?.classList.remove("current");
    point(null);
    chosen = index;
    text.classList.toggle("chosen", chosen >= 0);
    if (chosen < 0) {
      panel.replaceChildren(hint);
    } else {
      spans[chosen].classList.add("current");
      showPanel();
      if (!keepsPlace) spans[chosen].scrollIntoView({ block: "nearest" });
    }
    mark();
    remember();
  }

  function chooseHead(row) {
    head = row;
    if (chosen >= 0) showPanel();
    mark();
    remember();
  }

  function remember() {
    const parts = chosen < 0 ? "" : `#token=${chosen}&head=${facts.heads[head]}`;
    try {
      history.replaceState(null, "", parts || location.pathname + location.search);
    } catch { /* A page in a frame may not change its address. */ }
  }

  function restore() {
    const wanted = new URLSearchParams(location.hash.slice(1) || facts.choice);
    const index = Number(wanted.get("token") ?? -1);
    const row = facts.heads.indexOf(wanted.get("head"));
    if (row >= 0) head = row;
    if (Number.isInteger(index) && index >= 0 && index < spans.length) {
      choose(index, { keepsPlace: true });
      spans[index].scrollIntoView({ block: "center" });
    }
  }

  function showTip(span) {
    tip.replaceChildren(describe(span.index), listAlternatives(span.index));
    tip.hidden = false;
    const place = span.getBoundingClientRect(), own = tip.getBoundingClientRect();
    const below = place.bottom + 6 + own.height <= innerHeight;
    const left = Math.min(place.left, document.documentElement.clientWidth - own.width - 8);
    tip.style.left = `${Math.max(left, 8)}px`;
    tip.style.top = `${below ? place.bottom + 6 : Math.max(place.top - own.height - 6, 0)}px`;
  }

  // The token of the next or previous line that is nearest.
  function findInLine(step) {
    const middle = (span) => {
      const box = span.getClientRects()[0];
      return box ? { x: box.left + box.width / 2, y: box.top } : { x: 0, y: 0 };
    };
    const start = middle(spans[chosen]);
    let best = chosen, line = null;
    for (let i = chosen + step; i >= 0 && i < spans.length; i += step) {
      const here = middle(spans[i]);
      if (Math.abs(here.y - start.y) < 4) continue;
      line ??= here.y;
      if (Math.abs(here.y - line) >= 4) break;
      if (best === chosen || Math.abs(here.x - start.x) < Math.abs(middle(spans[best]).x - start.x)) {
        best = i;
      }
    }
    return best;
  }

  const tokenOf = (target) => (target.index === undefined ? null : target);

  text.addEventListener("mouseover", (event) => {
    const span = tokenOf(event.target);
    if (span) showTip(span);
    else tip.hidden = true;
  });
  text.addEventListener("mouseleave", () => { tip.hidden = true; });
  addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });
  text.addEventListener("click", (event) => {
    const span = tokenOf(event.target);
    if (span) choose(span.index === chosen ? -1 : span.index, { keepsPlace: true });
  });
  text.addEventListener("keydown", (event) => {
    const last = spans.length - 1, from = Math.max(chosen, 0);
    const moves = {
      ArrowRight: () => Math.min(chosen + 1, last),
      ArrowLeft: () => Math.max(from - 1, 0),
      ArrowDown: () => (chosen < 0 ? 0 : findInLine(1)),
      ArrowUp: () => (chosen < 0 ? 0 : findInLine(-1)),
      Escape: () => -1,
    };
    if (event.ctrlKey || event.metaKey || event.altKey || !moves[event.key]) return;
    event.preventDefault();
    tip.hidden = true;
    choose(moves[event.key]());
  });
  panel.addEventListener("click", (event) => {
    const button = event.target.closest("[data-head]"), chip = event.target.closest("[data-key]");
    if (button) {
      chooseHead(Number(button.dataset.head));
      panel.querySelector(".on button").focus({ preventScroll: true });
    } else if (chip) {
      spans[chip.dataset.key].scrollIntoView({ block: "nearest" });
    }
  });
  panel.addEventListener("mouseover", (event) => {
    const chip = event.target.closest("[data-key]");
    point(chip ? spans[chip.dataset.key] : null);
  });
  panel.addEventListener("mouseleave", () => point(null));
  addEventListener("hashchange", restore);
  addEventListener("load", restore); // the sizes of a frame are not known before
})();
