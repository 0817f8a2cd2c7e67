"""Each field of the trace is read by a check, or has a reason; and what is told of that is true."""

from __future__ import annotations

from chaos.trace.schema import Ev
from tools.reference.evidence import UNREAD, evidence, reason, unread
from tools.reference.lineage import Atom, Lineage


def test_every_field_is_read_by_a_check_or_has_a_reason() -> None:
    assert [atom for atom in unread() if not reason(atom)] == []


def test_no_reason_is_given_for_what_a_check_reads() -> None:
    used = {(kind, atom.name) for atom in unread() for kind in ("", str(atom.ev), f"{atom.ev}/{atom.what}")}
    assert set(UNREAD) <= used


def test_checks_are_told_that_read_a_field_and_no_others() -> None:
    """A few that are known by hand, of each way from the lines to a check."""
    decide, show = evidence().decide, evidence().show
    assert decide[Atom(Ev.META, "memory", "size")] == ["A10"]
    assert decide[Atom(Ev.META, "run_begin", "most_bytes")] == ["A10"]
    assert decide[Atom(Ev.DISK, "vote_synced", "vote")] == ["R16"]
    assert decide[Atom(Ev.RAFT, "vote", "last_term")] == ["R11"]
    assert decide[Atom(Ev.MEMBER, "reset", "off")] == ["W2", "C16"]
    assert decide[Atom(Ev.DUMP, "", "internal")] == ["W6", "W14", "W12"]
    assert "P2" not in decide[Atom(Ev.STORE, "flush", "lidx")]
    assert {"P2", "R18", "W11"} == set(decide[Atom(Ev.DISK, "synced", "lidx")])
    # By a join of invoke and completion, and by what Python computes of rows.
    assert {"L12", "W8"} <= set(decide[Atom(Ev.OP, "ok", "next_off")])
    assert "H33" in decide[Atom(Ev.OP, "invoke", "mid")]
    assert "A6" in show[Atom(Ev.META, "log_error", "text")]
    assert Atom(Ev.OP, "invoke", "delay_ms") in evidence().quick
    assert Atom(Ev.OP, "invoke", "node") not in evidence().quick


def test_conditions_on_the_kind_of_a_line_narrow_what_is_read() -> None:
    lineage = Lineage()
    lineage.name("lines", lineage.of("SELECT run, ev, e, term, lidx, node FROM events WHERE ev = 'raft'"))
    told = lineage.of(
        "SELECT max(CASE WHEN e = 'commit' THEN lidx END) OVER (PARTITION BY run ORDER BY e) AS top "
        "FROM lines WHERE e <> 'leader'"
    )
    assert Atom(Ev.RAFT, "commit", "lidx") in told.columns["top"].atoms
    assert not [atom for atom in told.everything if atom.name == "lidx" and atom.what != "commit"]
    assert not [atom for atom in told.columns["top"].atoms if atom.what == "leader"]


def test_what_is_not_selected_or_compared_is_not_read() -> None:
    lineage = Lineage()
    told = lineage.of(
        "SELECT a.term FROM events a LEFT JOIN (SELECT run, max(lidx) AS top FROM events "
        "WHERE ev = 'store' AND e = 'flush' GROUP BY run) b ON b.run = a.run "
        "WHERE a.ev = 'raft' AND a.e = 'leader'"
    )
    assert {atom for atom in told.everything if atom.name not in ("ev", "e")} == {
        Atom(Ev.RAFT, "leader", "term")
    }
