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
    search();
  }

  // The search box of many nodes: the server answers it too, for those without JavaScript.
  const box = document.getElementById("q");
  function search() {
    if (!box) return;
    const asked = box.value.trim().toLowerCase();
    let shown = 0;
    for (const row of document.querySelectorAll("[data-words]")) {
      row.hidden = asked !== "" && !row.dataset.words.includes(asked);
      if (!row.hidden) shown += 1;
    }
    const count = document.getElementById("count");
    if (count) count.textContent = `${shown} shown`;
  }
  if (box) {
    box.addEventListener("input", search);
    box.form.addEventListener("submit", (event) => event.preventDefault());
  }

  ages(document);
  search();
  setInterval(() => ages(document), 10000);
  if (main && main.dataset.events) {
    const events = new EventSource(main.dataset.events);
    events.onmessage = hear;
    events.onopen = () => { live.textContent = "Live: changes appear by themselves."; };
    events.onerror = () => { live.textContent = "Not live: the connection is lost. It is tried again."; };
  }
})();
