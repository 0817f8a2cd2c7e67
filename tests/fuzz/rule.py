"""Which functions of the product take apart what comes from outside or from a disk, by name and parameters.

The rule is one that a new decoder follows without knowing of it: a public function that is named like a
decoder and is given bytes, a text, a file or a message. `tests/fuzz/test_targets.py` wants a target for each,
or a reason.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.test_tidy import PRODUCT, ROOT, python_files

#: Names of decoders. `_from_pb`, ...: conversions of what somebody has sent.
NAMES = re.compile(
    r"(decode|decompress|unpack|parse|load|read|convert|compile|verify|forms|split_properties|account_of|filter_of)(_|$)"
    r"|.*_from_(pb|json)$|record_size_at$"
)
#: Types of what is taken apart. A path is that of a file.
TAKEN = re.compile(r"\b(bytes|memoryview|Buffer|Frames|str|Path|pb\.\w+|Any|object)\b")
#: No node reads them: what simulates, and programs of a terminal.
LEFT_OUT = ("dledger/testing/", "chaos/workloads/", "chaos/injection/")


def decoders() -> Iterator[str]:
    """`module:qualified name` of each."""
    for path in python_files(*PRODUCT):
        relative = path.relative_to(ROOT)
        if str(relative).startswith(LEFT_OUT):
            continue
        module = ".".join(relative.with_suffix("").parts).removesuffix(".__init__")
        for name, function in _functions(ast.parse(path.read_text())):
            if is_decoder(name, function):
                yield f"{module}:{name}"


def is_decoder(name: str, function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    parts = name.split(".")
    if any(part.startswith("_") for part in parts) or not NAMES.match(parts[-1]):
        return False
    if isinstance(function, ast.AsyncFunctionDef):  # it waits for something: a shell around what decodes
        return False
    arguments = [*function.args.posonlyargs, *function.args.args]
    return any(a.annotation is not None and TAKEN.search(ast.unparse(a.annotation)) for a in arguments)


def _functions(
    tree: ast.AST, prefix: str = ""
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{prefix}{node.name}.")


#: Decoders by their name that take nothing apart, or nothing from outside.
EXCEPTIONS = {
    "dledger.cli.client_options:Seconds.convert": "a number of an option, by click",
    "dledger.cli.client_options:TargetDirectory.convert": "a path of an option, by click",
    "dledger.cli.client_options:parse_address": "an address of an option, by is_address",
    "dledger.cli.read_command:read": "a command",
    "dledger.node.async_shell:AsyncShell.load_push": "asks for entries",
    "dledger.replica.replica:Replica.read_index": "asks for an index",
    "dledger.replica.shell:Shell.load_push": "asks for entries",
    "dledger.node.machine.state_machine:StateMachine.load": "what others implement",
    "dledger.infra.files.disk:read_file": "bytes as they are",
    "broker_adapter.store.queue_reader:QueueReader.read": "records of an offset: reading, not decoding",
    "broker_adapter.store.dispatcher:Metadata.load": "what others implement",
    "broker_adapter.store.open_files:OpenFiles.read": "bytes as they are",
    "chaos.cli.convert_command:convert_command": "a command",
    "chaos.trace.parquet:convert": "DuckDB reads the lines, in a process of a command",
    "chaos.cli.demo_command:read_lines": "lines of a file, whatever is in them",
}
