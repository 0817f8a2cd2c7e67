"""`dledger dev` and the fixture that starts it, as programs use them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from broker_adapter.cli.dev_command import dev
from broker_adapter.client import BlockingProducer, BlockingPullConsumer, Message
from broker_adapter.server import dev as dev_module
from broker_adapter.server.dev import DevBroker, DevPorts, DevSettings
from broker_adapter.testing import DevCluster, DevProcess, dev_process
from dledger import Client
from dledger.cli.local.local_cluster import ClusterError, LocalCluster
from dledger.errors import ConfigError, DLedgerError
from tests.node.local import until
from tests.process.cluster import free_ports

ROOT = Path(__file__).resolve().parents[3]
pytestmark = [pytest.mark.process, pytest.mark.xdist_group("dev")]
pytest_plugins = ["pytester"]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevProcess]:
    with DevProcess(tmp_path_factory.mktemp("dev")) as process:
        yield process


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=20) as response:
            return bool(response.status == 200)
    except urllib.error.URLError:
        return False


def send(broker: DevProcess, topic: str, *bodies: bytes) -> None:
    with BlockingProducer("p", broker.name_server) as producer:
        for body in bodies:
            producer.send(Message(topic, body))


def bodies(broker: DevProcess, topic: str) -> list[bytes]:
    with BlockingPullConsumer("g", broker.name_server) as consumer:
        found = []
        for queue in consumer.queues(topic):
            found += [message.body for message in consumer.pull(queue, 0).messages]
        return sorted(found)


@pytest.mark.smoke
def test_messages_survive_a_kill_and_a_restart_at_the_same_ports(broker: DevProcess) -> None:
    topic, before = broker.topic(), dict(broker.addresses)
    send(broker, topic, b"1", b"2")
    broker.kill()
    broker.start()
    assert {key: broker.addresses[key] for key in before if key not in ("pid", "ready_s")} == {
        key: before[key] for key in before if key not in ("pid", "ready_s")
    }
    send(broker, topic, b"3")
    assert bodies(broker, topic) == [b"1", b"2", b"3"]


def test_all_ports_are_printed_and_served(broker: DevProcess) -> None:
    for name in ("name_server", "grpc", "broker", "vip", "send_only", "send_only_vip"):
        host, _, port = broker.addresses[name].partition(":")
        socket.create_connection((host, int(port)), 20).close()
    assert answers(f"{broker.page}livez")


def test_a_paused_broker_answers_after_it_is_resumed(broker: DevProcess) -> None:
    topic = broker.topic()
    send(broker, topic, b"1")
    broker.pause()
    with BlockingProducer("p", broker.name_server) as producer:
        sending = producer.submit(Message(topic, b"2"))
        assert not sending.done()
        broker.resume()
        sending.result(60)
    assert bodies(broker, topic) == [b"1", b"2"]


def test_a_paused_broker_stops_gracefully(broker: DevProcess) -> None:
    broker.pause()
    process = broker._process
    broker.stop()
    assert process is not None and process.returncode == 0
    broker.start()


def test_the_administrator_of_the_fixture_sees_topics(broker: DevProcess) -> None:
    topic = broker.topic(queues=3)
    with broker.admin() as admin:
        assert topic in {one.name for one in admin.topics()}
    with BlockingPullConsumer("g", broker.name_server) as consumer:
        assert len(consumer.queues(topic)) == 3


def test_a_port_in_use_is_named_with_the_way_out() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        port = other.getsockname()[1]
        arguments = ["--port", "0", "--namesrv-port", str(port)]
        error = CliRunner().invoke(dev, arguments).exception
    assert isinstance(error, ConfigError)
    assert str(port) in error.message and "--port 0" in error.message


@pytest.mark.parametrize("end", ["SIGINT", "SIGHUP", "stdin"])
def test_it_stops_by_itself_and_removes_its_directory(end: str) -> None:
    command = [sys.executable, "-P", "-m", "dledger", "dev", "--port", "0", "--json", "--stop-with-stdin"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        facts = json.loads(process.stdout.readline())
        assert Path(facts["directory"]).is_dir()
        if end == "stdin":
            process.stdin.close()
        else:
            os.kill(facts["pid"], signal.Signals[end])
        assert process.wait(60) == 0
        assert not Path(facts["directory"]).exists()


@pytest.mark.parametrize("options", [[], ["--nodes", "3"]], ids=["one", "three"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_during_the_start_leaves_no_directory(
    tmp_path: Path, number: signal.Signals, options: list[str]
) -> None:
    command = [sys.executable, "-P", "-m", "dledger", "dev", "--port", "0", *options]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        command, env=environment, stderr=subprocess.DEVNULL, start_new_session=True
    ) as process:
        asyncio.run(until(lambda: list(tmp_path.glob("dledger-dev-*")) != []))
        process.send_signal(number)
        assert process.wait(60) == 0
    assert list(tmp_path.glob("dledger-dev-*")) == []


def test_a_closed_terminal_does_not_stop_a_broker_under_nohup(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", "dledger", "dev", "--port", "0", "--json", "--dir", str(tmp_path)]
    with subprocess.Popen(
        ["nohup", *command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdout is not None
        page = json.loads(process.stdout.readline())["page"]
        process.send_signal(signal.SIGHUP)
        assert answers(f"{page}livez")
        process.terminate()
        assert process.wait(60) == 0


def test_the_port_of_a_vip_channel_in_use_is_named() -> None:
    """It follows from another one, and is not among the options."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        port = other.getsockname()[1]
        error = CliRunner().invoke(dev, ["--port", "0", "--broker-port", str(port + 2)]).exception
    assert isinstance(error, ConfigError) and str(port) in error.message


def test_routes_name_the_advertised_host(tmp_path: Path) -> None:
    with DevProcess(tmp_path, ["--advertise", "localhost"]) as broker, broker.admin() as admin:
        admin.create_topic("t")
        named = {address for one in admin.route("t").brokers.values() for address in one.addresses.values()}
        assert named == {broker.broker, broker.addresses["send_only"]}
        assert all(address.startswith("localhost:") for address in named)


def test_a_failed_test_shows_the_lines_of_the_broker(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from broker_adapter.client import BlockingProducer, Message

        def test_good(rocketmq_broker):
            with BlockingProducer("p", rocketmq_broker.name_server) as producer:
                producer.send(Message(rocketmq_broker.topic(), b"x"))

        def test_bad(rocketmq_broker):
            with rocketmq_broker.log.open("a") as log:
                log.write("many lines\\n" * 2_000 + "a line of the broker")
            assert False
        """
    )
    done = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    done.assert_outcomes(passed=1, failed=1)
    done.stdout.fnmatch_lines(["*log of the RocketMQ broker*", "a line of the broker"])


def test_a_failed_test_shows_no_lines_of_earlier_tests(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        def test_good(rocketmq_broker):
            with rocketmq_broker.log.open("a") as log:
                log.write("a line from before\\n")

        def test_bad(rocketmq_broker):
            assert False
        """
    )
    done = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    done.assert_outcomes(passed=1, failed=1)
    done.stdout.fnmatch_lines(["*log of the RocketMQ broker*"])
    done.stdout.no_fnmatch_line("a line from before")


_START_CLUSTER = """
import pathlib, sys
from broker_adapter.testing import DevCluster
DevCluster(pathlib.Path(sys.argv[1]), ["--log"]).start()
"""


@pytest.mark.xdist_group("dev-cluster")
async def test_nothing_runs_after_an_interrupted_start_of_a_cluster(tmp_path: Path) -> None:
    data = tmp_path / "data"
    command = [sys.executable, "-c", _START_CLUSTER, str(tmp_path)]
    starting = await asyncio.create_subprocess_exec(*command, stderr=subprocess.PIPE, start_new_session=True)
    await until(lambda: LocalCluster.exists(data) and LocalCluster(data).running() != [])
    starting.send_signal(signal.SIGINT)
    _, errors = await starting.communicate()
    assert b"KeyboardInterrupt" in errors
    assert LocalCluster(data).running() == []


@pytest.mark.xdist_group("dev-cluster")
def test_nodes_whose_supervisor_was_killed_are_stopped(tmp_path: Path) -> None:
    with DevCluster(tmp_path, ["--log"]) as cluster:
        cluster.kill()
        assert len(cluster.nodes.running()) == 3
    assert cluster.nodes.running() == []


@pytest.mark.xdist_group("dev-cluster")
def test_a_cluster_of_brokers_survives_the_loss_of_its_master(rocketmq_cluster: DevCluster) -> None:
    topic = rocketmq_cluster.topic()
    send(rocketmq_cluster, topic, b"1")
    killed = rocketmq_cluster.kill_leader()
    assert rocketmq_cluster.leader(other_than=killed) != killed
    send(rocketmq_cluster, topic, b"2")
    rocketmq_cluster.start_node(killed)
    assert bodies(rocketmq_cluster, topic) == [b"1", b"2"]


@pytest.mark.xdist_group("dev-cluster")
def test_a_log_survives_the_loss_of_its_leader(dledger_cluster: DevCluster, dledger_log: Client) -> None:
    index = dledger_log.append(b"before").index
    killed = dledger_cluster.kill_leader()
    assert dledger_log.append(b"after").index > index
    dledger_cluster.start_node(killed)
    assert next(entry.body for entry in dledger_log.read(index, 1)) == b"before"


@pytest.mark.xdist_group("dev-cluster")
def test_a_log_survives_a_restart_of_its_cluster(dledger_cluster: DevCluster) -> None:
    before = dledger_cluster.endpoints
    with Client(before) as client:
        index = client.append(b"before").index
    dledger_cluster.restart()
    assert dledger_cluster.endpoints == before
    with Client(before) as client:
        assert next(entry.body for entry in client.read(index, 1)) == b"before"


@pytest.mark.xdist_group("dev-cluster")
def test_a_second_command_does_not_touch_the_nodes_of_the_first(dledger_cluster: DevCluster) -> None:
    data = str(dledger_cluster.nodes.directory)
    error = CliRunner().invoke(dev, ["--nodes", "3", "--log", "--dir", data]).exception
    assert isinstance(error, ClusterError) and "are already running" in error.message
    assert len(dledger_cluster.nodes.running()) == 3


@pytest.mark.xdist_group("dev-cluster")
def test_a_directory_of_another_kind_of_cluster_is_refused(tmp_path: Path) -> None:
    with DevCluster(tmp_path, ["--log"]):
        pass
    error = CliRunner().invoke(dev, ["--nodes", "3", "--dir", str(tmp_path / "data")]).exception
    assert isinstance(error, ClusterError) and "has only a log" in error.message


@pytest.mark.xdist_group("dev-cluster")
def test_nodes_end_when_the_program_that_started_them_is_killed(tmp_path: Path) -> None:
    code = f"""
import os, signal
from pathlib import Path
from broker_adapter.testing import DevCluster
with DevCluster(Path({str(tmp_path)!r})) as cluster:
    os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    nodes = LocalCluster(tmp_path / "data")
    asyncio.run(until(lambda: not nodes.running()))


@pytest.mark.xdist_group("dev-cluster")
def test_the_tests_of_the_example_pass() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "examples/orders"]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert "2 passed" in done.stdout, done.stdout


@pytest.mark.xdist_group("dev-cluster")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_nodes_end_when_their_start_is_interrupted(tmp_path: Path, number: signal.Signals) -> None:
    """Also if it is interrupted again while they stop."""
    folder = tmp_path / "cluster"
    options = ["--nodes", "3", "--port", "0", "--dir", str(folder)]
    command = [sys.executable, "-P", "-m", "dledger", "dev", *options]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True) as process:

        def running() -> int:
            return len(LocalCluster(folder).running()) if LocalCluster.exists(folder) else 0

        asyncio.run(until(lambda: running() == 4))
        process.send_signal(number)
        asyncio.run(until(lambda: running() < 4))
        process.send_signal(number)
        process.wait(60)
    assert running() == 0


def test_a_directory_of_a_cluster_is_refused_for_one_node(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").touch()
    refused = CliRunner().invoke(dev, ["--port", "0", "--dir", str(tmp_path)])
    assert refused.exit_code == 2 and "--nodes" in refused.stderr


def test_a_full_disk_ends_the_start_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dev_module, "_READY_S", 600)
    program = DevBroker(DevSettings(tmp_path, DevPorts(*free_ports(4))), lambda _: None)
    node = program.make_node()

    async def start() -> None:
        await node.start()
        full = replace(node.status.node_status(), no_room=True)
        monkeypatch.setattr(program._broker.writer, "is_open", lambda: False)
        monkeypatch.setattr(type(node.status), "node_status", lambda _: full)
        try:
            with pytest.raises(DLedgerError, match=r"415 DISK_FULL: the disk of .* is full"):
                await program.start()
        finally:
            await node.stop()

    asyncio.run(start())


def test_a_start_that_takes_too_long_ends_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dev_module, "_READY_S", 0.5)
    settings = DevSettings(tmp_path, DevPorts(*free_ports(4)))
    program = DevBroker(settings, lambda _: None)
    node = program.make_node()

    async def start() -> None:
        await node.start()
        monkeypatch.setattr(program._broker.writer, "is_open", lambda: False)
        try:
            with pytest.raises(DLedgerError, match=r"no writable master after 0\.5 s.*health"):
                await program.start()
        finally:
            await node.stop()

    asyncio.run(start())


def test_a_process_that_takes_too_long_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dev_process, "_READY_S", 0.05)
    with pytest.raises(RuntimeError, match=r"did not start:\s+not ready within 0\.05 s: stopped"):
        DevProcess(tmp_path).start()
