"""broker_adapter/v2 is what `make proto` makes of proto/apache/rocketmq/v2.

Compared by meaning: tools of other versions write other text.
"""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2
from grpc_tools import protoc

from broker_adapter.endpoints.v5.messages.methods import METHODS, SERVICE_NAME, TELEMETRY
from broker_adapter.v2 import service_pb2

ROOT = Path(__file__).resolve().parents[3]
PROTO = ROOT / "proto"
GENERATED = ROOT / "broker_adapter" / "v2"
FILES = sorted(path.relative_to(PROTO).as_posix() for path in PROTO.glob("apache/rocketmq/v2/*.proto"))


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, descriptor_pb2.FileDescriptorProto]:
    out = tmp_path_factory.mktemp("proto") / "set"
    arguments = [
        f"-I{PROTO}",
        f"-I{Path(str(protoc.__file__)).parent / '_proto'}",
        f"--descriptor_set_out={out}",
    ]
    assert protoc.main(["protoc", *arguments, *FILES]) == 0
    files = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file
    return {file.name: file for file in files}


def forget_json_names(messages: list[descriptor_pb2.DescriptorProto]) -> None:
    """protoc spells these names out in a descriptor set, and leaves them to be derived in Python."""
    for found in messages:
        for field in found.field:
            field.ClearField("json_name")
        forget_json_names(list(found.nested_type))


@pytest.mark.parametrize("name", FILES)
def test_generated_messages_are_up_to_date(
    name: str, compiled: dict[str, descriptor_pb2.FileDescriptorProto]
) -> None:
    stem = Path(name).stem
    module = importlib.import_module(f"broker_adapter.v2.{stem}_pb2")
    committed = descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
    expected = compiled[name]
    for file in (committed, expected):
        forget_json_names(list(file.message_type))
    assert committed == expected, "run `make proto`"
    source = (GENERATED / f"{stem}_pb2.pyi").read_text()
    for found in expected.message_type:
        assert f"class {found.name}(" in source, "run `make proto`"
        for field in found.field:
            assert f"    {field.name}: " in source, "run `make proto`"


def test_every_method_of_the_service_is_served() -> None:
    service = service_pb2.DESCRIPTOR.services_by_name["MessagingService"]
    assert service.full_name == SERVICE_NAME
    assert {method.name for method in service.methods} == {*METHODS, TELEMETRY}
    for method in service.methods:
        if method.name != TELEMETRY:
            served = METHODS[method.name]
            assert served.request.DESCRIPTOR is method.input_type
            assert served.answer.DESCRIPTOR is method.output_type
            assert served.streams_answers == method.server_streaming
