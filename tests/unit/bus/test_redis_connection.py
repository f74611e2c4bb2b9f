"""Reaching Redis: addresses, passwords that stay secret, patience with an end to it, TLS."""

from __future__ import annotations

import logging
import pickle
import random
import socket
import threading
import traceback
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from support.servers.redis_buses import TOPIC, drain, stream_bus
from support.servers.redis_server import RedisProcess

from simic.bus.codec import MAX_PAYLOAD_BYTES
from simic.bus.factory import BusSpec, open_bus
from simic.bus.plugins import redis as plugin
from simic.bus.redis.connection import RedisServer
from simic.bus.redis.fallback import SpoolFallbackBus
from simic.bus.spool.bus import SpoolBus
from simic.contracts.errors import ConfigError, SimicError, TransientError
from simic.contracts.settings.run import BusConfig, IngestConfig

SECRET = "s3cr3t-p4ss"  # noqa: S105 - what must not be seen
NOBODY = "redis://127.0.0.1:1"


def test_an_absent_server_is_called_again_with_growing_pauses_and_then_no_more() -> None:
    pauses: list[float] = []
    limits: list[float] = []

    def draw(low: float, high: float) -> float:
        limits.append(high)
        return low + (high - low) / 2

    server = RedisServer(NOBODY, 9, pause=pauses.append, draw=draw)
    with pytest.raises(TransientError, match=r"127\.0\.0\.1:1/0 is away after 9 attempts .* try again"):
        server.call("look", lambda client: client.ping())
    assert limits == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
    assert pauses == [limit / 2 for limit in limits]


def test_the_pauses_draw_no_number_of_the_program_that_reports() -> None:
    before = random.getstate()
    with pytest.raises(TransientError):
        RedisServer(NOBODY, 3, pause=lambda _: None).call("look", lambda client: client.ping())
    assert random.getstate() == before


def test_a_server_that_comes_back_is_found(tmp_path: Path) -> None:
    with RedisProcess(tmp_path) as process:
        process.kill()
        server = RedisServer(process.url, 4, pause=lambda _: process.start() if server.interruptions == 2 else None)
        assert server.call("look", lambda client: client.ping()) is True
        assert server.interruptions == 2


@pytest.mark.parametrize(
    "url",
    [
        "", "localhost:6379", f"http://:{SECRET}@host", f"redis://:{SECRET}@", f"unix://{SECRET}",
        f"redis://:{SECRET}@host:port", f"redis://:{SECRET}@host:0/0", f"redis://:{SECRET}@[::1/0",
        f"redis://:{SECRET}@host?decode_responses=true", f"redis://:{SECRET}@host?db=x",
        f"rediss://:{SECRET}@host?ssl_cert_reqs=sometimes",
    ],
)  # fmt: skip
def test_addresses_that_are_none_are_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(ConfigError, match="REDIS_URL") as caught:
        RedisServer(url, 1)
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_pd5_passwords_are_in_no_error_no_log_and_no_repr(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An ACL user works, others are refused with what to do; whatever happens, nobody reads the password."""
    acl = ("--user", "simic", "on", f">{SECRET}", "~*", "+@all", "--user", "default", "off")
    with RedisProcess(tmp_path / "redis", *acl, login=f"simic:{SECRET}@") as process, caplog.at_level(logging.DEBUG):
        spec, environment = BusSpec(tmp_path / "spool", BusConfig(connect_attempts=1), True), {"REDIS_URL": process.url}
        bus = open_bus(spec, environment)
        assert isinstance(bus, SpoolFallbackBus)
        bus.put(TOPIC, "a", [b"1"])
        assert list(drain(bus)) == [b"1"]
        assert SECRET not in repr(spec) + repr(bus.stream._server) + str(bus.status(TOPIC)) + repr(pickle.dumps(spec))
        texts = []
        for wrong in (f"simic:{SECRET}x@", f"ghost:{SECRET}@", ""):
            url = process.url.replace(f"simic:{SECRET}@", wrong)
            with pytest.raises(ConfigError, match=r"refuses user .* ACL") as caught:
                list(stream_bus(url).claim(TOPIC))
            texts.append("".join(traceback.format_exception(caught.value)))
        process.kill()
        with pytest.raises(TransientError, match="is away") as away:
            list(bus.claim(TOPIC))
        bus.put(TOPIC, "b", [b"2"])
    assert SECRET not in "".join([*texts, *traceback.format_exception(away.value), caplog.text])


def test_a_user_who_may_not_is_told_so(tmp_path: Path) -> None:
    acl = ("--user", "reader", "on", f">{SECRET}", "~*", "+@read", "+@connection")
    with (
        RedisProcess(tmp_path, *acl, login=f"reader:{SECRET}@") as process,
        pytest.raises(ConfigError, match="refuses user 'reader'"),
    ):
        stream_bus(process).put(TOPIC, "a", [b"1"])


ACL_OF_ADR = (
    "+ping +auth +hello +select +client|setname +multi +exec +exists +time +eval +xadd +xreadgroup +xread +xack "
    "+xclaim +xautoclaim +xpending +xgroup|create +xgroup|setid +xgroup|delconsumer +xinfo|stream +xinfo|groups "
    "+xinfo|consumers +xlen +xrange +xrevrange +xtrim +xdel"
)


def test_the_commands_that_the_adr_lists_are_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simic.bus.redis.bus.CONSUMER_REST_S", 0)
    adr = (Path(__file__).parents[3] / "docs/adr/0013-redis-streams.md").read_text()
    assert all(f"`{right}`" in adr for right in ACL_OF_ADR.split())
    acl = ("--user", "least", "on", f">{SECRET}", "~*", *ACL_OF_ADR.split(), "--user", "default", "off")
    with RedisProcess(tmp_path, *acl, login=f"least:{SECRET}@") as process:
        for name in ("dead", "heir"):
            bus = stream_bus(process, name, reclaim_idle_s=0.001, max_attempts=2)
            bus.put(TOPIC, "a", [b"1", b"2"])
            assert list(bus.claim(TOPIC)) != []
        bus = stream_bus(process, "heir", max_attempts=2)
        list(drain(bus))
        assert bus.replay(TOPIC) == 2
        assert sorted(drain(bus)) == [b"1", b"2"]
        assert bus.pending(TOPIC) == 0
        assert (bus.ping(), bus.uncounted(TOPIC)) == (f"127.0.0.1:{process.port}/0", 0)


def test_what_is_no_redis_is_told_apart_from_one_that_is_away() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                connection.recv(1000)

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(ConfigError, match="no Redis"):
            stream_bus(f"redis://127.0.0.1:{listener.getsockname()[1]}").put(TOPIC, "a", [b"1"])


# -- TLS --------------------------------------------------------------------------------------------


def certificates(folder: Path) -> tuple[Path, Path, Path]:
    """A certificate authority, a certificate for 127.0.0.1 and its key, for an hour."""
    folder.mkdir()
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
    names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]) for name in ("test authority", "test redis")]
    now = datetime.now(UTC)
    paths = []
    for is_server in (False, True):
        builder = (
            x509.CertificateBuilder()
            .subject_name(names[is_server])
            .issuer_name(names[0])
            .public_key(keys[is_server].public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(minutes=5))
            .not_valid_after(now + timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=not is_server, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(keys[is_server].public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(keys[0].public_key()), critical=False)
        )
        if is_server:
            address = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
            builder = builder.add_extension(address, critical=False)
        path = folder / f"{'server' if is_server else 'ca'}.pem"
        path.write_bytes(builder.sign(keys[0], hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        paths.append(path)
    key = folder / "server.key"
    key.write_bytes(
        keys[1].private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return paths[0], paths[1], key


def test_tls_with_an_authority_of_ones_own_and_no_trust_without_it(tmp_path: Path) -> None:
    authority, certificate, key = certificates(tmp_path / "keys")
    tls = (
        "--tls-cert-file", str(certificate), "--tls-key-file", str(key), "--tls-ca-cert-file", str(authority),
        "--tls-auth-clients", "no",
    )  # fmt: skip
    with RedisProcess(tmp_path / "redis", tls=tls) as process:
        bus = stream_bus(f"{process.url}?ssl_ca_certs={authority}")
        bus.put(TOPIC, "a", [b"1"])
        assert list(drain(bus)) == [b"1"]
        with pytest.raises(ConfigError, match=r"certificate .* not trusted; name its CA"):
            stream_bus(process.url).put(TOPIC, "a", [b"1"])


# -- which bus --------------------------------------------------------------------------------------


def test_the_environment_chooses_and_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(open_bus(BusSpec(tmp_path), {"REDIS_URL": NOBODY}), SpoolBus)
    assert isinstance(open_bus(BusSpec(tmp_path, has_url=True), {"REDIS_URL": NOBODY}), SpoolFallbackBus)
    with pytest.raises(ConfigError, match="REDIS_URL is not set"):
        open_bus(BusSpec(tmp_path, has_url=True), {})
    monkeypatch.setattr(plugin, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"pip install -e '\.\[redis\]'"):
        open_bus(BusSpec(tmp_path, has_url=True), {"REDIS_URL": NOBODY})
    assert issubclass(ConfigError, SimicError)


def test_reports_longer_than_an_entry_carries_are_not_allowed_with_redis(tmp_path: Path) -> None:
    most = BusSpec(tmp_path, has_url=True, ingest=IngestConfig(max_report_bytes=MAX_PAYLOAD_BYTES))
    more = most._replace(ingest=IngestConfig(max_report_bytes=MAX_PAYLOAD_BYTES + 1))
    assert isinstance(open_bus(most, {"REDIS_URL": NOBODY}), SpoolFallbackBus)
    assert isinstance(open_bus(more, {"REDIS_URL": "file:"}), SpoolBus)
    with pytest.raises(
        ConfigError, match=r"max_report_bytes: expected at most 1048576, .* Redis carries, found 1048577"
    ):
        open_bus(more, {"REDIS_URL": NOBODY})


def test_a_consumer_keeps_its_name_and_shares_it_with_no_other_home(tmp_path: Path) -> None:
    names = [plugin.consumer_name(tmp_path / name) for name in ("a", "a", "b")]
    assert names[0] == names[1] != names[2]


def test_an_unknown_scheme_is_refused_with_those_that_are_known(tmp_path: Path) -> None:
    spec = BusSpec(tmp_path, has_url=True)
    with pytest.raises(ConfigError, match=r"schemes file, redis, rediss, found the scheme 'unix'") as caught:
        open_bus(spec, {"REDIS_URL": f"unix://{SECRET}@/socket"})
    assert SECRET not in str(caught.value)
    for bare in (f"{SECRET}:x@host", SECRET):
        with pytest.raises(ConfigError, match=r"found no scheme") as caught:
            open_bus(spec, {"REDIS_URL": bare})
        assert SECRET not in str(caught.value)


def test_the_scheme_file_is_the_spool_of_the_home_and_of_no_other_place(tmp_path: Path) -> None:
    spec = BusSpec(tmp_path, has_url=True)
    open_bus(spec, {"REDIS_URL": "file:"}).put(TOPIC, "a", [b"1"])
    assert list(drain(open_bus(BusSpec(tmp_path)))) == [b"1"]
    with pytest.raises(ConfigError, match="SIMIC_HOME"):
        open_bus(spec, {"REDIS_URL": "file:///elsewhere"})
