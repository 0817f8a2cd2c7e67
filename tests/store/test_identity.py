"""Whose directory it is, and the small files beside the log (docs/guarantees.md rules 2 and 11)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from zlib import crc32

import pytest

from dledger.core.values import FlushMode, HardState
from dledger.errors import Code, ConfigError, StorageError
from dledger.store.disk_store import DiskLogStore
from dledger.store.format.properties import format_properties, is_intact, parse_properties
from dledger.store.identity import Identity, init_directory, load_identity, member_list
from tests.store.helpers import IDENTITY, make_batches


@pytest.fixture
def root(tmp_path: Path) -> Path:
    init_directory(tmp_path / "deep" / "n0", IDENTITY)
    return tmp_path / "deep" / "n0"


def code_of(root: Path, **expected: str) -> Code:
    with pytest.raises(StorageError) as error:
        DiskLogStore.open(root, **expected)  # type: ignore[arg-type]
    return error.value.code


def test_rule_11_identity_survives_and_is_checked(root: Path) -> None:
    assert load_identity(root) == IDENTITY
    assert load_identity(root, cluster_id="cluster", group="group", node_id="n0") == IDENTITY
    for name in ("cluster_id", "group", "node_id"):
        assert code_of(root, **{name: "other"}) is Code.FOREIGN_DIRECTORY


def test_rule_11_a_directory_without_identity_is_refused(tmp_path: Path) -> None:
    assert code_of(tmp_path) is Code.NOT_INITIALIZED
    assert code_of(tmp_path / "absent") is Code.NOT_INITIALIZED


def test_rule_11_init_takes_only_an_empty_directory(root: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("mine")
    for directory in (root, tmp_path / "other"):
        with pytest.raises(StorageError) as error:
            init_directory(directory, IDENTITY)
        assert error.value.code is Code.ALREADY_INITIALIZED
    (root / "identity").unlink()
    (root / "data" / ("0" * 20)).write_bytes(b"")
    with pytest.raises(StorageError) as error:
        init_directory(root, IDENTITY)
    assert error.value.code is Code.ALREADY_INITIALIZED


def test_rule_11_init_never_overwrites_a_vote(root: Path) -> None:
    store = DiskLogStore.open(root)
    store.save_hard_state(HardState(7, "n1", 1))
    store.close()
    for name in ("identity", "lock", "checkpoint"):
        (root / name).unlink()
    with pytest.raises(StorageError) as error:
        init_directory(root, IDENTITY)
    assert error.value.code is Code.ALREADY_INITIALIZED


THREE, FIVE = ("n0", "n1", "n2"), ("n0", "n1", "n2", "n3", "n4")


def start(
    root: Path, members: tuple[str, ...], *, term: int = 0, counts: tuple[str, ...] | None = None
) -> None:
    """`counts`: the list that counts, if it is not the configured one."""
    store = DiskLogStore.open(root, members=members)
    assert store.identity.members == (counts or members)
    if term:
        store.save_hard_state(HardState(term, None, 1))
    store.close()


def test_rule_11_members_are_those_of_the_first_start_that_took_part_in_anything(root: Path) -> None:
    assert load_identity(root).members is None
    start(root, THREE)
    start(root, FIVE)  # a typo in the first configuration: nobody can have counted this node
    start(root, THREE, term=1)
    start(root, THREE)
    start(root, FIVE, counts=THREE)
    start(root, FIVE, term=2, counts=THREE)
    assert load_identity(root).members == THREE
    start(root, THREE)


def test_rule_11_init_writes_the_members(tmp_path: Path) -> None:
    init_directory(tmp_path, Identity("c", "g", "n1", members=member_list(["n2", "n1", "n0"])))
    assert load_identity(tmp_path).members == THREE
    start(tmp_path, THREE, term=3)
    start(tmp_path, FIVE, counts=THREE)


def test_rule_11_a_directory_of_an_older_version_adopts_the_members_of_its_next_start(tmp_path: Path) -> None:
    init_directory(tmp_path, replace(IDENTITY, format_version=1))
    fields = json.loads((tmp_path / "identity").read_text())
    del fields["members"], fields["crc"]
    fields["crc"] = f"{crc32(json.dumps(fields, sort_keys=True).encode()):08x}"
    (tmp_path / "identity").write_text(json.dumps(fields))
    store = DiskLogStore.open(tmp_path)
    store.save_hard_state(HardState(7, "n1", 1))
    store.close()
    start(tmp_path, FIVE)  # refused by the others: it takes part in nothing
    assert load_identity(tmp_path).members is None
    start(tmp_path, THREE)
    start(tmp_path, THREE, term=8)
    assert load_identity(tmp_path).members == THREE
    start(tmp_path, FIVE, counts=THREE)


@pytest.mark.parametrize("members", [("n1", "n2"), ("n1", "n0"), ("n0", "n0")])
def test_members_are_sorted_ids_with_that_of_the_node(members: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError):
        Identity("c", "g", "n0", members=members)


def test_the_directory_warns_users_of_the_original(root: Path) -> None:
    notice = next(path for path in root.iterdir() if path.name.startswith("DO-NOT-OPEN"))
    assert "NEVER start an original DLedger" in notice.read_text()


@pytest.mark.parametrize(
    "change", [{"format_version": 99}, {"data_file_size": 4096}, {"crc": "x"}, {"flush_mode": "NO"}]
)
def test_a_changed_identity_is_refused(root: Path, change: dict[str, object]) -> None:
    fields = json.loads((root / "identity").read_text())
    (root / "identity").write_text(json.dumps(fields | change))
    assert code_of(root) is Code.STATE_DAMAGED
    for content in ("[]", 100_000 * "["):
        (root / "identity").write_text(content)
        assert code_of(root) is Code.STATE_DAMAGED


@pytest.mark.parametrize(
    "fields", [{"cluster_id": ""}, {"node_id": "a\nb"}, {"data_file_size": 100}, {"data_file_size": 1 << 31}]
)
def test_an_impossible_identity_cannot_be_made(fields: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        Identity(**{"cluster_id": "c", "group": "g", "node_id": "n"} | fields)  # type: ignore[arg-type]


def test_the_flush_mode_is_part_of_the_identity(tmp_path: Path) -> None:
    identity = Identity("c", "g", "n", data_file_size=2048, flush_mode=FlushMode.ASYNC_FLUSH)
    init_directory(tmp_path, identity)
    assert DiskLogStore.open(tmp_path).identity == identity


def test_currterm_has_the_keys_of_dledger_and_ours(root: Path) -> None:
    store = DiskLogStore.open(root)
    store.save_hard_state(HardState(7, "n1", 3))
    store.close()
    values = parse_properties((root / "currterm").read_bytes())
    assert values.pop("crc")
    assert values == {"currTerm": "7", "voteLeader": "n1", "incarnation": "3"}


def test_a_directory_that_the_original_has_written_to_is_refused(root: Path) -> None:
    ours = (root / "currterm").read_bytes()
    (root / "currterm").write_text("#Mon Jan 01\ncurrTerm=3\nvoteLeader=n1\n")
    assert code_of(root) is Code.FOREIGN_DIRECTORY
    (root / "currterm").write_bytes(ours)
    (root / "checkpoint").write_text("#Mon Jan 01\nendIndex=3\ncommittedIndex=2\n")
    assert code_of(root) is Code.FOREIGN_DIRECTORY


def test_rule_2_a_lost_or_damaged_vote_is_refused(root: Path) -> None:
    path = root / "currterm"
    content = path.read_bytes()
    for bad in (b"", content[:-3], content.replace(b"currTerm=0", b"currTerm=1"), b"crc=1\n"):
        path.write_bytes(bad)
        assert code_of(root) is Code.STATE_DAMAGED
    path.unlink()
    assert code_of(root) is Code.STATE_DAMAGED


def test_the_checkpoint_has_the_keys_of_dledger(root: Path) -> None:
    store = DiskLogStore.open(root)
    batches = make_batches(5)
    store.append(batches)
    store.sync()
    store.save_checkpoint(batches[2].last_index, None)
    values = parse_properties((root / "checkpoint").read_bytes())
    assert values["endIndex"] == str(batches[-1].last_index)
    assert values["committedIndex"] == str(batches[2].last_index)


def test_a_damaged_session_table_is_left_out(root: Path) -> None:
    store = DiskLogStore.open(root)
    store.append(make_batches(5))
    store.sync()
    store.save_checkpoint(3, (2, b"sessions"))
    path = root / "sessions"
    content = path.read_bytes()
    for at in range(len(content)):
        path.write_bytes(content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :])
        assert store.load_sessions() is None
        path.write_bytes(content[:at])
        assert store.load_sessions() is None
    path.write_bytes(content)
    assert store.load_sessions() == (2, b"sessions")
    store.close()


def test_properties_carry_their_own_checksum() -> None:
    content = format_properties({"a": 1, "b": "x y"})
    assert is_intact(content)
    assert {"a": "1", "b": "x y"}.items() <= parse_properties(b"# comment\n" + content).items()
    for at in range(len(content)):
        assert not is_intact(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
