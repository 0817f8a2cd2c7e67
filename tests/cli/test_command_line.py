"""Help that teaches, usage errors, exit codes, configuration from files and options."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from dledger.cli.client_options import MAX_INT64, parse_servers
from dledger.cli.exits import Exit, error_line, exit_code_of
from dledger.cli.main import cli
from dledger.cli.output import human_bytes, print_table
from dledger.cli.overrides import overrides_of
from dledger.cli.server_commands import _state_machine, node_config
from dledger.errors import (
    Code,
    ConfigError,
    DLedgerError,
    Indeterminate,
    NotLeader,
    SessionExpired,
    error_for,
)

from .conftest import Command


def all_commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield (*path, name)
        if isinstance(command, click.Group):
            yield from all_commands(command, (*path, name))


#: One more than the greatest index.
BEYOND = str(MAX_INT64 + 1)
COMMANDS = list(all_commands(cli))


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_help_has_an_example_of_its_command(command: Command, path: tuple[str, ...]) -> None:
    shown = command(*path, "--help").stdout
    _, found, examples = shown.partition("Example")
    assert found
    assert f"dledger {' '.join(path)}" in examples


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_option_is_explained(path: tuple[str, ...]) -> None:
    command: click.Command = cli
    for name in path:
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), name)
        assert found is not None
        command = found
    for parameter in command.params:
        if isinstance(parameter, click.Option) and parameter.name not in {"log_level", "log_format"}:
            assert parameter.help, f"{' '.join(path)} {parameter.name}"


def test_the_root_help_documents_exit_codes(command: Command) -> None:
    shown = command("--help").stdout
    for code in Exit:
        assert f"  {int(code)} " in shown


@pytest.mark.parametrize(
    ("typed", "offered"), [("dledger tra", "transfer"), ("dledger read --fol", "--follow")]
)
def test_the_shell_completes_commands_and_options(command: Command, typed: str, offered: str) -> None:
    words = {"COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" ")), "_DLEDGER_COMPLETE": "bash_complete"}
    done = subprocess.run(
        [sys.executable, "-P", "-c", "from dledger.cli.start import command; command()"],
        env={**command.process_environment, **words, "PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert offered in done.stdout, done


def test_version(command: Command) -> None:
    assert command("--version").stdout.startswith("dledger ")


@pytest.mark.parametrize(
    "arguments",
    [
        ("nonsense",),
        ("append",),  # no servers
        ("append", "--servers", "nowhere"),
        ("append", "--servers", ","),
        ("append", "--servers", "a:1", "--file", "/does/not/exist"),
        ("append", "--servers", "a:1", "--batch-bytes", "0"),
        ("append", "--servers", "a:1", "--timeout", "0"),
        ("read", "--servers", "a:1", "--count", "0"),
        ("read", "--servers", "a:1", "--count", BEYOND),
        ("read", "--servers", "a:1", "--from-index", BEYOND),
        ("read", "--servers", "a:1", "--timeout", "nan"),
        ("status", "--servers", "a:1", "--timeout", "inf"),
        ("status", "--servers", "a:1", "--timeout", "-1"),
        ("status", "--servers", "a:1", "--watch", "--interval", "nan"),
        ("purge", "--servers", "a:1", "--before", BEYOND),
        ("purge", "--servers", "a:1", "--before", "1", "--timeout", "nan"),
        ("scrub", "--servers", "a:1", "--rate", BEYOND),
        ("scrub", "--servers", "a:1", "--node", "n2"),
        ("backup", "--servers", "a:1", "--to", "d", "--node", "n2"),
        ("inspect", ".", "--entries", "--from-index", BEYOND),
        ("inspect", ".", "--entries", "--count", BEYOND),
        ("transfer", "--servers", "a:1", "--to", "n1", "--timeout", "nan"),
        ("cluster", "up", "--dir", "d", "--timeout", "-1"),
        ("cluster", "down", "--dir", "d", "--timeout", "nan"),
        ("cluster", "restart-node", "--dir", "d", "n1", "--timeout", "-1"),
        ("transfer", "--servers", "a:1"),
        ("transfer", "--servers", "a:1", "--to", ""),
        ("cluster", "up"),
        ("cluster", "kill", "--dir", "d", "n1", "--signal", "HUP"),
        ("init",),
        ("server", "--config", "/does/not/exist"),
        ("inspect", "/does/not/exist"),
    ],
)
def test_usage_errors(command: Command, arguments: tuple[str, ...]) -> None:
    result = command(*arguments, code=2)
    assert "Error: " in result.stderr


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("apend",), "there is no command 'apend'; did you mean append?"),
        (("clustr", "up"), "did you mean cluster?"),
        (("cluster", "stats"), "did you mean status"),
        (("kill",), "there is no command 'kill'; did you mean cluster kill?"),
        (("append", "--server", "a:1"), "--servers"),
        (("read", "--servers", "a:1", "--from", "3"), "--from-index"),
    ],
)
def test_similar_names_are_suggested(command: Command, arguments: tuple[str, ...], hint: str) -> None:
    assert hint in command(*arguments, code=2).stderr


def test_nothing_is_suggested_that_resembles_nothing(command: Command) -> None:
    shown = command("xyzzy", code=2).stderr
    assert "there is no command 'xyzzy'" in shown and "did you mean" not in shown


def test_servers() -> None:
    context = click.Context(click.Command("x"))
    parameter = click.Option(["--servers"])
    assert parse_servers(context, parameter, " a:1, b:2,a:1,") == ["a:1", "b:2"]
    assert parse_servers(context, parameter, "[::1]:5") == ["[::1]:5"]
    for wrong in ("a", "a:", "a:x", "a:0", "a:70000", ":1"):
        with pytest.raises(click.BadParameter):
            parse_servers(context, parameter, wrong)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NotLeader("x"), Exit.FAILED),
        (ConfigError("x"), Exit.USAGE),
        (Indeterminate("x"), Exit.INDETERMINATE),
        (SessionExpired("x"), Exit.INDETERMINATE),
        (error_for(Code.DISK_FULL, "x"), Exit.FAILED),
    ],
)
def test_exit_codes(error: DLedgerError, code: Exit) -> None:
    assert exit_code_of(error) is code


def test_an_error_is_one_line_with_its_number_and_the_fix() -> None:
    line = error_line(NotLeader("n1 is not the leader"))
    assert line.startswith("error 404 NOT_LEADER: n1 is not the leader; ")
    assert "--servers" in line


def test_nobody_there_is_one_line(command: Command) -> None:
    result = command("read", "--servers", "127.0.0.1:1", "--timeout", "0.1", code=1)
    assert result.stderr.startswith("error 302 NETWORK_ERROR: ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("imported", ["click", "dledger.cli.main", "dledger.cli.append_command", "grpc"])
def test_an_interrupt_during_the_imports_of_a_command_is_one_line(imported: str) -> None:
    """A finder sends the signal in the step in which this module is imported."""
    code = f"""
import os, signal, sys
class Interrupter:
    def find_spec(self, name, path=None, target=None):
        if name == {imported!r}:
            os.kill(os.getpid(), signal.SIGINT)
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Interrupter())
sys.argv = ["dledger", "append", "--servers", "127.0.0.1:1"]
from dledger.cli.start import command
command()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (Exit.INTERRUPTED, "interrupted\n")


def test_debug_shows_where(command: Command) -> None:
    result = command("--debug", "read", "--servers", "127.0.0.1:1", "--timeout", "0.1", code=1)
    assert isinstance(result.exception, DLedgerError)


def test_a_bug_is_one_line_too(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise KeyError("oops")

    monkeypatch.setattr("dledger.cli.inspect_command.inspect_directory", broken)
    result = command("inspect", str(tmp_path), code=1)
    assert result.stderr.startswith("error 500 INTERNAL_ERROR: KeyError: 'oops'; ")


@pytest.mark.parametrize(
    "arguments", [("inspect", "."), ("inspect", ".", "--json"), ("--help",)], ids=" ".join
)
def test_whoever_reads_and_has_seen_enough_causes_no_error(
    command: Command, arguments: tuple[str, ...]
) -> None:
    with command.spawn(*arguments) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""


def test_output_that_cannot_be_written_is_one_line(command: Command) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            command.line("inspect", "."),
            stdout=full,
            stderr=subprocess.PIPE,
            env=command.process_environment,
            check=False,
        )
    [first, *_] = done.stderr.decode().splitlines()
    assert first == (
        "error 414 DISK_ERROR: [Errno 28] No space left on device; free space on this disk, or choose another"
    )
    assert b"INTERNAL_ERROR" not in done.stderr
    assert done.returncode != 0


def test_a_closed_stdout_is_no_error(command: Command) -> None:
    line = " ".join(["exec", *command.line("inspect", ".", "--entries"), ">&-"])
    done = subprocess.run(
        ["sh", "-c", line], stderr=subprocess.PIPE, env=command.process_environment, check=False
    )
    assert done.stderr == b""


def test_a_directory_that_cannot_be_made_is_one_line(command: Command, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = command("cluster", "up", "--dir", str(tmp_path / "file" / "new"), code=2)
    assert result.stderr.startswith("error 630 CONFIG_INVALID: [Errno 20] Not a directory: ")


# -- init and server

CONFIG = """
node_id = "n1"
cluster_id = "c"
directory = "store"
[members]
n1 = "127.0.0.1:1"
n2 = "127.0.0.1:2"
[timing]
heartbeat_ms = 100
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "node.toml"
    path.write_text(CONFIG)
    return path


def test_init_from_a_config(command: Command, config: Path) -> None:
    command("init", "--config", str(config))
    identity = json.loads((config.parent / "store" / "identity").read_text())
    assert (identity["node_id"], identity["cluster_id"], identity["group"]) == ("n1", "c", "default")
    again = command("init", "--config", str(config), code=1)
    assert again.stderr.startswith("error 632 ALREADY_INITIALIZED: ")
    assert again.stderr.count("choose an empty") == 1


def test_init_names_what_is_wrong(command: Command, config: Path) -> None:
    config.write_text(CONFIG.replace("cluster_id", "clusterid"))
    result = command("init", "--config", str(config), code=2)
    assert "unknown key clusterid: did you mean cluster_id?" in result.stderr
    config.write_text(CONFIG)
    result = command("init", "--config", str(config), "--node-id", "n9", code=2)
    assert f"node n9 is not one of the members n1, n2 of {config}" in result.stderr


def test_init_from_options(command: Command, tmp_path: Path) -> None:
    store = tmp_path / "s"
    command(
        *("init", "--directory", str(store), "--node-id", "x", "--cluster-id", "y"),
        *("--data-file-size", "4096", "--flush-mode", "async_flush"),
    )
    identity = json.loads((store / "identity").read_text())
    assert (identity["data_file_size"], identity["flush_mode"]) == (4096, "ASYNC_FLUSH")


def test_options_override_the_file(config: Path) -> None:
    settings = ["timing.election_min_ms=1500", "group=orders"]
    merged = node_config(config, overrides_of(settings, {"directory": None}, {"level": "debug"}))
    assert merged.directory == config.parent / "store"
    assert (merged.timing.heartbeat_ms, merged.timing.election_min_ms) == (100, 1500)
    assert (merged.group, merged.log.level) == ("orders", "debug")
    assert set(merged.members) == {"n1", "n2"}


def test_members_are_replaced_as_a_whole(config: Path) -> None:
    merged = node_config(config, {"members": {"n1": "127.0.0.1:7", "n3": "127.0.0.1:8"}})
    assert merged.members == {"n1": "127.0.0.1:7", "n3": "127.0.0.1:8"}


def test_a_server_without_a_directory_says_what_to_do(command: Command, config: Path) -> None:
    result = command("server", "--config", str(config), "--set", "timing.heartbeat_ms=100000", code=2)
    assert result.stderr.startswith("error 630 CONFIG_INVALID: ")
    assert "election_min_ms" in result.stderr


def test_bad_overrides(command: Command, config: Path) -> None:
    for wrong in (("--set", "nothing"), ("--member", "n1"), ("--set", "a=1", "--set", "a.b=2")):
        command("server", "--config", str(config), *wrong, code=2)


# -- output


def test_plain_tables_are_aligned_and_bare(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("a", "long"), [("x", 1), ("yyy", None)])
    assert capsys.readouterr().out == "a    long\nx    1\nyyy  -\n"


def test_sizes_for_people() -> None:
    assert [human_bytes(n) for n in (0, 1023, 1024, 5 << 20, 3 << 40)] == [
        *("0 B", "1023 B", "1.0 KiB", "5.0 MiB", "3072.0 GiB")
    ]


def test_init_makes_the_secret_of_a_cluster_once(command: Command, tmp_path: Path) -> None:
    members = '[members]\nn1 = "127.0.0.1:1"\nn2 = "127.0.0.1:2"\n'
    for node in ("n1", "n2"):
        head = f'node_id = "{node}"\ncluster_id = "c"\ndirectory = "{node}"\ncluster_secret_file = "secret"\n'
        (tmp_path / f"{node}.toml").write_text(head + members)
    first, second = (str(tmp_path / f"{node}.toml") for node in ("n1", "n2"))
    missing = command("init", "--config", first, code=Exit.USAGE)
    assert "--new-secret" in missing.stderr
    assert not (tmp_path / "n1").exists()
    made = command("init", "--config", first, "--new-secret")
    secret = (tmp_path / "secret").read_text().strip()
    assert len(secret) == 64 and secret not in made.stdout + made.stderr
    command("init", "--config", second)
    again = command("init", "--config", second, "--new-secret", code=Exit.USAGE)
    assert "exists" in again.stderr


def test_a_lower_term_needs_all_nodes_to_be_stopped(command: Command, tmp_path: Path) -> None:
    node = str(tmp_path / "n1")
    command("init", "--directory", node, "--cluster-id", "c", "--node-id", "n1")
    assert "is in term 0" in command("set-term", node).stdout
    command("set-term", node, "--to", "40")  # up: no word of the others is needed
    refused = command("set-term", node, "--to", "9", code=Exit.USAGE)
    assert "--all-nodes-are-stopped" in refused.stderr
    assert "is in term 40" in command("set-term", node).stdout
    command("set-term", node, "--to", "9", "--all-nodes-are-stopped")
    assert "is in term 9" in command("set-term", node).stdout


def test_a_state_machine_is_found_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_machine.py").write_text("class Machine:\n    apply = save = load = lambda *_: None\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    assert type(_state_machine("my_machine:Machine")).__name__ == "Machine"
