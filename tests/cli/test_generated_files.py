"""dledger/v1 is what `make proto` makes of proto/.

Compared by meaning: tools of other versions write other text.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parents[2]
PROTO = ROOT / "proto"
FILES = sorted(path.relative_to(PROTO).as_posix() for path in PROTO.glob("dledger/v1/*.proto"))


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, descriptor_pb2.FileDescriptorProto]:
    out = tmp_path_factory.mktemp("proto") / "set"
    assert protoc.main(["protoc", f"-I{PROTO}", f"--descriptor_set_out={out}", *FILES]) == 0
    files = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file
    return {file.name: file for file in files}


def forget_json_names(messages: Iterable[descriptor_pb2.DescriptorProto]) -> None:
    """protoc spells these names out in a descriptor set, and leaves them to be derived in Python."""
    for message in messages:
        for field in message.field:
            field.ClearField("json_name")
        forget_json_names(message.nested_type)


@pytest.mark.parametrize("name", FILES)
def test_generated_messages_are_up_to_date(
    name: str, compiled: dict[str, descriptor_pb2.FileDescriptorProto]
) -> None:
    module = importlib.import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2")
    committed = descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
    expected = compiled[name]
    for file in (committed, expected):
        forget_json_names(file.message_type)
    assert committed == expected, "run `make proto`"


@pytest.mark.parametrize("name", FILES)
def test_generated_services_are_up_to_date(
    name: str, compiled: dict[str, descriptor_pb2.FileDescriptorProto]
) -> None:
    source = (ROOT / name.replace(".proto", "_pb2_grpc.py")).read_text()
    for service in compiled[name].service:
        assert f"class {service.name}Servicer" in source, "run `make proto`"
        for method in service.method:
            assert f"'/dledger.v1.{service.name}/{method.name}'" in source, "run `make proto`"


@pytest.mark.parametrize("name", FILES)
def test_generated_types_are_up_to_date(
    name: str, compiled: dict[str, descriptor_pb2.FileDescriptorProto]
) -> None:
    source = (ROOT / name.replace(".proto", "_pb2.pyi")).read_text()
    for message in compiled[name].message_type:
        assert f"class {message.name}(" in source, "run `make proto`"
        for field in message.field:
            assert f"    {field.name}: " in source, "run `make proto`"
