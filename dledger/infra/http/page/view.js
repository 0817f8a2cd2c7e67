// Puts one answer of /cluster into the document. Everything goes through textContent: node ids are not trusted.

import * as words from "./words.js";

const $ = (id) => document.getElementById(id);
const HOST_PORT = /^(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}$/;
const SVG_HEIGHT = 28;
const SVG_WIDTH = 120;

// Touch the document only where something changed: selections, focus and screen readers stay undisturbed.
function setText(element, text) {
  const wanted = String(text);
  if (element.textContent !== wanted) element.textContent = wanted;
}

export function show(cluster, nowMs) {
  document.title = cluster.leader
    ? `${cluster.cluster_id}: ${cluster.leader.node_id} leads`
    : `${cluster.cluster_id}: no leader`;
  setText($("cluster"), cluster.cluster_id);
  setText($("group"), `group ${cluster.group}`);
  setText($("asked"), cluster.asked_node_id);
  showLeader(cluster, nowMs);
  setText($("term"), words.count(cluster.term));
  setText($("committed"), words.index(cluster.committed_index));
  setText($("committed-pos"), `${words.bytes(cluster.committed_pos)} in all`);
  showQuorum(cluster.nodes);
  showNodes(cluster);
  showTrouble(cluster.nodes);
  showUpkeep(cluster.nodes, nowMs);
  showOwner(cluster.nodes, nowMs);
  showLimits(cluster.nodes);
  showElections(cluster.elections, nowMs);
}

function showLeader(cluster, nowMs) {
  const leader = cluster.leader;
  $("leader-card").classList.toggle("none", leader === null);
  if (leader === null) {
    setText($("leader"), "No leader");
    setText($("leader-address"), "");
    setText($("leader-since"), "Appends are refused until a majority of the nodes has elected one.");
    return;
  }
  setText($("leader"), leader.node_id);
  const since = leader.since_unix_ms
    ? `since ${words.clock(leader.since_unix_ms, nowMs)}, for ${words.duration(nowMs - leader.since_unix_ms)}`
    : "";
  const moving = leader.transferring_to ? `, handing over to ${leader.transferring_to}` : "";
  setText($("leader-since"), since + moving);
  setText($("leader-address"), leader.address);
}

function showQuorum(nodes) {
  const up = nodes.filter((node) => node.reachable).length;
  const majority = Math.floor(nodes.length / 2) + 1;
  const spare = up - majority;
  let meaning = "too few for a majority";
  if (spare === 0) meaning = "a majority, but none more may fail";
  if (spare > 0) meaning = `${spare} more may fail`;
  setText($("up"), `${up} of ${nodes.length}`);
  setText($("quorum"), meaning);
  $("quorum").classList.toggle("alarm", spare <= 0 && up < nodes.length);
}

function showNodes(cluster) {
  showRows($("nodes"), $("node-row"), cluster.nodes, (row, node) => fillRow(row, node, cluster));
}

// One row for each node, kept as long as there is the node.
function showRows(body, template, nodes, fill) {
  const rows = new Map([...body.children].map((row) => [row.dataset.node, row]));
  for (const node of nodes) {
    let row = rows.get(node.node_id);
    if (!row) {
      row = template.content.firstElementChild.cloneNode(true);
      row.dataset.node = node.node_id;
      body.append(row);
    }
    rows.delete(node.node_id);
    fill(row, node);
  }
  for (const gone of rows.values()) gone.remove();
}

function showUpkeep(nodes, nowMs) {
  showRows($("upkeep"), $("upkeep-row"), nodes, (row, node) => fillUpkeep(row, node, nowMs));
}

function fillUpkeep(row, node, nowMs) {
  const status = node.status;
  const cell = (name, [level, text]) => {
    const td = row.querySelector(`td.${name}`);
    td.dataset.level = level;
    setText(td, text);
    return td;
  };
  setText(row.querySelector(".id"), node.node_id);
  row.classList.toggle("down", status === null);
  if (status === null) {
    for (const td of row.querySelectorAll("td")) {
      td.dataset.level = "ok";
      setText(td, "—");
    }
    return;
  }
  cell("disk", words.disk(status));
  cell("begin", ["ok", words.count(status.ledger_begin_index)]);
  const image = status.newest_image < 0 ? "none" : words.count(status.newest_image);
  cell("image", ["ok", status.writing_image ? `${image}, writing one` : image]);
  cell("scrub", ["ok", words.scrub(status)]).title = `${words.count(status.scrub_found)} damaged ranges found since the start`;
  cell("damage", words.damage(status));
  const off = words.clockIsOff(status.clock_offset_ms) ? "warn" : "ok";
  cell("time", [off, words.clockOffset(status.clock_offset_ms)]).title = words.clock(status.cluster_time_ms, nowMs);
  cell("incarnation", ["ok", words.count(status.incarnation)]);
  cell("tls", ["ok", words.tls(status.tls)]);
}

function showTrouble(nodes) {
  const found = [];
  for (const node of nodes) {
    if (node.status === null) continue;
    for (const [level, text] of words.faults(node.status)) found.push([level, `${node.node_id}: ${text}`]);
  }
  $("faults-card").hidden = found.length === 0;
  const list = $("faults");
  if (list.children.length !== found.length) {
    list.replaceChildren(...found.map(() => document.createElement("li")));
  }
  found.forEach(([level, text], i) => {
    list.children[i].dataset.level = level;
    setText(list.children[i], text);
  });
}

function fillRow(row, node, cluster) {
  const status = node.status;
  const leads = cluster.leader !== null && cluster.leader.node_id === node.node_id;
  row.classList.toggle("leads", leads);
  row.classList.toggle("down", !node.reachable);
  showNodeName(row.querySelector(".node"), node, cluster.asked_node_id);
  const role = row.querySelector(".role");
  setText(role, status ? status.role.toLowerCase() : "unreachable");
  role.dataset.role = status ? status.role : "DOWN";
  const healthy = status !== null && status.health === "ok";
  row.querySelector(".health").dataset.level = healthy ? "ok" : "bad";
  setText(row.querySelector(".health .text"), status ? status.health : node.error);
  showLag(row.querySelector("td.lag"), node, leads);
  setText(row.querySelector(".end"), status ? words.index(status.ledger_end_index) : "—");
  setText(row.querySelector(".committed"), status ? words.index(status.committed_index) : "—");
  setText(row.querySelector(".applied"), status ? words.index(status.applied_index) : "—");
  const disk = row.querySelector(".disk");
  setText(disk, status ? words.bytes(status.disk_used_bytes) : "—");
  disk.title = status ? `${words.bytes(status.disk_free_bytes)} free` : "";
  setText(row.querySelector(".contact"), contactText(node, leads));
}

function contactText(node, leads) {
  if (leads) return "leads";
  if (node.last_contact_ms === null) return "—";
  return node.last_contact_ms < 0 ? "never" : words.contact(node.last_contact_ms);
}

function showNodeName(cell, node, askedId) {
  const linked = HOST_PORT.test(node.http_address) && node.node_id !== askedId;
  let id = cell.querySelector(".id");
  if (linked !== (id.tagName === "A")) {
    const fresh = document.createElement(linked ? "a" : "span");
    fresh.className = "id";
    id.replaceWith(fresh);
    id = fresh;
  }
  if (linked) {
    id.href = `${location.protocol}//${node.http_address}/`;
    id.title = "Open this node's own page";
  }
  setText(id, node.node_id);
  setText(cell.querySelector(".addr"), node.node_id === askedId ? `${node.address} · this page` : node.address);
}

function showLag(cell, node, leads) {
  const known = node.lag_bytes !== null;
  setText(cell.querySelector(".text"), leads ? "—" : words.lag(node.lag_entries, node.lag_bytes));
  cell.classList.toggle("unknown", leads || !known);
  cell.querySelector(".fill").style.width = known ? `${(100 * words.lagShare(node.lag_bytes)).toFixed(1)}%` : "0";
  cell.dataset.level = known ? words.lagLevel(node.lag_bytes) : "ok";
  cell.title = node.push_state && !leads ? `replication: ${node.push_state.toLowerCase()}` : "";
}

// What the programs on the nodes say. One that says a `card` gets a table: {title, facts: [[name, value], ...]},
// a value being a text or number, {unix_ms}, {bytes} or {text, level}. Others get their facts as they are.
function showOwner(nodes, nowMs) {
  const cards = new Map(nodes.map((node) => [node.node_id, cardOf(node)]));
  const newest = [...cards.values()].find((card) => card !== null);
  $("program-card").hidden = newest === undefined;
  if (newest !== undefined) {
    setText($("program-title"), newest.title);
    const names = newest.facts.map(([name]) => String(name));
    showCells($("program-head"), "th", ["Node", ...names], (th) => {
      th.setAttribute("role", "columnheader");
      th.scope = "col";
    });
    showRows($("program"), $("program-row"), nodes, (row, node) => fillCard(row, node, names, cards.get(node.node_id), nowMs));
  }
  const texts = [];
  for (const node of nodes) {
    if (cards.get(node.node_id) !== null) continue;
    const said = Object.entries(node.status && node.status.owner ? node.status.owner : {});
    const facts = said.map(([name, value]) => `${name}: ${typeof value === "string" ? value : JSON.stringify(value)}`);
    if (facts.length) texts.push(`${node.node_id}: ${facts.join(", ")}`);
  }
  showChips($("owner-card"), $("owner"), texts);
}

function cardOf(node) {
  const card = node.status && node.status.owner ? node.status.owner.card : null;
  if (!card || typeof card !== "object" || !Array.isArray(card.facts)) return null;
  return { title: card.title, facts: card.facts.filter((fact) => Array.isArray(fact) && fact.length === 2) };
}

// As many cells as there are texts, made anew only when their number changes.
function showCells(row, tag, texts, dress) {
  const cells = [...row.children].filter((cell) => cell.localName === tag && !cell.classList.contains("node"));
  while (cells.length > texts.length) cells.pop().remove();
  while (cells.length < texts.length) {
    const cell = document.createElement(tag);
    dress(cell);
    row.append(cell);
    cells.push(cell);
  }
  texts.forEach((text, i) => setText(cells[i], text));
  return cells;
}

function fillCard(row, node, names, card, nowMs) {
  setText(row.querySelector(".id"), node.node_id);
  row.classList.toggle("down", node.status === null);
  const facts = new Map(card === null ? [] : card.facts.map(([name, value]) => [String(name), value]));
  const shown = names.map((name) => words.fact(facts.get(name), nowMs));
  const cells = showCells(row, "td", shown.map(([, text]) => text), (td) => td.setAttribute("role", "cell"));
  shown.forEach(([level], i) => {
    cells[i].dataset.level = level;
    cells[i].dataset.label = names[i];
  });
}

function showLimits(nodes) {
  const texts = [];
  for (const node of nodes) {
    for (const [limit, hits] of Object.entries(node.status ? node.status.limits_hit : {})) {
      if (hits > 0) texts.push(`${node.node_id}: ${limit} × ${words.count(hits)}`);
    }
  }
  showChips($("limits-card"), $("limits"), texts);
}

function showChips(card, list, texts) {
  card.hidden = texts.length === 0;
  if (list.children.length !== texts.length) {
    list.replaceChildren(...texts.map(() => document.createElement("li")));
  }
  texts.forEach((text, i) => setText(list.children[i], text));
}

function showElections(elections, nowMs) {
  const list = $("elections");
  $("no-elections").hidden = elections.length > 0;
  const items = new Map([...list.children].map((item) => [item.dataset.term, item]));
  const wanted = elections.map((election) => {
    let item = items.get(String(election.term));
    if (!item) {
      item = $("election-item").content.firstElementChild.cloneNode(true);
      item.dataset.term = election.term;
    }
    fillElection(item, election, nowMs);
    return item;
  });
  const same = wanted.length === list.children.length && wanted.every((item, i) => list.children[i] === item);
  if (!same) list.replaceChildren(...wanted);
}

function fillElection(item, election, nowMs) {
  setText(item.querySelector(".chip"), `Term ${election.term}`);
  setText(item.querySelector(".who"), election.leader_id ? `${election.leader_id} elected` : "no leader came of it");
  const time = item.querySelector("time");
  time.title = new Date(election.unix_ms).toString();
  time.dateTime = new Date(election.unix_ms).toISOString();
  setText(time, `${words.clock(election.unix_ms, nowMs)} · ${words.duration(nowMs - election.unix_ms)} ago`);
  setText(item.querySelector(".why"), words.story(election));
  const lines = election.events.map((e) => `${words.clock(e.unix_ms, nowMs)}  ${e.node_id} ${words.saw(e)}`);
  const list = item.querySelector("ul");
  if (list.children.length !== lines.length) {
    list.replaceChildren(...lines.map(() => document.createElement("li")));
  }
  lines.forEach((line, i) => setText(list.children[i], line));
}

// `rates` are entries per second, oldest first, one per poll.
export function showThroughput(rates, bytesPerSecond) {
  const last = rates.length ? rates[rates.length - 1] : null;
  setText($("rate"), last === null ? "—" : words.count(last < 10 ? Math.round(last * 10) / 10 : Math.round(last)));
  setText($("rate-bytes"), last === null ? "measuring…" : `${words.bytes(bytesPerSecond)}/s, last minute:`);
  const [area, line] = $("spark").children;
  if (rates.length < 2) {
    area.setAttribute("d", "");
    line.setAttribute("d", "");
    return;
  }
  const top = Math.max(...rates, 1);
  const step = SVG_WIDTH / (rates.length - 1);
  const points = rates.map((r, i) => `${(i * step).toFixed(1)} ${(SVG_HEIGHT - 1 - (r / top) * (SVG_HEIGHT - 3)).toFixed(1)}`);
  line.setAttribute("d", `M${points.join("L")}`);
  area.setAttribute("d", `M0 ${SVG_HEIGHT}L${points.join("L")}L${SVG_WIDTH} ${SVG_HEIGHT}Z`);
}

export function showFresh(text) {
  document.body.dataset.state = "live";
  $("stale").hidden = true;
  setText($("freshness"), text);
}

export function showStale(text) {
  document.body.dataset.state = "stale";
  $("stale").hidden = false;
  setText($("stale"), text);
  setText($("freshness"), "not updating");
}

export function announce(text) {
  setText($("announce"), text);
}
