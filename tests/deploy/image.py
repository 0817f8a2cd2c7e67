"""The image of examples/deploy/container, built by buildah and run by bubblewrap.

No container engine has to run. buildah reads the Containerfile itself. Its base image is made from packages
of Debian, because the tests download nothing else. bubblewrap gives a process what an engine would: the image
as a read-only root, the image's user without capabilities, PID 1, and a /tmp.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from tests.conftest import DID_NOT_RUN
from tests.docs.pages import ROOT

CONTAINERFILE = ROOT / "examples/deploy/container/Containerfile"
_SUITE = "trixie"
_BASE = f"docker.io/library/debian:{_SUITE}-slim"
#: Tool -> package of Debian.
_TOOLS = {"buildah": "buildah", "mmdebstrap": "mmdebstrap", "bwrap": "bubblewrap"}
_STOP_S = 60


class Image:
    """A built image. `root`: its mounted file system. `config`: as Docker's format has it."""

    def __init__(self, root: Path, config: Mapping[str, Any]) -> None:
        self.root = root
        self.config = config

    def sandbox(self, binds: Mapping[Path, str], variables: Mapping[str, str] | None = None) -> list[str]:
        """The command line that starts another one in a container. `binds`: files and directories by their
        place in the image; a directory is writable."""
        user, _, group = self.config["User"].partition(":")
        command = [
            "bwrap",
            "--die-with-parent",
            "--unshare-pid",
            "--unshare-ipc",
            "--as-pid-1",
            "--new-session",
        ]
        # For setpriv, which takes them away again.
        for capability in ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP"):
            command += ["--cap-add", capability]
        command += ["--ro-bind", str(self.root), "/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
        command += ["--chmod", "1777", "/tmp"]
        for path, place in binds.items():
            command += ["--bind" if path.is_dir() else "--ro-bind", str(path), place]
        command += ["--chdir", self.config["WorkingDir"], "--clearenv"]
        for name, value in (*_pairs(self.config["Env"]), *(variables or {}).items()):
            command += ["--setenv", name, value]
        rights = ["--clear-groups", "--no-new-privs", "--bounding-set", "-all", "--inh-caps", "-all"]
        return [*command, "setpriv", "--reuid", user, "--regid", group, *rights]

    def call(
        self, command: Sequence[str], binds: Mapping[Path, str], variables: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, as `docker exec` does."""
        return subprocess.run(
            [*self.sandbox(binds, variables), *command], capture_output=True, text=True, check=False
        )

    def give(self, *paths: Path) -> None:
        """Make the user of the image the owner."""
        for path in paths:
            user, _, group = self.config["User"].partition(":")
            os.chown(path, int(user), int(group))

    @contextmanager
    def running(
        self,
        command: Sequence[str],
        binds: Mapping[Path, str],
        log: IO[str],
    ) -> Iterator[Container]:
        reader, writer = os.pipe()
        sandbox = self.sandbox(binds)
        with subprocess.Popen(
            [sandbox[0], "--info-fd", str(writer), *sandbox[1:], *command],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            pass_fds=[writer],
        ) as process:
            os.close(writer)
            try:
                with os.fdopen(reader) as facts:
                    yield Container(process, json.load(facts)["child-pid"])
            finally:
                process.kill()


class Container:
    """A running process, which is PID 1 of its namespace. `pid`: outside of it."""

    def __init__(self, process: subprocess.Popen[str], pid: int) -> None:
        self.process = process
        self.pid = pid

    def capabilities(self) -> int:
        """The effective capabilities, as a mask."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.partition("CapEff:")[2].split()[0], 16)

    def stop(self) -> int:
        """Send the signal of the image, as `docker stop` does. The exit code."""
        os.kill(self.pid, signal.SIGTERM)
        return self.process.wait(_STOP_S)


def _pairs(variables: Sequence[str]) -> Iterator[tuple[str, str]]:
    for variable in variables:
        name, _, value = variable.partition("=")
        yield name, value


@contextmanager
def built_image(folder: Path) -> Iterator[Image]:
    """Build it. Skips the test, loudly, where that is not possible."""
    if missing := [package for tool, package in _TOOLS.items() if shutil.which(tool) is None]:
        pytest.skip(f"{DID_NOT_RUN}: the container image: apt-get install {' '.join(missing)}")
    if os.geteuid() != 0:
        pytest.skip(f"{DID_NOT_RUN}: the container image: only root may build it")
    buildah = _Buildah(folder)
    base = _base_system(ROOT / "build/container")
    container = buildah("from", "scratch")
    buildah("add", "--quiet", container, str(base), "/")
    buildah("commit", "--quiet", container, _BASE)
    buildah("rm", container)
    buildah("build", *buildah.options_of_build(), "--file", str(CONTAINERFILE), "--tag", "dledger", str(ROOT))
    config = json.loads(buildah("inspect", "--type", "image", "dledger"))["Docker"]["config"]
    container = buildah("from", "--pull-never", "localhost/dledger")
    try:
        yield Image(Path(buildah("mount", container)), config)
    finally:
        buildah("umount", container)
        buildah("rm", "--all")
        buildah("rmi", "--all", "--force")


class _Buildah:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, *arguments: str) -> str:
        """Its stdout. Fails with what it printed."""
        storage = ["--root", str(self._folder / "storage"), "--runroot", str(self._folder / "run")]
        done = subprocess.run(["buildah", *storage, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"buildah {arguments}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done.stdout.strip()

    def options_of_build(self) -> list[str]:
        ignored = CONTAINERFILE.with_name("Containerfile.dockerignore")
        options = [
            "--isolation",
            "chroot",
            "--pull-never",
            "--format",
            "docker",
            "--ignorefile",
            str(ignored),
        ]
        # A machine may reach the package index through a proxy with a certificate of its own.
        bundle = os.environ.get("PIP_CERT", "")
        if bundle:
            settings = self._folder / "pip.conf"
            settings.write_text("[global]\ncert = /run/index.pem\n")
            options += ["--volume", f"{bundle}:/run/index.pem:ro", "--volume", f"{settings}:/etc/pip.conf:ro"]
        return options


def _base_system(folder: Path) -> Path:
    """A minimal Debian as an archive. It is kept, because it takes a minute."""
    archive = folder / f"{_SUITE}.tar"
    if not archive.exists():
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / f"{_SUITE}.part.tar"
        command = ["mmdebstrap", "--variant=minbase", _SUITE, str(part)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"{DID_NOT_RUN}: the container image: no packages of Debian: {done.stderr[-300:]}")
        part.rename(archive)
    return archive
