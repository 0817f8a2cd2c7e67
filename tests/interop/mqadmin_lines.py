"""Command lines of RocketMQ's mqadmin, one of each sub-command, and what it prints, in one JVM."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from . import genuine

#: In order: some need what others make. CLUSTER, BROKER and ADDRESS are put in; -n is added.
LINES = (
    "updateTopic -c CLUSTER -t admt -r 4 -w 4",
    "topicList",
    "topicList -c",
    "topicRoute -t admt",
    "topicStatus -t admt",
    "topicClusterList -t admt",
    "allocateMQ -t admt -i 10.0.0.1,10.0.0.2",
    "clusterList",
    "clusterList -m",
    "brokerStatus -b ADDRESS",
    "updateSubGroup -c CLUSTER -g admg -r 3",
    "sendMessage -t admt -p hello -k kk -c tagA",
    "checkMsgSendRT -t admt -a 3 -s 10",
    "consumeMessage -t admt -c 2",
    "printMsg -t admt -d true",
    "queryMsgByKey -t admt -k kk",
    "queryMsgByOffset -t admt -b BROKER -i 0 -o 0",
    "consumerProgress -g admg",
    "consumerProgress",
    "consumerConnection -g admg",
    "producerConnection -g admp -t admt",
    "consumerStatus -g admg",
    "resetOffsetByTime -g admg -t admt -s -1",
    "skipAccumulatedMessage -g admg -t admt",
    "cloneGroupOffset -s admg -d admg2 -t admt -o false",
    "getBrokerConfig -b ADDRESS",
    "getNamesrvConfig",
    "updateKvConfig -s ORDER_TOPIC_CONFIG -k admt -v BROKER:4",
    "updateOrderConf -m get -t admt",
    "deleteKvConfig -s ORDER_TOPIC_CONFIG -k admt",
    "wipeWritePerm -b BROKER",
    "addWritePerm -b BROKER",
    "statsAll -t admt",
    "updateTopicPerm -c CLUSTER -t admt -p 4",
    "updateTopicPerm -c CLUSTER -t admt -p 6",
    "updateTopic -c CLUSTER -t admfifo -a +message.type=FIFO",
    "sendMsgStatus -b BROKER -c 3",
    "deleteSubGroup -c CLUSTER -g admg",
    "deleteTopic -c CLUSTER -t admt",
)
#: mqadmin 4.9 ends its process at an option that it does not know, such as the attributes of RocketMQ 5.
LINES_49 = tuple(line for line in LINES if " -a +" not in line)
_SAID, _END = "@ ", "@ END\n"
#: mqadmin 4.9 prints an exception before each sub-command without this file.
_NO_LOGGING = "<configuration/>\n"


def printed(
    folder: Path, name_server: str, address: str, lines: Sequence[str] = LINES, lib: Path = genuine.LIB
) -> dict[str, str]:
    """By line. `address`: of a master whose names are DefaultCluster and broker-a; `lib`: mqadmin's jars."""
    library = f"{lib}/*"
    source = Path(__file__).with_name("Mqadmin.java")
    subprocess.run(["javac", "-nowarn", "-cp", library, "-d", folder, source], check=True)
    command, environment = genuine.java(folder, f"{folder}:{library}", "Mqadmin")
    (folder / "conf/logback_tools.xml").write_text(_NO_LOGGING)
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
        cwd=folder,
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        found = {}
        for line in lines:
            put_in = line.replace("CLUSTER", "DefaultCluster").replace("BROKER", "broker-a")
            words = [*put_in.replace("ADDRESS", address).split(), "-n", name_server]
            process.stdin.write("\t".join(words) + "\n")
            process.stdin.flush()
            said = ""
            while (one := process.stdout.readline()) != _END:
                assert one, f"mqadmin ended at: {line}"
                if one.startswith(_SAID) and "|-" not in one:
                    said += one.removeprefix(_SAID)
            found[line] = said
        process.kill()
    return found


def outcome(said: str) -> str:
    """That it went well, or the code and text of RocketMQ's exception."""
    if "Caused by:" not in said and "Exception" not in said:
        return "done"
    codes = [word for word in ("CODE: 17", "CODE: 1 ", "CODE: 22") if word in said]
    return codes[0].strip() if codes else said
