"""`dledger health`: what it requests, and its exit codes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest
from click.testing import CliRunner, Result

from dledger.cli.exits import Exit
from dledger.cli.health_command import URL_VARIABLE
from dledger.cli.main import cli
from tests.process.cluster import free_ports


class _Page(BaseHTTPRequestHandler):
    paths: ClassVar[list[str]] = []

    def do_GET(self) -> None:  # noqa: N802: http.server names it
        self.paths.append(self.path)
        self.send_response(503 if self.path == "/leader" else 200)
        self.end_headers()
        self.wfile.write(b'{"ok":false}\n' if self.path == "/leader" else b'{"ok":true}\n')

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def page() -> Iterator[str]:
    _Page.paths = []
    with ThreadingHTTPServer(("127.0.0.1", 0), _Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def health(*arguments: str, variable: str | None = None) -> Result:
    return CliRunner().invoke(cli, ["health", *arguments], env={URL_VARIABLE: variable})


def test_the_response_and_the_exit_code_are_those_of_the_probe(page: str) -> None:
    done = [health(page), health(f"{page}/health?lag=7"), health(variable=f"{page}/livez")]
    assert [(one.exit_code, one.stdout) for one in done] == [(Exit.OK, '{"ok":true}\n')] * 3
    assert _Page.paths == ["/health", "/health?lag=7", "/livez"]
    refused = health(f"{page}/leader")
    assert (refused.exit_code, refused.stdout) == (Exit.FAILED, '{"ok":false}\n')


def test_a_server_that_does_not_respond_is_not_healthy(page: str) -> None:
    for url in (f"http://127.0.0.1:{free_ports(1)[0]}", page.replace("http:", "https:")):
        done = health(url)
        assert done.exit_code == Exit.FAILED and url in done.stderr


@pytest.mark.parametrize("url", ["127.0.0.1:20980", "ftp://n1:20980", "http://", "http://n1:port/health"])
def test_an_argument_that_is_no_url_is_a_usage_error(url: str) -> None:
    assert health(url).exit_code == Exit.USAGE
