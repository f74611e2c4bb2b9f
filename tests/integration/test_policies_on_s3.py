"""A subscriber that gets its policies from S3: a real server, which may lack them, hold others, or be away."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.builders.deciding_policies import SIGNER
from support.builders.published_policies import Publisher, sealed_by_digest
from support.servers.s3_server import BUCKET, S3Server, s3_server

import simic
from simic.contracts.errors import ConfigError, IntegrityError, TransientError
from simic.trust.seal import MANIFEST_NAME

__all__ = ["s3_server"]


def upload(server: S3Server, policy: Path, **changed: bytes) -> None:
    """Put a policy into the store, as a copy of the folder would; ``changed`` replaces files by the stem."""
    for path in policy.iterdir():
        with server.client().open_output_stream(f"{BUCKET}/lake/{policy.name}/{path.name}") as sink:
            sink.write(changed.get(path.stem, path.read_bytes()))


def test_policies_come_from_s3_once_they_are_there_and_as_they_were_sealed(tmp_path: Path, s3_server: S3Server) -> None:
    made = tmp_path / "made"
    digests = [sealed_by_digest(made, seed) for seed in range(3)]
    publisher = Publisher(tmp_path / "home", made)
    keys = [SIGNER.public_bytes.hex()]
    spool, state = str(publisher.home.spool), tmp_path / "state"
    with simic.Subscriber(spool, trusted_keys=keys, state=state, policies=s3_server.url) as subscriber:
        first = publisher.publish(1, digests[0])
        assert subscriber.poll() is None
        assert isinstance(subscriber.refused[-1].error, TransientError)
        assert "not in s3://experience/lake yet" in str(subscriber.refused[-1].error)
        upload(s3_server, made / digests[0])
        assert subscriber.poll() == first
        assert subscriber.policy is not None
        assert subscriber.policy.digest == digests[0]
        weights = max((made / digests[1]).iterdir(), key=lambda path: path.stat().st_size)
        for number, content, reason in (
            (2, b"\0" * weights.stat().st_size, "differ from what was sealed"),
            (3, weights.read_bytes() + b"more", f"expected {weights.name} of {weights.stat().st_size} bytes, found"),
        ):
            upload(s3_server, made / digests[1], **{weights.stem: content})
            publisher.publish(number, digests[1])
            assert subscriber.poll() is None
            assert isinstance(subscriber.refused[-1].error, IntegrityError)
            assert reason in str(subscriber.refused[-1].error)
        upload(s3_server, made / digests[2], **{Path(MANIFEST_NAME).stem: b"x" * (2**20 + 1)})
        publisher.publish(4, digests[2])
        assert subscriber.poll() is None
        assert "longer than" in str(subscriber.refused[-1].error)
        assert subscriber.policy.digest == digests[0]
    s3_server.kill()
    with simic.Subscriber(spool, trusted_keys=keys, state=state, policies=s3_server.url) as subscriber:
        assert subscriber.policy is not None
        assert subscriber.policy.digest == digests[0]


def test_an_address_with_a_secret_or_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "spool").mkdir()
    settings = {"trusted_keys": [SIGNER.public_bytes.hex()], "state": tmp_path / "state"}
    for url, reason in (("s3://key:secret@bucket/x", "must not hold credentials"), ("https://host/x", "s3://bucket")):
        with pytest.raises(ConfigError, match=reason) as refused:
            simic.Subscriber(tmp_path / "spool", policies=url, **settings)
        assert "secret" not in str(refused.value)
