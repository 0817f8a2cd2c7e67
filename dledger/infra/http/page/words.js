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
  "leader-silent": (who) => `${who} received nothing from the leader for a short time.`,
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
  "leader-silent": "received nothing from the leader for a short time and stood for election",
  transfer: "was asked to take over the leadership",
  "higher-term": "learned of this term from another node",
  "quorum-lost": "could not reach a majority and stepped down",
  "disk-stalled": "stepped down because its disk did not answer",
  "commit-stalled": "stepped down because it committed nothing",
  "leader-seen": "recognised the leader",
  won: "won the election",
};

export function saw(event) {
  const words = Object.hasOwn(SAW, event.cause) ? SAW[event.cause] : event.cause;
  return event.cause === "leader-seen" && event.leader_id ? `recognised ${event.leader_id} as leader` : words;
}

// How far a wall clock may be off before it is worth a word.
const CLOCK_OFF_MS = 60_000;

const DISK = {
  ok: ["ok", (s) => `${bytes(s.disk_free_bytes)} free`],
  low: ["warn", (s) => `low: ${bytes(s.disk_free_bytes)} free`],
  full: ["bad", (s) => `full: ${bytes(s.disk_free_bytes)} free`],
  stalled: ["bad", (s) => `does not answer for ${duration(s.fsync_ms)}`],
};

// [level, text] of a disk. A state that a newer node may know is shown as it is.
export function disk(status) {
  const [level, text] = Object.hasOwn(DISK, status.disk) ? DISK[status.disk] : ["warn", () => status.disk];
  return [level, text(status)];
}

export function scrub(status) {
  const end = status.ledger_end_index;
  if (status.scrubbed_index < 0 || end < 0) return "not yet";
  return status.scrubbed_index >= end ? "all of it" : `up to ${count(status.scrubbed_index)}`;
}

export function damage(status) {
  const found = status.damaged.length;
  if (found > 0) return ["bad", `${count(found)} ${found === 1 ? "range" : "ranges"}`];
  return ["ok", status.repaired > 0 ? `${count(status.repaired)} repaired` : "none"];
}

export function clockOffset(ms) {
  if (Math.abs(ms) < 1000) return "in step";
  return `${duration(Math.abs(ms))} ${ms > 0 ? "behind" : "ahead of"} its clock`;
}

export const clockIsOff = (ms) => Math.abs(ms) >= CLOCK_OFF_MS;

const TLS = { off: "off", server: "on", mutual: "mutual" };

export const tls = (kind) => (Object.hasOwn(TLS, kind) ? TLS[kind] : kind);

// What somebody should look at, of one node: [level, text], the worst first. Empty when all is well.
export function faults(status) {
  const found = [];
  const [level, text] = disk(status);
  if (level !== "ok") found.push([level, `disk ${text}`]);
  for (const d of status.damaged) {
    const come = status.repairing_index >= d.first_index && status.repairing_index <= d.last_index + 1;
    const repair = come ? `; the repair is at ${count(status.repairing_index)}` : "; waiting for a repair";
    found.push(["bad", `entries ${count(d.first_index)} to ${count(d.last_index)} cannot be read (${d.reason})${repair}`]);
  }
  if (status.rejoining) found.push(["warn", `rejoining: ${status.rejoining}`]);
  if (status.rebuilding) found.push(["warn", `rebuilds its sessions: ${status.rebuilding}`]);
  if (status.needs_image) found.push(["warn", "waits for a state image, and serves nothing until then"]);
  if (status.age_purge_step_ms > 0) {
    found.push(["warn", `cluster time stepped by ${duration(status.age_purge_step_ms)}: purging by age pauses for ${duration(status.age_purge_pause_ms)}`]);
  }
  if (clockIsOff(status.clock_offset_ms)) {
    found.push(["warn", `its wall clock is ${duration(Math.abs(status.clock_offset_ms))} ${status.clock_offset_ms > 0 ? "ahead of" : "behind"} cluster time`]);
  }
  return found;
}

// [level, text] of one fact that a program says.
export function fact(value, nowMs) {
  if (value === undefined || value === null || value === "") return ["ok", "—"];
  if (typeof value !== "object") return ["ok", typeof value === "number" ? count(value) : String(value)];
  const level = value.level === "warn" || value.level === "bad" ? value.level : "ok";
  if (typeof value.unix_ms === "number") {
    if (value.unix_ms <= 0) return [level, "never"];
    return [level, `${clock(value.unix_ms, nowMs)} · ${duration(Math.max(0, nowMs - value.unix_ms))} ago`];
  }
  if (typeof value.bytes === "number") return [level, value.bytes > 0 ? bytes(value.bytes) : "none"];
  return [level, typeof value.text === "string" ? value.text : JSON.stringify(value)];
}
