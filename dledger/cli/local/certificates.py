"""A certificate authority for local clusters and tests. Its keys have no passwords.

Not for production: the key of the CA is not stored, so it cannot issue or revoke certificates later. Needs
the package `cryptography`, which nodes and clients do not need.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from dledger.errors import ConfigError

try:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError:
    raise ConfigError(
        "creating certificates requires the package cryptography: pip install 'dledger[tls-tools]'"
    ) from None

#: Validity starts early, so that a node whose clock is slightly behind accepts the certificate.
_BEFORE = timedelta(minutes=5)
_LOCAL = ("localhost", "127.0.0.1", "::1")

#: Python 3.13 rejects a CA without it, and certificates without the identifier of their CA's key (RFC 5280).
_CA_KEY_USAGE = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)

CA_FILE = "ca.pem"


class Authority:
    """A CA that exists only as long as this object. `issue` writes NAME.pem and NAME.key."""

    def __init__(self, name: str = "dledger local CA", *, lifetime: timedelta = timedelta(days=365)) -> None:
        self._lifetime = lifetime
        self._key = generate_private_key(SECP256R1())
        self._name = _named(name)
        now = datetime.now(UTC)
        self._certificate = (
            x509.CertificateBuilder()
            .subject_name(self._name)
            .issuer_name(self._name)
            .public_key(self._key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _BEFORE)
            .not_valid_after(now + lifetime)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .add_extension(_CA_KEY_USAGE, critical=True)
            .sign(self._key, SHA256())
        )

    @property
    def pem(self) -> bytes:
        return self._certificate.public_bytes(Encoding.PEM)

    def save(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / CA_FILE
        path.write_bytes(self.pem)
        return path

    def issue(
        self,
        folder: Path,
        name: str,
        *,
        hosts: Sequence[str] = (),
        not_after: datetime | None = None,
        not_before: datetime | None = None,
    ) -> tuple[Path, Path]:
        """Issue a certificate and key for `name`, usable at both ends of a connection. `hosts`: the names and
        addresses in the certificate."""
        key = generate_private_key(SECP256R1())
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(_named(name))
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(not_before or now - _BEFORE)
            .not_valid_after(not_after or now + self._lifetime)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
                critical=False,
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
        )
        if hosts:
            names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
        certificate = builder.sign(self._key, SHA256())
        folder.mkdir(parents=True, exist_ok=True)
        paths = folder / f"{name}.pem", folder / f"{name}.key"
        _write_secret(paths[1], key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        paths[0].write_bytes(certificate.public_bytes(Encoding.PEM))
        return paths


def make_local(folder: Path, node_ids: Sequence[str]) -> None:
    """Create ca.pem, a certificate per node of a local cluster, and `client` for its users."""
    authority = Authority()
    authority.save(folder)
    for node_id in node_ids:
        authority.issue(folder, node_id, hosts=(node_id, *_LOCAL))
    authority.issue(folder, "client")


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write_secret(path: Path, content: bytes) -> None:
    # Never readable by others, not even for a moment; replaced atomically, as a rotation requires.
    partial = path.with_suffix(".new")
    partial.unlink(missing_ok=True)
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
    partial.replace(path)
