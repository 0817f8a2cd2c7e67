// Asks /cluster each second and shows the answer; says so when there is none.

import * as view from "./view.js";
import * as words from "./words.js";

const POLL_MS = 1000;
const GIVE_UP_MS = 4000;
const SAMPLES = 60;
// The rate is taken over this many samples, so that a pause of one poll is not shown as a stall.
const RATE_OVER = 4;

const state = {
  samples: [], // {unix_ms, index, pos} of what was committed, oldest first
  rates: [],
  bytesPerSecond: 0,
  lastGoodMs: null,
  nodeId: "this node",
  leaderId: undefined,
};

async function ask() {
  const response = await fetch("/cluster", { cache: "no-store", signal: AbortSignal.timeout(GIVE_UP_MS) });
  if (!response.ok) {
    const body = await response.json().catch(() => ({}));
    throw new Error(body.error || `HTTP ${response.status}`);
  }
  return response.json();
}

function measure(cluster) {
  const now = { unix_ms: cluster.unix_ms, index: cluster.committed_index, pos: cluster.committed_pos };
  const last = state.samples.at(-1);
  if (last && now.unix_ms === last.unix_ms) return; // the cached answer of another page
  if (last && (now.unix_ms < last.unix_ms || now.index < last.index)) {
    // The clock was set back, or the node that knew most is gone: what was measured before does not join up.
    state.samples = [];
    state.rates = [];
  }
  state.samples.push(now);
  if (state.samples.length > RATE_OVER + 1) state.samples.shift();
  const first = state.samples[0];
  const seconds = (now.unix_ms - first.unix_ms) / 1000;
  if (seconds <= 0) return;
  state.rates.push((now.index - first.index) / seconds);
  state.bytesPerSecond = (now.pos - first.pos) / seconds;
  if (state.rates.length > SAMPLES) state.rates.shift();
}

function announceLeader(cluster) {
  const leaderId = cluster.leader === null ? "" : cluster.leader.node_id;
  if (state.leaderId !== undefined && leaderId !== state.leaderId) {
    view.announce(leaderId ? `${leaderId} is now the leader, term ${cluster.term}` : "The cluster has no leader");
  }
  state.leaderId = leaderId;
}

function stale(error) {
  const reason = error.name === "TypeError" ? "it cannot be reached" : error.message;
  const since = state.lastGoodMs === null
    ? "Nothing has been heard of it yet."
    : `What you see is from ${words.clock(state.lastGoodMs, Date.now())}, ${words.duration(Date.now() - state.lastGoodMs)} ago.`;
  view.showStale(`${state.nodeId} does not answer (${reason}). ${since}`);
}

async function poll() {
  try {
    const cluster = await ask();
    measure(cluster);
    // Ages are counted on the clock of the node that was asked: the one of this browser may be wrong.
    view.show(cluster, cluster.unix_ms);
    view.showThroughput(state.rates, state.bytesPerSecond);
    announceLeader(cluster);
    state.nodeId = cluster.asked_node_id;
    state.lastGoodMs = Date.now();
    view.showFresh(`live · ${words.clock(state.lastGoodMs, state.lastGoodMs)}`);
  } catch (error) {
    stale(error);
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
