"""An authority of our own, and certificates that it has signed, made by openssl."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from missing_peer import skip_or_fail


class Certificate(NamedTuple):
    """Files in PEM."""

    certificate: Path
    key: Path


def need_openssl() -> None:
    if shutil.which("openssl") is None:
        reason = "no openssl on this machine: apt-get install openssl"
        skip_or_fail(reason)


def authority(folder: Path, name: str = "authority") -> Certificate:
    made = Certificate(folder / f"{name}.pem", folder / f"{name}.key")
    _openssl(
        *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
        *("-days", "2", "-subj", f"/CN={name}"),
        *("-addext", "keyUsage=critical,keyCertSign"),
        *("-keyout", str(made.key), "-out", str(made.certificate)),
    )
    return made


def signed(folder: Path, by: Certificate, host: str = "IP:127.0.0.1") -> Certificate:
    """A certificate for a host, as in `IP:127.0.0.1` or `DNS:tidegate.example`."""
    name = host.replace(":", "-")
    made = Certificate(folder / f"{name}.pem", folder / f"{name}.key")
    request = folder / f"{name}.csr"
    extensions = folder / f"{name}.ext"
    extensions.write_text(f"subjectAltName={host}\nextendedKeyUsage=serverAuth\n")
    _openssl(
        *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
        *("-subj", "/CN=node", "-keyout", str(made.key), "-out", str(request)),
    )
    _openssl(
        *("x509", "-req", "-in", str(request), "-days", "2", "-extfile", str(extensions)),
        *("-CA", str(by.certificate), "-CAkey", str(by.key), "-CAcreateserial"),
        *("-out", str(made.certificate)),
    )
    return made


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=30)
