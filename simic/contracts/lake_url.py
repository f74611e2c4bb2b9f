"""The address of a lake. It appears in the ledger and in messages, so it must not hold a secret."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from simic.contracts.errors import ConfigError

__all__ = ["LakeUrl", "parse_url"]

_OPTIONS = ("endpoint_override", "scheme", "region")
_SCHEMES = ("http", "https")
_EXPECTED = f"expected s3://bucket/prefix, with {', '.join(_OPTIONS)} as options"
_LONGEST = 2048
_LONGEST_SCHEME = 12


class LakeUrl(NamedTuple):
    """The parts of ``s3://bucket/prefix?endpoint_override=HOST:PORT&scheme=http&region=NAME``."""

    base: str
    """``bucket/prefix``: identifies the lake, independent of the endpoint."""
    options: dict[str, str]


def parse_url(url: str) -> LakeUrl:
    """Parse an S3 address without credentials; raise ConfigError for anything else.

    The message never repeats the address, because it may hold a secret.
    """
    if "@" in unquote(url):
        raise ConfigError(
            "the address of a lake must not hold credentials, nor an @; set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY in the environment"
        )
    if len(url) > _LONGEST:
        raise ConfigError(f"{_EXPECTED}, of at most {_LONGEST} characters; found {len(url)} characters")
    try:
        parts = urlsplit(url)
    except ValueError:
        raise ConfigError(f"{_EXPECTED}; found something that is not an address") from None
    if parts.scheme != "s3":
        found = f"the scheme {parts.scheme[:_LONGEST_SCHEME]!r}" if parts.netloc else "another kind of address"
        raise ConfigError(f"{_EXPECTED}; found {found}")
    if not parts.netloc:
        raise ConfigError(f"{_EXPECTED}; found no bucket")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if unknown := options.keys() - set(_OPTIONS):
        raise ConfigError(f"{_EXPECTED}; found {len(unknown)} other options")
    if options.get("scheme", _SCHEMES[0]) not in _SCHEMES:
        raise ConfigError(f"{_EXPECTED}; scheme must be {' or '.join(_SCHEMES)}, found another")
    return LakeUrl(f"{parts.netloc}{parts.path}".strip("/"), options)
