"""What AWS does with a presigned URL: computes its signature again. Written without botocore, from its description."""

from __future__ import annotations

import hashlib
import hmac
from urllib.parse import parse_qsl, quote, urlsplit


def signature(url: str, secret: str, *, body_hash: str = hashlib.sha256(b"").hexdigest()) -> str:
    """Returns the signature of a presigned GET request. Parameters behind the signature are not part of it."""
    parts = urlsplit(url)
    signed = parts.query.partition("&X-Amz-Signature=")[0]
    parameters = sorted(parse_qsl(signed, keep_blank_values=True))
    given = dict(parameters)
    query = "&".join(f"{quote(name, safe='-_.~')}={quote(value, safe='-_.~')}" for name, value in parameters)
    _, day, region, service, terminator = given["X-Amz-Credential"].split("/")
    request = "\n".join(["GET", parts.path or "/", query, f"host:{parts.netloc}", "", "host", body_hash])
    scope = f"{day}/{region}/{service}/{terminator}"
    digest = hashlib.sha256(request.encode()).hexdigest()
    key = f"AWS4{secret}".encode()
    for part in (day, region, service, terminator):
        key = hmac.digest(key, part.encode(), "sha256")
    text = "\n".join(["AWS4-HMAC-SHA256", given["X-Amz-Date"], scope, digest])
    return hmac.digest(key, text.encode(), "sha256").hex()


def parameters(url: str) -> dict[str, str]:
    return dict(parse_qsl(urlsplit(url).query, keep_blank_values=True))
