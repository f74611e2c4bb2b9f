"""A connection to Redis: from the environment's address, with bounded retries and errors that say what to do.

A conversation is all that one verb asks. It has one deadline, which is not for its length: a server that answers is
never cut off, however slowly the bytes of its answers come. Counted is the time without an answer, from the last one
on: connecting, TLS, finding the address of a name, waiting for a reply, and the pauses before calling again. What the
verb does in between is not counted. Once the deadline is used up the conversation is over, and every further call of it
fails at once.

No error, log line or ``repr`` made here holds the user's password: messages name host, port and database only.
"""

from __future__ import annotations

import logging
import math
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar
from urllib.parse import parse_qs, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from simic.contracts.errors import ConfigError, SimicError, TransientError

__all__ = ["RedisServer"]

_LOG = logging.getLogger(__name__)
T = TypeVar("T")

_SCHEMES = ("redis", "rediss")
_OPTIONS = frozenset({
    "db", "client_name", "socket_timeout", "socket_connect_timeout", "ssl_ca_certs", "ssl_ca_path", "ssl_certfile",
    "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname", "ssl_min_version",
})  # fmt: skip
"""Options allowed in the address; others would change how replies are read."""
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 2.0
_CONNECT_TIMEOUT_S = 5.0
_DEADLINE_S = 10.0
_MESSAGE_LIMIT = 200
_PASSING = ("BUSY ", "MISCONF", "CLUSTERDOWN", "TRYAGAIN", "NOREPLICAS", "NOGROUP")
_PASSING_TYPES = (
    redis.exceptions.OutOfMemoryError,
    redis.exceptions.ReadOnlyError,
    redis.exceptions.MasterDownError,
    redis.exceptions.ClusterDownError,
    redis.exceptions.TryAgainError,
)
"""Errors of a server that will recover, or whose streams were deleted and will be created again."""
_REFUSING = ("NOAUTH", "WRONGPASS", "NOPERM")
_RANDOM = random.SystemRandom()
"""Not Python's global generator: its numbers are those of the program that reports."""


class RedisServer:
    """A connection to one server; every call is retried, with growing random pauses, while it does not answer."""

    def __init__(
        self,
        url: str,
        attempts: int,
        deadline_s: float = _DEADLINE_S,
        *,
        pause: Callable[[float], None] = time.sleep,
        draw: Callable[[float, float], float] = _RANDOM.uniform,
    ) -> None:
        self._client = _client(url)
        self._attempts, self._pause, self._draw = attempts, pause, draw
        where = self._client.connection_pool.connection_kwargs
        self._user = where.get("username") or "default"
        self._host = where.get("host", "localhost")
        self._timeouts = {name: where[name] or math.inf for name in ("socket_timeout", "socket_connect_timeout")}
        self.address = f"{self._host}:{where.get('port', 6379)}/{where.get('db', 0) or 0}"
        self.deadline_s = deadline_s
        self._silent_s = 0.0
        """Seconds waited since the last answer."""
        self._is_connected = False
        self.interruptions = 0
        """Number of interrupted calls; their effect on the server is unknown."""

    def __repr__(self) -> str:
        return f"RedisServer({self.address})"

    def call(self, what: str, ask: Callable[[redis.Redis], T], attempts: int | None = None) -> T:
        """``ask(client)``, repeated while the server is away, so it must be safe to repeat.

        Raises TransientError when it stays away or the conversation's deadline is used up, ConfigError when it refuses.
        ``what`` completes "cannot ...".
        """
        last = attempts or self._attempts
        for attempt in range(1, last + 1):
            if self._silent_s >= self.deadline_s:
                raise self._silent(what)
            began = time.monotonic()
            try:
                with self._translated(what):
                    self._connect_within(self.deadline_s - self._silent_s)
                    answer = ask(self._client)
            except (redis.ConnectionError, redis.TimeoutError) as error:
                self.interruptions += 1
                self._is_connected = False
                self._silent_s += time.monotonic() - began
                if self._silent_s >= self.deadline_s:
                    raise self._silent(what) from error
                if attempt == last:
                    raise TransientError(
                        f"cannot {what}: Redis at {self.address} is away after {attempt} attempts ({_short(error)}); "
                        "start it or correct REDIS_URL, and try again"
                    ) from error
                _LOG.info("Redis at %s broke off (%s), attempt %d of %d", self.address, _short(error), attempt, last)
                limit = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** (attempt - 1))
                pause_s = min(self._draw(0.0, limit), self.deadline_s - self._silent_s)
                self._pause(pause_s)
                self._silent_s += pause_s
            else:
                self._is_connected = self._silent_s == 0.0  # else its timeouts are what was left then
                self._silent_s = 0.0
                return answer
        raise AssertionError("unreachable")

    def renew(self) -> None:
        """Begin another conversation, whose deadline is not used up."""
        self._silent_s, self._is_connected = 0.0, False

    def _connect_within(self, left_s: float) -> None:
        """Limit how long any step of the next call may be silent: name lookup, connecting, TLS or the reply.

        A server that keeps sending a few bytes of one reply is not silent and can hold the caller for longer.
        """
        if self._is_connected:
            return
        pool = self._client.connection_pool
        pool.disconnect()
        pool.reset()  # those that it made before keep the timeouts that they were made with
        # The C library's own search for a name has no timeout that one could set.
        addresses: list[object] = []
        search = threading.Thread(target=_look_up, args=(self._host, addresses), name="redis-name", daemon=True)
        search.start()
        search.join(left_s)
        if search.is_alive():
            raise redis.TimeoutError(f"no address was found for the name {self._host}")
        pool.connection_kwargs.update({name: min(most, left_s) for name, most in self._timeouts.items()})
        connect_s = left_s / max(1, len(addresses))  # redis-py calls each address of the name in turn
        pool.connection_kwargs["socket_connect_timeout"] = min(self._timeouts["socket_connect_timeout"], connect_s)

    def _silent(self, what: str) -> TransientError:
        return TransientError(
            f"cannot {what}: Redis at {self.address} does not answer: gave up after {self.deadline_s:g} s "
            "(bus.deadline_s); see whether it hangs or REDIS_URL is wrong, and try again"
        )

    def send(self, what: str, packed: bytes, commands: int = 1) -> list[Any]:
        """Send packed commands at once and return the server's raw answers; raises as ``call`` does."""
        return self.call(what, lambda client: _exchange(client, packed, commands))

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    @contextmanager
    def _translated(self, what: str) -> Iterator[None]:
        """Convert errors that a retry cannot fix; those of an absent server pass."""
        try:
            yield
        except (redis.AuthenticationError, redis.exceptions.AuthorizationError, redis.exceptions.NoPermissionError):
            raise self._refused(what) from None
        except redis.InvalidResponse as error:
            raise self._foreign(what, error) from error
        except redis.BusyLoadingError:
            raise
        except redis.ConnectionError as error:
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                raise ConfigError(
                    f"cannot {what}: the certificate of Redis at {self.address} is not trusted; name its CA in "
                    "REDIS_URL as ?ssl_ca_certs=/path/ca.pem"
                ) from error
            raise
        except redis.ResponseError as error:
            text = _short(error)
            if text.startswith(_REFUSING):
                raise self._refused(what) from None
            if text.startswith(_PASSING) or isinstance(error, _PASSING_TYPES):
                raise TransientError(
                    f"cannot {what}: Redis at {self.address} answers {text!r}; correct that and try again"
                ) from error
            raise ConfigError(
                f"cannot {what}: Redis at {self.address} answers {text!r}; Redis 7 or later is needed, and its keys "
                "that are called as our topics must be streams"
            ) from error

    def _foreign(self, what: str, error: Exception) -> SimicError:
        return ConfigError(
            f"cannot {what}: what answers at {self.address} is no Redis ({_short(error)}); correct REDIS_URL"
        )

    def _refused(self, what: str) -> SimicError:
        return ConfigError(
            f"cannot {what}: Redis at {self.address} refuses user {self._user!r}; check the user, the password and "
            "the user's ACL (docs/adr/0013-redis-streams.md lists the commands)"
        )


def _client(url: str) -> redis.Redis:
    """A client that leaves retrying to its owner; ConfigError, which does not repeat the address, if it is none."""
    try:
        parts = urlsplit(url)
        unknown = sorted(set(parse_qs(parts.query)) - _OPTIONS)
        is_address = parts.scheme in _SCHEMES and bool(parts.hostname) and parts.port != 0
    except ValueError:
        unknown, is_address = [], False
    if not is_address:
        raise ConfigError(
            "REDIS_URL must look like redis://[user:password@]host[:port][/database], or rediss:// for TLS"
        )
    if unknown:
        raise ConfigError(f"REDIS_URL: unknown options {unknown}; known options: {', '.join(sorted(_OPTIONS))}")
    try:
        client = redis.Redis.from_url(
            url,
            protocol=2,
            retry=Retry(NoBackoff(), 0),
            socket_connect_timeout=_CONNECT_TIMEOUT_S,
            socket_timeout=_DEADLINE_S,
            socket_keepalive=True,
        )
        client.connection_pool.make_connection()  # not connected: it only looks at the options
    except (ValueError, TypeError, OSError, redis.RedisError) as error:
        raise ConfigError(f"REDIS_URL: an option cannot be used ({type(error).__name__})") from None
    return client


def _look_up(host: str, addresses: list[object]) -> None:
    with suppress(OSError, UnicodeError):  # connecting says what is wrong with it
        addresses += socket.getaddrinfo(host, None, 0, socket.SOCK_STREAM)


def _exchange(client: redis.Redis, packed: bytes, commands: int) -> list[Any]:
    pool = client.connection_pool
    connection = pool.get_connection()
    try:
        connection.send_packed_command([packed])  # type: ignore[no-untyped-call]
        answers: list[Any] = []
        for _ in range(commands):
            try:
                answers.append(connection.read_response())
            except redis.ResponseError as error:  # the others' answers have to be read all the same
                answers.append(error)
    except BaseException:
        connection.disconnect()  # type: ignore[no-untyped-call] # answers still on their way must not be taken for those of the next call
        raise
    finally:
        pool.release(connection)
    for answer in answers:
        if isinstance(answer, redis.ResponseError):
            raise answer
    return answers


def _short(error: Exception) -> str:
    return str(error)[:_MESSAGE_LIMIT]
