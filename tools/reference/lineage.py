"""Which fields of which lines of a trace a query of the checker depends on, read from its SQL.

DuckDB parses; what is here follows columns through views, subqueries, joins and unions down to `events`. A
condition on the kind of a line (`ev`, `type`, `e`) narrows the columns of the same line. Where the meaning of
an expression is not known nothing is narrowed, so too much may be told, and never too little.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import count
from typing import Any, NamedTuple

import duckdb

from chaos.trace.schema import ENVELOPE, EVENTS, FIELDS, Ev

Node = dict[str, Any]
_AGGREGATES = frozenset(
    (
        *("min", "max", "sum", "count", "count_star", "min_by", "max_by", "bit_and", "bit_or"),
        *("lag", "lead", "row_number", "dense_rank"),
    )
)
#: Columns of `events` that have other names than their fields.
_RENAMED = {"grp": "group", "chain_key": "chain", "file": "src"}
_NEGATED = {"COMPARE_EQUAL": False, "COMPARE_IN": False, "COMPARE_NOTEQUAL": True, "COMPARE_NOT_IN": True}


class Atom(NamedTuple):
    """One field of one kind of line."""

    ev: Ev
    what: str
    name: str


Atoms = frozenset[Atom]


@dataclass(frozen=True, slots=True)
class Column:
    """`row`: the line that it is taken from, as it stands there; None: of several. `kind`: the field that
    says of which kind this line is, if the column is that."""

    atoms: Atoms
    row: int | None = None
    kind: str | None = None


class _Narrowing(NamedTuple):
    """The line `row` has one of these values in the field, or, `negated`, another one."""

    row: int
    kind: str
    values: frozenset[str]
    negated: bool

    def keeps(self, atom: Atom) -> bool:
        if self.kind == "ev":
            value = str(atom.ev)
        elif self.kind == "type":
            value = atom.what if atom.ev is Ev.OP else ""
        else:
            value = "" if atom.ev is Ev.OP else atom.what
        # A comparison with a value that is not there does not hold.
        return bool(value) and (value in self.values) is not self.negated


@dataclass(slots=True)
class Relation:
    """`conditions`: what decides which rows there are."""

    columns: dict[str, Column]
    conditions: Atoms = frozenset()

    @property
    def everything(self) -> Atoms:
        """What any of it depends on."""
        return self.conditions.union(*(column.atoms for column in self.columns.values()))

    def narrowed(self, narrowings: Iterable[_Narrowing]) -> Relation:
        columns = dict(self.columns)
        for one in narrowings:
            for name, column in columns.items():
                if column.row == one.row:
                    columns[name] = replace(column, atoms=frozenset(filter(one.keeps, column.atoms)))
        return Relation(columns, self.conditions)


@dataclass(slots=True)
class _Scope:
    """What names mean in one SELECT."""

    tables: dict[str, Relation] = field(default_factory=dict)
    conditions: Atoms = frozenset()

    def column(self, path: list[str]) -> Column:
        if len(path) == 2:
            return self.tables[path[0]].columns[path[1]]
        found = [table.columns[path[0]] for table in self.tables.values() if path[0] in table.columns]
        if not found:
            raise KeyError(path[0])
        return found[0]

    def narrowed(self, narrowings: Iterable[_Narrowing]) -> _Scope:
        some = list(narrowings)
        if not some:
            return self
        tables = {name: table.narrowed(some) for name, table in self.tables.items()}
        return _Scope(tables, self.conditions)


class Lineage:
    """The tables that queries may name, and what they depend on."""

    def __init__(self) -> None:
        # Numbers of lines: of each mention of a table, and of each line that the table is made of.
        self._rows: dict[tuple[int, int | None], int] = defaultdict(count().__next__)
        self._tables: dict[str, Relation] = {}
        self._selected: dict[int, Relation] = {}

    def name(self, table: str, relation: Relation) -> None:
        """Give a relation a name that later queries know it by."""
        self._tables[table] = relation

    def of(self, sql: str) -> Relation:
        """What the columns and the rows of a query depend on.

        Raises:
            KeyError: it names a table or a column that there is not.
        """
        return self._select(_parsed(sql))

    def _table(self, name: str, mention: int) -> Relation:
        if name == "events":
            row = self._rows[mention, None]
            return Relation({name: _of_event(name, row) for name in (*FIELDS, *_RENAMED) if name != "group"})
        known = self._tables[name]
        columns = {
            name: replace(column, row=None if column.row is None else self._rows[mention, column.row])
            for name, column in known.columns.items()
        }
        return Relation(columns, known.conditions)

    def _subquery(self, node: Node) -> Relation:
        if id(node) not in self._selected:
            self._selected[id(node)] = self._select(node)
        return self._selected[id(node)]

    def _select(self, node: Node) -> Relation:
        if node["type"] == "SET_OPERATION_NODE":
            return self._union([self._select(one) for one in node["children"]])
        scope = self._from(node["from_table"], [])
        if (where := node["where_clause"]) is not None:
            # It holds of the lines that are joined as well.
            scope = self._from(node["from_table"], list(_narrowings(where, scope)))
        conditions = scope.conditions if where is None else scope.conditions | _read(where, scope).atoms
        grouped = [_read(one, scope) for one in node["group_expressions"]]
        conditions |= frozenset().union(*(column.atoms for column in grouped))
        columns: dict[str, Column] = {}
        for expression in node["select_list"]:
            for name, column in _selected(expression, scope):
                row = None if grouped else column.row
                # The branches of a union have columns by number: none may be lost.
                name = name if name not in columns else f"{name} {len(columns)}"
                columns[name] = replace(column, row=row, kind=column.kind if row is not None else None)
        if node["having"] is not None:
            conditions |= _read(node["having"], scope).atoms
        return Relation(columns, conditions)

    @staticmethod
    def _union(branches: list[Relation]) -> Relation:
        names = list(branches[0].columns)
        columns = {
            name: Column(frozenset().union(*(list(branch.columns.values())[i].atoms for branch in branches)))
            for i, name in enumerate(names)
        }
        return Relation(columns, frozenset().union(*(branch.conditions for branch in branches)))

    def _from(self, node: Node, narrowings: list[_Narrowing]) -> _Scope:
        """What a FROM gives, of lines of which all of this is known."""
        if node["type"] == "JOIN":
            return self._join(node, narrowings)
        if node["type"] == "EMPTY":
            return _Scope()
        if node["type"] == "EXPRESSION_LIST":
            width = len(node["values"][0])
            return _Scope({"": Relation({f"col{i}": Column(frozenset()) for i in range(width)})})
        if node["type"] == "BASE_TABLE":
            relation, name = self._table(node["table_name"], id(node)), node["alias"] or node["table_name"]
        else:
            relation, name = self._subquery(node["subquery"]["node"]), node["alias"] or f"_{id(node)}"
        if node["column_name_alias"]:
            names = node["column_name_alias"]
            columns = dict(zip(names, relation.columns.values(), strict=True))
            relation = Relation(columns, relation.conditions)
        return _Scope({name: relation.narrowed(narrowings)}, relation.conditions)

    def _join(self, node: Node, known: list[_Narrowing]) -> _Scope:
        left, right = self._from(node["left"], known), self._from(node["right"], known)
        both = _Scope({**left.tables, **right.tables})
        narrowings = [] if node["condition"] is None else list(_narrowings(node["condition"], both))
        # Rows of the left side without a partner stay, whatever they are.
        kept = node["join_type"] in ("LEFT", "ANTI")
        of_right = {c.row for table in right.tables.values() for c in table.columns.values()}
        narrowings = [one for one in narrowings if not kept or one.row in of_right]
        both = both.narrowed(narrowings)
        on = frozenset[Atom]() if node["condition"] is None else _read(node["condition"], both).atoms
        if node["join_type"] == "LEFT":
            # Which rows there are hangs on the left side; what stands in them, on what was joined.
            joined = on | right.conditions
            for name in right.tables:
                both.tables[name] = Relation(
                    {
                        column: replace(one, atoms=one.atoms | joined)
                        for column, one in both.tables[name].columns.items()
                    }
                )
            return _Scope(both.tables, left.conditions)
        conditions = left.conditions | right.conditions | on
        if node["join_type"] in ("SEMI", "ANTI"):
            return _Scope({name: both.tables[name] for name in left.tables}, conditions)
        return _Scope(both.tables, conditions)


@cache
def _parser() -> duckdb.DuckDBPyConnection:
    return duckdb.connect(config={"threads": 1})


@cache
def _parsed(sql: str) -> Node:
    row = _parser().execute("SELECT json_serialize_sql(?)", [sql]).fetchone()
    assert row is not None
    parsed = json.loads(row[0])
    if parsed["error"]:
        raise ValueError(f"{parsed['error_message']}: {sql}")
    node: Node = parsed["statements"][0]["node"]
    return node


def _of_event(column: str, row: int) -> Column:
    """A column of `events`: of each kind of line that has the field."""
    name = _RENAMED.get(column, column)
    atoms = frozenset(
        Atom(ev, what, name)
        for (ev, what), event in EVENTS.items()
        if name in ENVELOPE or name in event.required or name in event.optional
    )
    return Column(atoms, row, column if column in ("ev", "type", "e") else None)


def _selected(expression: Node, scope: _Scope) -> Iterator[tuple[str, Column]]:
    if expression["class"] == "STAR":
        wanted = expression["relation_name"]
        for name, table in scope.tables.items():
            if wanted in ("", name):
                yield from table.columns.items()
        return
    name = expression["alias"] or (expression.get("column_names") or [""])[-1]
    yield name, _read(expression, scope)


def _read(node: Node, scope: _Scope) -> Column:
    """What an expression depends on."""
    kind = node["class"]
    if kind == "COLUMN_REF":
        return scope.column(node["column_names"])
    if kind == "CONJUNCTION" and node["type"] == "CONJUNCTION_AND":
        narrowed = scope.narrowed(one for child in node["children"] for one in _narrowings(child, scope))
        return _together([_read(child, narrowed) for child in node["children"]])
    if kind == "CASE":
        parts = [_read(node["else_expr"], scope)]
        for check in node["case_checks"]:
            narrowed = scope.narrowed(_narrowings(check["when_expr"], scope))
            parts += [_read(check["when_expr"], narrowed), _read(check["then_expr"], narrowed)]
        return _together(parts)
    if kind in ("FUNCTION", "WINDOW"):
        return _function(node, scope)
    return _together([_read(child, scope) for child in _children(node)])


def _function(node: Node, scope: _Scope) -> Column:
    condition = node.get("filter") or node.get("filter_expr")
    narrowed = scope.narrowed(_narrowings(condition, scope)) if condition else scope
    parts = [_read(one["expression"], narrowed) for one in node["arguments"]]
    if condition:
        parts.append(_read(condition, narrowed))
    # The order of a window is one of lines of all kinds; it is the kinds that are picked which matter.
    parts += [_read(one, scope) for one in node.get("partitions", ())]
    parts += [_read(one["expression"], scope) for one in node.get("orders", ())]
    joined = _together(parts)
    is_one = node["class"] == "FUNCTION" and node["function_name"] not in _AGGREGATES
    return joined if is_one else Column(joined.atoms)


def _together(parts: list[Column]) -> Column:
    rows = {part.row for part in parts if part.atoms}
    row = rows.pop() if len(rows) == 1 else None
    return Column(frozenset().union(*(part.atoms for part in parts)), row)


def _children(node: Node) -> Iterator[Node]:
    """The expressions that an expression is made of."""
    for value in node.values():
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, Mapping):
                if "class" in one:
                    yield dict(one)
                else:
                    yield from _children(dict(one))


def _narrowings(node: Node, scope: _Scope) -> Iterator[_Narrowing]:
    """What follows from a condition for the kinds of lines."""
    if node["class"] == "CONJUNCTION" and node["type"] == "CONJUNCTION_AND":
        for child in node["children"]:
            yield from _narrowings(child, scope)
        return
    negated = node["type"] == "OPERATOR_NOT"
    inner = node["children"][0] if negated else node
    if inner["type"] not in _NEGATED:
        return
    column, *values = [inner["left"], inner["right"]] if "left" in inner else inner["children"]
    if column["class"] != "COLUMN_REF" or not all(value["class"] == "CONSTANT" for value in values):
        return
    found = scope.column(column["column_names"])
    if found.kind is not None and found.row is not None:
        texts = frozenset(value["literal"]["text"] for value in values)
        yield _Narrowing(found.row, found.kind, texts, negated is not _NEGATED[inner["type"]])
