// Asks /status each second and shows the answer; says so when there is none. Everything goes through
// textContent: names that brokers give themselves are not trusted.

import * as words from "./words.js";

const POLL_MS = 1000;
const GIVE_UP_MS = 4000;
const SHOWN_EVENTS = 20;
const HOST_PORT = /^(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}$/;
const $ = (id) => document.getElementById(id);

let lastGoodMs = null;
const shown = {}; // id of a table or list -> what it shows, so that nothing is touched that has not changed

function setText(element, text) {
  const wanted = String(text);
  if (element.textContent !== wanted) element.textContent = wanted;
}

function element(tag, text, attributes = {}) {
  const made = document.createElement(tag);
  if (text !== null) made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

// Rows of cells [label, text, class]; the first is the head of its row.
function fill(id, rows) {
  const state = JSON.stringify(rows);
  if (shown[id] === state) return;
  shown[id] = state;
  $(id).replaceChildren(...rows.map((cells) => {
    const row = element("tr", null, { role: "row" });
    row.append(...cells.map(([label, text, kind, link], i) => {
      const cell = i === 0
        ? element("th", link ? null : text, { role: "rowheader", scope: "row" })
        : element("td", kind === "role" || link ? null : text, { role: "cell", "data-label": label });
      if (kind === "num") cell.className = "num";
      if (kind === "role") cell.append(element("span", text.toLowerCase(), { class: "role", "data-role": roleClass(text) }));
      if (link) cell.append(element("a", text, { href: link, title: "Open this broker's own page" }));
      return cell;
    }));
    return row;
  }));
}

const roleClass = (role) => (role.endsWith("MASTER") ? "LEADER" : role === "SLAVE" ? "FOLLOWER" : "UNKNOWN");

function permissions(perm) {
  const parts = [];
  if (perm & 4) parts.push("read");
  if (perm & 2) parts.push("write");
  return parts.join(", ") || "none";
}

function show(status) {
  setText($("address"), status.address);
  setText($("version"), status.version || "—");
  const masters = status.brokers.filter((b) => b.broker_id === 0);
  const names = new Set(status.brokers.map((b) => b.broker_name));
  setText($("masters"), `${words.count(masters.length)} of ${words.count(names.size)}`);
  setText($("masters-text"), masters.map((b) => `${b.broker_name}: ${b.node_id}`).join(", ") || "No broker name has a master.");
  setText($("broker-count"), words.count(status.brokers.length));
  setText($("sessions"), `${words.count(status.sessions)} connected`);
  setText($("topic-count"), words.count(status.topics));
  setText($("watchers"), `${words.count(status.watchers)} clients watch routes`);
  setText($("uptime"), words.duration(status.uptime_ms));
  setText($("settings"), `${words.count(status.config_entries)} settings`);
  showBrokers(status);
  showTopics(status);
  showLimits(status.limits_hit);
  showEvents(status.events, status.unix_ms);
}

function showBrokers(status) {
  const wiped = new Set(status.write_wiped);
  fill("brokers", status.brokers.map((b) => [
    ["Broker", wiped.has(b.broker_name) ? `${b.broker_name} (not writable)` : b.broker_name],
    ["Node", `${b.node_id} · ${b.address}`, "", HOST_PORT.test(b.http_address) ? `${location.protocol}//${b.http_address}/` : ""],
    ["Role", b.role, "role"],
    ["Id", String(b.broker_id), "num"],
    ["Term", words.count(b.term), "num"],
    ["Connection", b.has_session ? "open" : "none, expires"],
    ["Last registration", `${words.duration(b.last_update_ms)} ago`, "num"],
  ]));
}

function showTopics(status) {
  const rows = [];
  for (const [topic, brokers] of Object.entries(status.topic_rows)) {
    for (const [name, queues] of Object.entries(brokers)) {
      rows.push([
        ["Topic", topic],
        ["Broker", name],
        ["Read queues", words.count(queues.read_queues), "num"],
        ["Write queues", words.count(queues.write_queues), "num"],
        ["Permissions", permissions(queues.perm)],
      ]);
    }
  }
  fill("topics", rows);
  const left = status.topics - Object.keys(status.topic_rows).length;
  setText($("more-topics"), left > 0 ? `and ${words.count(left)} more` : "");
}

function showLimits(limits) {
  const texts = Object.entries(limits).map(([limit, hits]) => `${limit} × ${words.count(hits)}`);
  $("limits-card").hidden = texts.length === 0;
  $("limits").replaceChildren(...texts.map((text) => element("li", text)));
}

function showEvents(events, nowMs) {
  const last = events.slice(-SHOWN_EVENTS).reverse();
  $("no-events").hidden = last.length > 0;
  const state = JSON.stringify(last);
  if (shown.events === state) return;
  shown.events = state;
  $("events").replaceChildren(...last.map((event) => {
    const item = element("li", null);
    const head = element("p", null, { class: "head" });
    const who = `${event.node_id} of ${event.broker_name}`;
    head.append(element("span", event.what, { class: "chip" }), element("b", who), element("time", words.clock(event.unix_ms, nowMs)));
    item.append(head, element("p", event.text, { class: "why dim" }));
    return item;
  }));
}

async function poll() {
  try {
    const response = await fetch("/status", { cache: "no-store", signal: AbortSignal.timeout(GIVE_UP_MS) });
    if (!response.ok) throw new Error(`HTTP ${response.status}`);
    show(await response.json());
    lastGoodMs = Date.now();
    document.body.dataset.state = "live";
    $("stale").hidden = true;
    setText($("freshness"), `live · ${words.clock(lastGoodMs, lastGoodMs)}`);
  } catch (error) {
    const reason = error.name === "TypeError" ? "it cannot be reached" : error.message;
    const since = lastGoodMs === null ? "" : ` What you see is ${words.duration(Date.now() - lastGoodMs)} old.`;
    document.body.dataset.state = "stale";
    $("stale").hidden = false;
    setText($("stale"), `The NameServer does not answer (${reason}).${since}`);
    setText($("freshness"), "not updating");
  }
}

async function run() {
  // A page that nobody looks at asks nothing.
  if (!document.hidden) await poll();
  setTimeout(run, POLL_MS);
}

document.addEventListener("visibilitychange", () => {
  if (!document.hidden) poll();
});
run();
