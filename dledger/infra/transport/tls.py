"""TLS from PEM files, which are validated and reloaded after changes.

A certificate is tested before use, in an in-memory handshake with itself. A certificate with the wrong key,
past its expiry, or of another CA is thus rejected with a clear error when it is loaded, and not later by
peers.
"""

from __future__ import annotations

import logging
import ssl
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import grpc

from dledger.errors import ConfigError
from dledger.infra.files.secret_files import check_secret_file
from dledger.infra.transport.channels import ChannelSecurity

_log = logging.getLogger(__name__)

#: Minimum interval between checks of the files (seconds).
LOOK_EVERY_S = 1.0
_WARN_BEFORE_S = 7 * 86_400.0
_WARN_EVERY_S = 86_400.0

#: Per file: device, inode, size and modification time; None: missing.
_Signature: TypeAlias = tuple[tuple[int, int, int, int] | None, ...]

#: The roles in which a certificate must be valid: a node with mutual TLS has both.
Use: TypeAlias = Literal["both", "server", "client"]

#: rounds of a handshake; TLS 1.2 needs three
_MAX_ROUNDS = 8


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files. `ca` is the trusted CA; `certificate` (with its chain) and `key` identify this process."""

    ca: Path | str
    certificate: Path | str | None = None
    key: Path | str | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise ConfigError("tls: certificate and key must be given together")

    def paths(self) -> tuple[Path, ...]:
        return tuple(Path(p) for p in (self.ca, self.certificate, self.key) if p is not None)


@dataclass(frozen=True, slots=True)
class Material:
    """The content of the files at one time. `not_after`: expiry of the certificate in Unix seconds, or None
    if there is no certificate."""

    ca: bytes
    certificate: bytes | None
    key: bytes | None
    not_after: float | None


class TlsKeeper:
    """Holds the newest valid content of the files. Invalid content is reported and never replaces valid
    content.

    Raises ConfigError if the files are invalid at creation. Thread-safe.
    """

    def __init__(self, files: TlsFiles, use: Use) -> None:
        self.files = files
        #: Increases with every reload.
        self.generation = 1
        self._use = use
        self._lock = threading.Lock()
        self._signature = _signature(files)
        self._material = load(files, use)
        self._next_check = 0.0
        self._next_warning = 0.0
        self._reported_problem: tuple[str, _Signature] | None = None

    @property
    def material(self) -> Material:
        return self._material

    def refresh(self) -> bool:
        """Reload changed files. Returns True if new, valid content was loaded."""
        with self._lock:
            self._warn_of_expiry()
            now = time.monotonic()
            if now < self._next_check:
                return False
            self._next_check = now + LOOK_EVERY_S
            before = _signature(self.files)
            if before == self._signature:
                self._reported_problem = None
                return False
            try:
                material = load(self.files, self._use)
            except ConfigError as error:
                self._report_problem(error.message, before)
                return False
            if _signature(self.files) != before:
                return False  # the file is being written: the next check sees it complete
            self._signature, self._material, self._reported_problem = before, material, None
            self._next_warning = 0.0
            self.generation += 1
        _log.warning("TLS files reloaded: %s, %s", self.files.certificate, _validity(material))
        return True

    def _report_problem(self, reason: str, signature: _Signature) -> None:
        if self._reported_problem != (
            reason,
            signature,
        ):  # once per change, not per check
            self._reported_problem = reason, signature
            _log.error("the new TLS files are NOT used, the old certificate stays: %s", reason)

    def _warn_of_expiry(self) -> None:
        not_after = self._material.not_after
        if not_after is None or time.monotonic() < self._next_warning:
            return
        remaining_s = not_after - time.time()
        if remaining_s < _WARN_BEFORE_S:
            self._next_warning = time.monotonic() + (_WARN_EVERY_S if remaining_s > 0 else 60.0)
            _log.error("the TLS certificate in use is %s", _validity(self._material))


def load(files: TlsFiles, use: Use) -> Material:
    """Read and test the files. Raises ConfigError, which names the invalid one and the reason."""
    ca, *own = [_read(path) for path in files.paths()]
    try:
        _context(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(files.ca)
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(f"tls.ca: {files.ca} contains no PEM certificates: {_reason(error)}") from None
    if not own:
        return Material(ca, None, None, None)
    if files.key is not None:
        check_secret_file(Path(files.key))
    not_after = _test_handshake(files, use)
    return Material(ca, own[0], own[1], not_after)


def channel_security(material: Material, *, server_name: str = "") -> ChannelSecurity:
    """Create the security of a channel. `server_name`: the name required in the server's certificate; "": the
    host of the address."""
    credentials = grpc.ssl_channel_credentials(material.ca, material.key, material.certificate)
    return ChannelSecurity(credentials, server_name, has_certificate=material.certificate is not None)


def server_credentials(keeper: TlsKeeper, *, client_auth: bool) -> grpc.ServerCredentials:
    """Create the credentials of a gRPC server. Every handshake uses the newest valid files."""
    used_generation = keeper.generation

    def configuration() -> Any:
        material = keeper.material
        assert material.key is not None and material.certificate is not None
        # Without client_auth, gRPC expects no CA, and the server requests no certificate from clients.
        return grpc.ssl_server_certificate_configuration(
            [(material.key, material.certificate)], root_certificates=material.ca if client_auth else None
        )

    def fetch() -> Any:
        """Return a changed configuration, or None. gRPC calls it on its own thread for every handshake."""
        nonlocal used_generation
        keeper.refresh()
        if keeper.generation == used_generation:
            return None
        used_generation = keeper.generation
        return configuration()

    return grpc.dynamic_ssl_server_credentials(
        configuration(), fetch, require_client_authentication=client_auth
    )


def http_context(keeper: TlsKeeper, *, client_auth: bool) -> ssl.SSLContext:
    """Create the context of an HTTP server. Pass it to `renew_context` after a refresh."""
    context = stream_context(keeper, client_auth=client_auth)
    context.set_alpn_protocols(["http/1.1"])
    return context


def stream_context(keeper: TlsKeeper, *, client_auth: bool) -> ssl.SSLContext:
    """Create the context of a server of a protocol without ALPN. Pass it to `renew_context` after a
    refresh."""
    context = _context(ssl.PROTOCOL_TLS_SERVER)
    if client_auth:
        context.verify_mode = ssl.CERT_REQUIRED
    renew_context(context, keeper.files)
    return context


def renew_context(context: ssl.SSLContext, files: TlsFiles) -> None:
    """Make new connections use the current files. A CA remains trusted, because OpenSSL cannot remove one."""
    assert files.certificate is not None and files.key is not None
    context.load_cert_chain(files.certificate, files.key, password=_no_password)
    context.load_verify_locations(files.ca)


class ServerTls:
    """TLS of a server that has a gRPC port and possibly other ports. Raises ConfigError if the files are
    invalid."""

    def __init__(self, files: TlsFiles, *, client_auth: bool) -> None:
        """`client_auth`: on all ports except HTTP, clients must present a certificate of the CA."""
        if files.certificate is None:
            raise ConfigError("tls: a server needs both a certificate and a key")
        self._client_auth = client_auth
        self._keeper = TlsKeeper(files, "server")
        self._generation = self._keeper.generation
        self._contexts: dict[str, ssl.SSLContext] = {}  # by the port's protocol

    def credentials(self) -> grpc.ServerCredentials:
        return server_credentials(self._keeper, client_auth=self._client_auth)

    def http_context(self) -> ssl.SSLContext:
        """Return the context of the HTTP port, which requires no client certificate. Always the same
        object."""
        if "HTTP" not in self._contexts:
            self._contexts["HTTP"] = http_context(self._keeper, client_auth=False)
        return self._contexts["HTTP"]

    def remoting_context(self, *, asks: bool = False) -> ssl.SSLContext:
        """Return the context of the port of RocketMQ's remoting protocol. Always the same object. `asks`:
        clients may present a certificate, which is then verified."""
        if "remoting" not in self._contexts:
            context = stream_context(self._keeper, client_auth=self._client_auth)
            if asks and not self._client_auth:
                context.verify_mode = ssl.CERT_OPTIONAL
            self._contexts["remoting"] = context
        return self._contexts["remoting"]

    def reload(self) -> None:
        """Reload changed files. Call it regularly, on one thread; it reads files."""
        self._keeper.refresh()
        if not self._contexts or self._keeper.generation == self._generation:
            return
        self._generation = self._keeper.generation
        for protocol, context in self._contexts.items():
            try:
                renew_context(context, self._keeper.files)
            except (OSError, ssl.SSLError, ConfigError) as error:
                # The files changed again since they were read; the next check loads them.
                _log.error("the %s port keeps its old certificate: %s", protocol, error)


class ClientTls:
    """TLS of a client: returns the same ChannelSecurity until the files change."""

    def __init__(self, files: TlsFiles) -> None:
        self._keeper = TlsKeeper(files, "client")
        self._security = channel_security(self._keeper.material)

    def __call__(self) -> ChannelSecurity:
        if self._keeper.refresh():
            self._security = channel_security(self._keeper.material)
        return self._security

    def stream_context(self, protocols: Sequence[str] = ()) -> ssl.SSLContext:
        """Create a context for a protocol other than gRPC, from the current files. Create one per connection.
        `protocols`: for ALPN."""
        context = _context(ssl.PROTOCOL_TLS_CLIENT)
        if protocols:
            context.set_alpn_protocols(list(protocols))
        files = self._keeper.files
        if files.certificate is not None and files.key is not None:
            context.load_cert_chain(files.certificate, files.key, password=_no_password)
        context.load_verify_locations(files.ca)
        return context


def _signature(files: TlsFiles) -> _Signature:
    def of(path: Path) -> tuple[int, int, int, int] | None:
        try:
            status = path.stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns

    return tuple(map(of, files.paths()))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"tls: cannot read {path}: {error.strerror or error}") from None


def _context(protocol: ssl._SSLMethod) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Like gRPC: the trusted CA may be an intermediate one.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def _no_password() -> str:
    raise ConfigError(
        "tls.key: the key is encrypted; use a key without a password, readable by the node only"
    )


def _test_handshake(files: TlsFiles, use: Use) -> float:
    """Test a handshake with the certificate. Returns its expiry; ConfigError if the handshake would fail."""
    assert files.certificate is not None and files.key is not None
    server, client = _context(ssl.PROTOCOL_TLS_SERVER), _context(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    try:
        for context in (server, client):
            context.load_cert_chain(files.certificate, files.key, password=_no_password)
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(
            f"tls: {files.certificate} and {files.key} are not a matching pair of certificate and key: "
            f"{_reason(error)}"
        ) from None
    # The certificate of a client may be of a CA that only the servers know. The test then uses the
    # certificate itself as trust anchor, and still checks its validity period.
    trusted = files.certificate if use == "client" else files.ca
    server.load_verify_locations(trusted)
    client.load_verify_locations(trusted)
    server.verify_mode = ssl.CERT_NONE if use == "server" else ssl.CERT_REQUIRED
    client.verify_mode = ssl.CERT_NONE if use == "client" else ssl.CERT_REQUIRED
    try:
        client_end, server_end = _shake_hands(client, server)
    except ssl.SSLCertVerificationError as error:
        by = "" if use == "client" else f" with the CA of {files.ca}"
        raise ConfigError(
            f"tls.certificate: {files.certificate} is refused{by}: {error.verify_message}"
        ) from None
    except ssl.SSLError as error:
        raise ConfigError(f"tls.certificate: {files.certificate}: {_reason(error)}") from None
    peer_certificate = (server_end if use == "client" else client_end).getpeercert()
    assert peer_certificate, "it was verified"
    return ssl.cert_time_to_seconds(str(peer_certificate["notAfter"]))


def _shake_hands(client: ssl.SSLContext, server: ssl.SSLContext) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Perform a handshake in memory. Returns both ends."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(to_client, to_server),
        server.wrap_bio(to_server, to_client, server_side=True),
    )

    def has_finished(end: ssl.SSLObject) -> bool:
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    for _ in range(_MAX_ROUNDS):
        finished = [has_finished(end) for end in ends]  # both make progress in every round
        if all(finished):
            return ends
    raise ssl.SSLError("the TLS handshake ended without a result")


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason.replace("_", " ").lower() if error.reason else "cannot be read as PEM"
    return str(error)


def _validity(material: Material) -> str:
    assert material.not_after is not None or material.certificate is None
    if material.not_after is None:
        return "no certificate of its own"
    ends = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(material.not_after))
    return f"{'expired since' if material.not_after < time.time() else 'valid until'} {ends}"
