"""TLS from PEM files: read, checked, and read again when they change.

A certificate is tried before it is used, in a handshake with itself in memory: so a key that does not fit, an
expired certificate or one of another CA is refused with words when it is loaded, and not by strangers later.
"""

from __future__ import annotations

import logging
import ssl
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import grpc

from dledger.errors import ConfigError
from dledger.rpc.transport.channels import ChannelSecurity
from dledger.rpc.transport.secret_files import check_secret_file

_log = logging.getLogger(__name__)

#: Files are looked at, and bad ones tried again, at most this often (seconds).
LOOK_EVERY_S = 1.0
_WARN_BEFORE_S = 7 * 86_400.0
_WARN_EVERY_S = 86_400.0

#: Of each file: device, inode, size and modification time; None: not there.
_Signature: TypeAlias = tuple[tuple[int, int, int, int] | None, ...]

#: The ends of a connection for which a certificate must be good: a node with mutual TLS is both.
Use: TypeAlias = Literal["both", "server", "client"]

#: Of a handshake; TLS 1.2 needs three.
_MOST_ROUNDS = 8


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files. `ca` says whom to trust; `certificate` (with its chain) and `key` say who one is."""

    ca: Path | str
    certificate: Path | str | None = None
    key: Path | str | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise ConfigError("tls: a certificate needs its key, and a key its certificate")

    def paths(self) -> tuple[Path, ...]:
        return tuple(Path(p) for p in (self.ca, self.certificate, self.key) if p is not None)


@dataclass(frozen=True, slots=True)
class Material:
    """What was in the files, once. `not_after`: unix seconds; None without a certificate."""

    ca: bytes
    certificate: bytes | None
    key: bytes | None
    not_after: float | None


class TlsKeeper:
    """The newest good content of the files; what cannot be used is reported and never replaces what can.

    ConfigError if the files are not good when it is made. Any thread may call.
    """

    def __init__(self, files: TlsFiles, use: Use) -> None:
        self.files = files
        #: Grows with every change that was taken over.
        self.generation = 1
        self._use = use
        self._lock = threading.Lock()
        self._signature = _signature(files)
        self._material = load(files, use)
        self._next_look = 0.0
        self._next_warning = 0.0
        self._complaint: tuple[str, _Signature] | None = None

    @property
    def material(self) -> Material:
        return self._material

    def refresh(self) -> bool:
        """Take over changed files. True if there was something good to take."""
        with self._lock:
            self._warn_of_expiry()
            now = time.monotonic()
            if now < self._next_look:
                return False
            self._next_look = now + LOOK_EVERY_S
            before = _signature(self.files)
            if before == self._signature:
                self._complaint = None
                return False
            try:
                material = load(self.files, self._use)
            except ConfigError as error:
                self._complain(error.message, before)
                return False
            if _signature(self.files) != before:
                return False  # being written at this moment: the next look sees it whole
            self._signature, self._material, self._complaint = before, material, None
            self._next_warning = 0.0
            self.generation += 1
        _log.warning("TLS files reloaded: %s, %s", self.files.certificate, _validity(material))
        return True

    def _complain(self, reason: str, signature: _Signature) -> None:
        if self._complaint != (reason, signature):  # once, not with every look
            self._complaint = reason, signature
            _log.error("the new TLS files are NOT used, the old certificate stays: %s", reason)

    def _warn_of_expiry(self) -> None:
        not_after = self._material.not_after
        if not_after is None or time.monotonic() < self._next_warning:
            return
        left = not_after - time.time()
        if left < _WARN_BEFORE_S:
            self._next_warning = time.monotonic() + (_WARN_EVERY_S if left > 0 else 60.0)
            _log.error("the TLS certificate in use is %s", _validity(self._material))


def load(files: TlsFiles, use: Use) -> Material:
    """Read and try the files. ConfigError says which is wrong, and how."""
    ca, *own = [_read(path) for path in files.paths()]
    try:
        _context(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(files.ca)
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(f"tls.ca: {files.ca} holds no certificates in PEM: {_reason(error)}") from None
    if not own:
        return Material(ca, None, None, None)
    if files.key is not None:
        check_secret_file(Path(files.key))
    not_after = _rehearse(files, use)
    return Material(ca, own[0], own[1], not_after)


def channel_security(material: Material, *, server_name: str = "") -> ChannelSecurity:
    """For channels. `server_name`: the name to find in the server's certificate; "": the address's host."""
    credentials = grpc.ssl_channel_credentials(material.ca, material.key, material.certificate)
    return ChannelSecurity(credentials, server_name, has_certificate=material.certificate is not None)


def server_credentials(keeper: TlsKeeper, *, client_auth: bool) -> grpc.ServerCredentials:
    """For a gRPC server: every handshake uses the newest good files."""
    given = keeper.generation

    def configuration() -> Any:
        found = keeper.material
        assert found.key is not None and found.certificate is not None
        # Without client_auth gRPC wants no CA; clients are not asked for a certificate then.
        return grpc.ssl_server_certificate_configuration(
            [(found.key, found.certificate)], root_certificates=found.ca if client_auth else None
        )

    def fetch() -> Any:
        """On gRPC's thread, for every handshake. None: nothing has changed."""
        nonlocal given
        keeper.refresh()
        if keeper.generation == given:
            return None
        given = keeper.generation
        return configuration()

    return grpc.dynamic_ssl_server_credentials(
        configuration(), fetch, require_client_authentication=client_auth
    )


def http_context(keeper: TlsKeeper, *, client_auth: bool) -> ssl.SSLContext:
    """For an HTTP server. Hand it to `renew_context` after a refresh."""
    context = stream_context(keeper, client_auth=client_auth)
    context.set_alpn_protocols(["http/1.1"])
    return context


def stream_context(keeper: TlsKeeper, *, client_auth: bool) -> ssl.SSLContext:
    """For a server of a protocol without ALPN. Hand it to `renew_context` after a refresh."""
    context = _context(ssl.PROTOCOL_TLS_SERVER)
    if client_auth:
        context.verify_mode = ssl.CERT_REQUIRED
    renew_context(context, keeper.files)
    return context


def renew_context(context: ssl.SSLContext, files: TlsFiles) -> None:
    """New connections use the files of now. A CA once trusted stays so: OpenSSL cannot take one back."""
    assert files.certificate is not None and files.key is not None
    context.load_cert_chain(files.certificate, files.key, password=_no_password)
    context.load_verify_locations(files.ca)


class ServerTls:
    """TLS of a server with a gRPC port, and perhaps others. ConfigError if the files are no good."""

    def __init__(self, files: TlsFiles, *, client_auth: bool) -> None:
        """`client_auth`: all but the HTTP port want a certificate of the CA from whoever connects."""
        if files.certificate is None:
            raise ConfigError("tls: a server needs a certificate and its key")
        self._client_auth = client_auth
        self._keeper = TlsKeeper(files, "server")
        self._generation = self._keeper.generation
        self._contexts: dict[str, ssl.SSLContext] = {}  # by the port's protocol

    def credentials(self) -> grpc.ServerCredentials:
        return server_credentials(self._keeper, client_auth=self._client_auth)

    def http_context(self) -> ssl.SSLContext:
        """Of the HTTP port, which asks nobody for a certificate. The same one each time."""
        if "HTTP" not in self._contexts:
            self._contexts["HTTP"] = http_context(self._keeper, client_auth=False)
        return self._contexts["HTTP"]

    def remoting_context(self, *, asks: bool = False) -> ssl.SSLContext:
        """Of the port of RocketMQ's remoting protocol. The same one each time. `asks`: clients may show a
        certificate, which is checked then."""
        if "remoting" not in self._contexts:
            context = stream_context(self._keeper, client_auth=self._client_auth)
            if asks and not self._client_auth:
                context.verify_mode = ssl.CERT_OPTIONAL
            self._contexts["remoting"] = context
        return self._contexts["remoting"]

    def look(self) -> None:
        """Take over changed files. Call it now and then, from one thread; it reads files."""
        self._keeper.refresh()
        if not self._contexts or self._keeper.generation == self._generation:
            return
        self._generation = self._keeper.generation
        for protocol, context in self._contexts.items():
            try:
                renew_context(context, self._keeper.files)
            except (OSError, ssl.SSLError, ConfigError) as error:
                # Changed once more since they were read; the next look takes that over.
                _log.error("the %s port keeps its old certificate: %s", protocol, error)


class ClientTls:
    """TLS of a client: the same ChannelSecurity until the files change."""

    def __init__(self, files: TlsFiles) -> None:
        self._keeper = TlsKeeper(files, "client")
        self._security = channel_security(self._keeper.material)

    def __call__(self) -> ChannelSecurity:
        if self._keeper.refresh():
            self._security = channel_security(self._keeper.material)
        return self._security

    def stream_context(self) -> ssl.SSLContext:
        """For a client of a protocol other than gRPC, of the files of now: make one for each connection."""
        context = _context(ssl.PROTOCOL_TLS_CLIENT)
        files = self._keeper.files
        if files.certificate is not None and files.key is not None:
            context.load_cert_chain(files.certificate, files.key, password=_no_password)
        context.load_verify_locations(files.ca)
        return context


def _signature(files: TlsFiles) -> _Signature:
    def of(path: Path) -> tuple[int, int, int, int] | None:
        try:
            found = path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns

    return tuple(map(of, files.paths()))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"tls: cannot read {path}: {error.strerror or error}") from None


def _context(protocol: ssl._SSLMethod) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # As gRPC does: an intermediate CA may be all that is trusted.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def _no_password() -> str:
    raise ConfigError("tls.key: the key is encrypted; give one without a password, readable by the node only")


def _rehearse(files: TlsFiles, use: Use) -> float:
    """When the certificate ends. ConfigError if a handshake with it would fail."""
    assert files.certificate is not None and files.key is not None
    server, client = _context(ssl.PROTOCOL_TLS_SERVER), _context(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    try:
        for context in (server, client):
            context.load_cert_chain(files.certificate, files.key, password=_no_password)
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(
            f"tls: {files.certificate} and {files.key} are no certificate and its key: {_reason(error)}"
        ) from None
    # A client's certificate may be of a CA that only the servers know: then it vouches for itself here, and
    # its dates are looked at all the same.
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
    seen = (server_end if use == "client" else client_end).getpeercert()
    assert seen, "it was verified"
    return ssl.cert_time_to_seconds(str(seen["notAfter"]))


def _shake_hands(client: ssl.SSLContext, server: ssl.SSLContext) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """A handshake without a network; both ends of it."""
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

    for _ in range(_MOST_ROUNDS):
        finished = [has_finished(end) for end in ends]  # both take a step in every round
        if all(finished):
            return ends
    raise ssl.SSLError("the handshake did not end")


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
