// Numbers, times and causes in words. Pure functions: no document, no clock.

const NUMBER = new Intl.NumberFormat("en");
const UNITS = ["B", "kB", "MB", "GB", "TB", "PB"];
const FULL_LAG_BYTES = 256e6;
const LAG_GRAIN_BYTES = 4096;

export const count = (n) => NUMBER.format(n);

export const index = (n) => (n < 0 ? "empty" : count(n));

export function bytes(n) {
  let value = n;
  let unit = 0;
  while (value >= 1000 && unit < UNITS.length - 1) {
    value /= 1000;
    unit += 1;
  }
  const digits = unit === 0 || value >= 100 ? 0 : 1;
  return `${value.toFixed(digits)} ${UNITS[unit]}`;
}

export function duration(ms) {
  const s = Math.max(0, Math.floor(ms / 1000));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

export const contact = (ms) => (ms < 1000 ? `${ms} ms ago` : `${duration(ms)} ago`);

// The day is left out when it is today: what matters at three in the morning is the time.
export function clock(unixMs, nowMs) {
  const then = new Date(unixMs);
  const time = then.toLocaleTimeString("en-GB");
  return then.toDateString() === new Date(nowMs).toDateString()
    ? time
    : `${then.toLocaleDateString("en-CA")} ${time}`;
}

export function lag(entries, size) {
  if (entries === null) return "not known";
  if (entries <= 0) return "up to date";
  return `${count(entries)} ${entries === 1 ? "entry" : "entries"}, ${bytes(size)}`;
}

// 0..1. Logarithmic: what is on its way under load stays small, and a day of missed entries still fits.
export const lagShare = (size) =>
  Math.min(1, Math.log1p(Math.max(0, size) / LAG_GRAIN_BYTES) / Math.log1p(FULL_LAG_BYTES / LAG_GRAIN_BYTES));

export function lagLevel(size) {
  if (size < 1e6) return "ok";
  return size < 64e6 ? "warn" : "bad";
}

// Why a term began, told of the node that began it.
const WHY = {
  start: (who) => `${who} started.`,
  timeout: (who) => `${who} had not heard from a leader in time.`,
  "stream-lost": (who) => `${who} lost its connection to the leader.`,
  transfer: (who) => `Leadership was handed over on request (${who}).`,
};

export function story(election) {
  const parts = [];
  if (Object.hasOwn(WHY, election.cause)) parts.push(WHY[election.cause](election.cause_node_id));
  if (election.lost_by) parts.push(`${election.lost_by} later could not reach a majority and stepped down.`);
  return parts.join(" ");
}

const SAW = {
  start: "started",
  timeout: "heard from no leader in time and stood for election",
  "stream-lost": "lost its connection to the leader and stood for election",
  transfer: "was asked to take over the leadership",
  "higher-term": "learned of this term from another node",
  "quorum-lost": "could not reach a majority and stepped down",
  "leader-seen": "recognised the leader",
  won: "won the election",
};

export function saw(event) {
  const words = Object.hasOwn(SAW, event.cause) ? SAW[event.cause] : event.cause;
  return event.cause === "leader-seen" && event.leader_id ? `recognised ${event.leader_id} as leader` : words;
}
