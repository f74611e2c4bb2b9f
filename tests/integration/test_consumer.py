"""The example of a consumer, and `simic follow` as a program in another language uses it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.builders.deciding_policies import SIGNER
from support.builders.published_policies import Publisher, sealed_by_digest
from support.servers.commands import call_all
from support.servers.redis_buses import stream_bus
from support.servers.redis_server import RedisProcess

from simic.catalogue.contract_schemas import example_of
from simic.contracts.names import POLICY_UPDATES
from simic.trust.keys import Signer

EXAMPLE = Path(__file__).parents[2] / "examples" / "consumer" / "consumer.py"


@pytest.fixture
def publisher(tmp_path: Path) -> Publisher:
    return Publisher(tmp_path / "home")


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_the_example_asks_the_policy_that_was_published(publisher: Publisher, tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(json.dumps(example_of("FieldReport")))
    digest = sealed_by_digest(publisher.home.policies, 0)
    command = [
        sys.executable, EXAMPLE, publisher.home.spool, "--keys", publisher.home.keys, "--state", "report.json",
        "--looks", "1",
    ]  # fmt: skip
    said = []
    for _ in range(2):
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=120)
        said.append(done.stdout)
        publisher.publish(1, digest)
    assert said[0] == "look 1: no policy yet, so WAIT\n"
    assert said[1].startswith(f"look 1: policy {digest[:12]} says {{")


def test_follow_keeps_a_verified_directory_and_says_what_it_refused(publisher: Publisher, tmp_path: Path) -> None:
    first, second = (sealed_by_digest(publisher.home.policies, seed) for seed in (0, 1))
    good = publisher.publish(1, first)
    base = ["follow", str(publisher.home.spool), "--into", str(tmp_path / "into"), "--once", "--json"]
    keyed = [*base, "--trusted-keys", str(publisher.home.keys)]
    (taken, again, keyless) = call_all([keyed, keyed, base], tmp_path)
    assert (taken.code, again.code, again.out) == (0, 0, "")
    assert lines(taken.out) == [{"event": "accepted", "update": good.model_dump(mode="json")}]
    assert (keyless.code, keyless.out) == (2, "") and "--trusted-keys" in keyless.err
    assert (tmp_path / "into" / "current").resolve().name == first

    publisher.put(publisher.signed(good, Signer(bytes(range(40, 72))), digest=second))
    (publisher.home.policies / second).rename(tmp_path / "late")
    (refused,) = call_all([keyed], tmp_path)
    (line,) = lines(refused.out)
    assert (refused.code, line["event"], line["error"], line["update"]) == (1, "refused", "IntegrityError", None)
    publisher.publish(2, second)
    (waits,) = call_all([keyed], tmp_path)
    assert (waits.code, lines(waits.out)[0]["error"]) == (4, "TransientError")
    (tmp_path / "late").rename(publisher.home.policies / second)
    words = [*keyed[:-3], "--once", "--trusted-keys", str(publisher.home.keys)]
    (taken,) = call_all([words], tmp_path)
    assert taken.code == 0 and taken.out.startswith(f"accepted tamiyo 1.0.2 ({second[:12]})")
    assert (tmp_path / "into" / "current").resolve().name == second


def test_follow_takes_a_home_and_redis_and_hides_no_password(
    publisher: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("REDIS_URL", raising=False)
    update = publisher.publish(1, sealed_by_digest(publisher.home.policies, 0))
    into = ["--into", str(tmp_path / "into"), "--once"]
    home = str(publisher.home.root)
    with RedisProcess(tmp_path / "redis") as server:
        remote = ["follow", server.url, "--policies", str(publisher.home.policies), *into]
        keys = ["--trusted-keys", str(publisher.home.keys)]
        publisher.bus = stream_bus(server)
        publisher.put(update)
        assert server.client.xlen(POLICY_UPDATES) == 1
        of_home, by_option, of_redis, secret = call_all(
            [
                ["follow", home, *into],
                ["follow", *into],
                [*remote, *keys],
                ["follow", "redis://:hush@127.0.0.1/0", *into, *keys],
            ],
            publisher.home.root,
        )
    assert (of_home.code, by_option.code, by_option.out) == (0, 0, "")
    assert of_home.out.startswith("accepted tamiyo 1.0.1") and SIGNER.key_id in of_home.out
    assert (of_redis.code, of_redis.out) == (0, "")  # the same update over another transport
    assert secret.code == 2 and "REDIS_URL" in secret.err and "hush" not in secret.err
    (away,) = call_all([[*remote, *keys]], tmp_path)
    assert away.code == 4
