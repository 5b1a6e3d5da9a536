"""AWS's Signature Version 4, for requests with a body and without a query.

Written from "Signing AWS API requests" (docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html):
canonical request → string to sign → a key derived from secret, day, region and service → signature.
"""

import hashlib
import hmac
import time
from typing import Final
from urllib.parse import quote

from msgspec import Struct

_ALGORITHM: Final = "AWS4-HMAC-SHA256"


class Credentials(Struct, frozen=True):
    """Who signs."""

    access_key: str
    secret_key: str
    session_token: str = ""


def signed_headers(
    credentials: Credentials,
    *,
    region: str,
    service: str,
    host: str,
    path: str,
    body: bytes,
    content_type: str,
    now: float,
) -> dict[str, str]:
    """Headers to send beside `host`, which must be sent as it is here. `path` is encoded as it is sent; `now` is Unix time."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    day = stamp[:8]
    headers = {"content-type": content_type, "host": host, "x-amz-date": stamp}
    if credentials.session_token:
        headers["x-amz-security-token"] = credentials.session_token
    names = ";".join(sorted(headers))
    canonical = "\n".join((
        "POST",
        # Every service but S3 encodes the path that is sent once more.
        quote(path, safe="/-_.~"),
        "",
        *(f"{name}:{headers[name]}" for name in sorted(headers)),
        "",
        names,
        hashlib.sha256(body).hexdigest(),
    ))  # fmt: skip
    scope = f"{day}/{region}/{service}/aws4_request"
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    text = "\n".join((_ALGORITHM, stamp, scope, digest))
    key = f"AWS4{credentials.secret_key}".encode()
    for part in (day, region, service, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    del headers["host"]
    headers["authorization"] = (
        f"{_ALGORITHM} Credential={credentials.access_key}/{scope}, "
        f"SignedHeaders={names}, Signature={signature}"
    )
    return headers
