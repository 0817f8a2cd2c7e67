"""How the report looks, by day and by night."""

from __future__ import annotations

STYLE = """
:root { color-scheme: light dark; --text: #1c1e21; --quiet: #5f6670; --ground: #fff; --box: #f5f6f8; --rule:
  #d9dce1;
  --valid: #1a7f37; --invalid: #c62828; --unknown: #9a5b00; --absent: #6b7280;
  --leader: #9cc4ec; --master: #1f6fc2; --candidate: #f0c95e; --follower: #e3e6ea; --down: #6b7280;
  --band: #c62828; --on-master: #fff; --paused: #d9480f; --node0: #1f6fc2; --node1: #b26a00; --node2: #8540b5;
  --on-leader: #10263c; }
@media (prefers-color-scheme: dark) { :root { --text: #e6e8eb; --quiet: #9aa3ad; --ground: #16181c; --box:
  #1f2228;
  --rule: #383d45; --valid: #3fb45f; --invalid: #f0625d; --unknown: #e0a03a; --absent: #8b949e;
  --leader: #2f5579; --master: #4f9ff0; --candidate: #8a6d1a; --follower: #2a2f37; --down: #08090b;
  --band: #f0625d; --on-master: #08192b; --paused: #ff8a4c; --node0: #6cb6ff; --node1: #e0a03a; --node2:
  #c49bf0;
  --on-leader: #dbe9f7; } }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 1100px; padding: 0 1em;
  color: var(--text); background: var(--ground); }
h1 { font-size: 1.4em; } h2 { font-size: 1.2em; margin-top: 2em; line-height: 1.4; }
h3 { font-size: 1.05em; margin: 1.6em 0 .5em; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
td, th { border-bottom: 1px solid var(--rule); padding: 3px 8px; text-align: left; vertical-align: top; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.verdict { border: 1px solid currentColor; padding: 0 7px; border-radius: 3px; white-space: nowrap;
  font-size: 13px; }
.verdict.valid { color: var(--valid); } .verdict.invalid { color: var(--ground); background: var(--invalid);
  border-color: var(--invalid); } .verdict.unknown { color: var(--unknown); } .verdict.absent { color:
    var(--absent);
  border-color: transparent; padding: 0; }
.box { background: var(--box); border: 1px solid var(--rule); border-radius: 4px; padding: .6em 1em; }
.absent td { color: var(--quiet); } code { font-size: 13px; color: var(--quiet); white-space: nowrap; }
details summary { cursor: pointer; color: var(--quiet); margin: .8em 0; }
.legend { color: var(--quiet); font-size: 13px; } .legend span { margin-right: 1.2em; white-space: nowrap; }
.legend i { display: inline-block; width: 1em; height: .8em; margin-right: .4em; border: 1px solid
  var(--rule); }
svg { width: 100%; height: auto; }
svg text { font: 12px system-ui, sans-serif; fill: var(--text); }
svg .unit, svg .time, svg .value { fill: var(--quiet); font-size: 11px; }
svg .time { text-anchor: middle; } svg .value { text-anchor: end; }
svg .fault { fill: var(--band); font-size: 11px; }
.frame { fill: none; stroke: var(--rule); } .tick { stroke: var(--rule); stroke-dasharray: 1 3; }
.leader { fill: var(--leader); background: var(--leader); } .follower { fill: var(--follower);
  background: var(--follower); } .candidate { fill: var(--candidate); background: var(--candidate); }
.master_ready { fill: var(--master); background: var(--master); } .down { fill: var(--down); background:
  var(--down); }
.paused { fill: var(--paused); background: var(--paused); }
.band { fill: var(--band); opacity: .14; } .legend .band { background: var(--band); opacity: .3; }
line.violation { stroke: var(--invalid); stroke-width: 1.5; }
.legend .violation { background: var(--invalid); }
svg text.violated { fill: var(--invalid); font-size: 11px; font-weight: 600; }
svg text.in { font-size: 11px; } svg text.in.master_ready { fill: var(--on-master); }
svg text.in.leader { fill: var(--on-leader); } svg text.in.follower, svg text.in.candidate { fill:
  var(--text); }
.curve { fill: none; stroke-width: 1.5; }
.curve.ok { stroke: var(--valid); } .curve.fail { stroke: var(--invalid); } .curve.info { stroke:
  var(--unknown); }
.dot.ok { fill: var(--valid); } .dot.fail { fill: var(--invalid); } .dot.info { fill: var(--unknown); }
.legend .ok { background: var(--valid); } .legend .fail { background: var(--invalid); }
.legend .info { background: var(--unknown); }
.curve.node0 { stroke: var(--node0); } .curve.node1 { stroke: var(--node1); } .curve.node2 { stroke:
  var(--node2); }
.curve.node3 { stroke: var(--valid); } .curve.node4 { stroke: var(--invalid); }
svg text.key.node0 { fill: var(--node0); } svg text.key.node1 { fill: var(--node1); }
svg text.key.node2 { fill: var(--node2); } svg text.key.node3 { fill: var(--valid); }
svg text.key.node4 { fill: var(--invalid); }
"""
