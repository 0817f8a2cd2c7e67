"""mqadmin 5.5.0 and 4.9.8: each sub-command ends with our brokers as it ends with RocketMQ's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.process.cluster import free_ports

from . import genuine, mqadmin_lines, ours
from .mqadmin_lines import outcome, printed

pytestmark = [pytest.mark.xdist_group("interop"), pytest.mark.process]
DOCUMENT = Path(__file__).resolve().parents[2] / "docs/remoting.md"


@pytest.mark.long
@pytest.mark.parametrize("lib", [genuine.LIB, genuine.CLIENT_49], ids=["5.5.0", "4.9.8"])
def test_each_sub_command_ends_as_with_rocketmq_itself(tmp_path: Path, lib: Path) -> None:
    genuine.require()
    names, port, *_ = free_ports(4)
    at, address = f"127.0.0.1:{names}", f"127.0.0.1:{port}"
    own = {"brokerName": "broker-a", "brokerClusterName": "DefaultCluster"}
    (tmp_path / "admin").mkdir()
    with (
        genuine.name_server(tmp_path / "names", names),
        genuine.broker(tmp_path / "b", at, port, **own) as one,
    ):
        genuine.until_registered(tmp_path / "admin", at, address)
        theirs = printed(tmp_path / "admin", at, address, lib=lib)
        one.kill()
    with ours.cluster(tmp_path / "cluster") as cluster:
        server = cluster.plan.companions[0].remoting_address
        mine = printed(tmp_path / "admin", server, ours.master(cluster).remoting_address, lib=lib)
    ends = {line: (outcome(mine[line]), outcome(theirs[line])) for line in mqadmin_lines.LINES}
    assert not {line: both for line, both in ends.items() if both[0] != both[1]}
    first_words = {line: (mine[line].split()[:3], theirs[line].split()[:3]) for line in _SAME_TABLE}
    assert not {line: both for line, both in first_words.items() if both[0] != both[1]}


#: Those that print a table: its columns are the same.
_SAME_TABLE = (
    *("topicStatus -t admt", "topicList -c", "clusterList", "clusterList -m", "statsAll -t admt"),
    *("consumerProgress", "skipAccumulatedMessage -g admg -t admt", "queryMsgByKey -t admt -k kk"),
    *("sendMessage -t admt -p hello -k kk -c tagA", "checkMsgSendRT -t admt -a 3 -s 10"),
)


def test_the_page_names_each_sub_command() -> None:
    page = DOCUMENT.read_text()
    assert not [line for line in mqadmin_lines.LINES if f"`{line.split()[0]}`" not in page]
