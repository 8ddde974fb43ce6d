// Live: the server sends the sections that have changed; the rest of the page works without this file.
"use strict";

(() => {
  const main = document.getElementById("content");
  const live = document.getElementById("live");

  // "3 min ago" beside each time. Titles keep the exact time.
  function ages(root) {
    for (const time of root.querySelectorAll("time")) {
      const seconds = Math.max(0, (Date.now() - Date.parse(time.dateTime)) / 1000);
      const [amount, unit] =
        seconds < 90 ? [seconds, "s"] : seconds < 5400 ? [seconds / 60, "min"] : seconds < 129600 ? [seconds / 3600, "h"] : [seconds / 86400, "d"];
      if (!time.title) time.title = time.textContent;
      time.textContent = `${Math.round(amount)} ${unit} ago`;
    }
  }

  function replace(id, text) {
    const old = document.getElementById(id);
    if (!old) return false;
    const parsed = new DOMParser().parseFromString(text, "text/html").body.firstElementChild;
    const focused = old.contains(document.activeElement) ? document.activeElement.id : "";
    for (const opened of old.querySelectorAll("details[open]")) {
      const now = opened.id && parsed.querySelector(`#${CSS.escape(opened.id)}`);
      if (now) now.open = true;
    }
    old.replaceWith(parsed);
    if (focused) document.getElementById(focused)?.focus();
    ages(parsed);
    return true;
  }

  function hear(message) {
    const news = JSON.parse(message.data);
    if (news.reload) {
      location.reload();
      return;
    }
    for (const [id, text] of Object.entries(news.sections)) {
      if (!replace(id, text)) location.reload();
    }
    // The worst nodes come first, also when another one has become the worst.
    const nodes = document.querySelector(".nodes");
    for (const id of news.order ?? []) {
      const row = document.getElementById(id);
      if (row?.parentNode === nodes) nodes.append(row);
    }
    search();
  }

  // The search box and the chips of many nodes: the server answers them too, for those without JavaScript.
  const box = document.getElementById("q");
  const show = document.getElementById("show");
  function search() {
    if (!box) return;
    const asked = box.value.trim().toLowerCase();
    let shown = 0;
    for (const row of document.querySelectorAll("[data-words]")) {
      const chosen = show.value === "" || row.dataset.show.split(" ").includes(show.value);
      row.hidden = !chosen || (asked !== "" && !row.dataset.words.includes(asked));
      if (!row.hidden) shown += 1;
    }
    for (const chip of document.querySelectorAll("[data-show-only]")) {
      if (chip.dataset.showOnly === show.value) chip.setAttribute("aria-current", "true");
      else chip.removeAttribute("aria-current");
    }
    const count = document.getElementById("count");
    if (count) count.textContent = `${shown} shown`;
  }
  function remember() {
    const query = new URLSearchParams(Object.entries({ show: show.value, q: box.value.trim() }).filter(([, value]) => value));
    history.replaceState(null, "", query.size ? `?${query}` : location.pathname);
  }
  if (box) {
    box.addEventListener("input", () => { search(); remember(); });
    box.form.addEventListener("submit", (event) => event.preventDefault());
    document.addEventListener("click", (event) => {
      const chip = event.target.closest("[data-show-only]");
      if (!chip || event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      show.value = chip.dataset.showOnly;
      search();
      remember();
    });
  }
  // A curve leads to its numbers: they are opened.
  function openHour() {
    const numbers = document.getElementById(location.hash.slice(1));
    if (numbers?.tagName === "DETAILS") numbers.open = true;
  }
  addEventListener("hashchange", openHour);

  ages(document);
  search();
  openHour();
  setInterval(() => ages(document), 10000);
  if (main && main.dataset.events) {
    function follow() {
      const events = new EventSource(main.dataset.events);
      events.onmessage = hear;
      events.onopen = () => { live.textContent = "Live: the page shows changes as they come."; };
      events.onerror = () => {
        live.textContent = "Not live: the connection is lost; the page tries again.";
        // After an answer such as 503 (too many pages are open) a browser does not try again.
        if (events.readyState === EventSource.CLOSED) setTimeout(follow, 5000);
      };
    }
    follow();
  }
})();
