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
from support.servers.forked_commands import run_command
from support.servers.redis_buses import stream_bus
from support.servers.redis_server import RedisProcess

from simic.catalogue.contract_schemas import example_of
from simic.contracts.names import POLICY_UPDATES
from simic.contracts.policy_update import RolloutPlan, ValidationSummary
from simic.publication.rollout import is_within
from simic.trust.keys import Signer

EXAMPLE = Path(__file__).parents[2] / "examples" / "consumer" / "consumer.py"


@pytest.fixture
def publisher(tmp_path: Path) -> Publisher:
    return Publisher(tmp_path / "home")


def simic(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return run_command(*words, "--home", str(home))


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
    taken, again, keyless = (simic(tmp_path, *words) for words in (keyed, keyed, base))
    assert (taken.returncode, again.returncode) == (0, 0)
    told = {"update": good.model_dump(mode="json"), "is_within_share": True}
    assert lines(taken.stdout) == [{"event": "accepted", **told}]
    assert lines(again.stdout) == [{"event": "unchanged", **told}]
    assert (keyless.returncode, keyless.stdout) == (2, "") and "--trusted-keys" in keyless.stderr
    assert (tmp_path / "into" / "current").resolve().name == first

    publisher.put(publisher.signed(good, Signer(bytes(range(40, 72))), digest=second))
    (publisher.home.policies / second).rename(tmp_path / "late")
    refused = simic(tmp_path, *keyed)
    (line,) = lines(refused.stdout)
    assert (refused.returncode, line["event"], line["error"], line["update"]) == (1, "refused", "IntegrityError", None)
    publisher.publish(2, second)
    waits = simic(tmp_path, *keyed)
    assert (waits.returncode, lines(waits.stdout)[0]["error"]) == (4, "TransientError")
    (tmp_path / "late").rename(publisher.home.policies / second)
    taken = simic(tmp_path, *keyed[:-3], "--once", "--trusted-keys", str(publisher.home.keys))
    assert taken.returncode == 0 and taken.stdout.startswith(f"accepted tamiyo 1.0.2 ({second[:12]})")
    assert (tmp_path / "into" / "current").resolve().name == second


def test_follow_outside_the_share_names_the_policy_that_it_uses(publisher: Publisher, tmp_path: Path) -> None:
    baseline, new = (sealed_by_digest(publisher.home.policies, seed) for seed in (0, 1))
    publisher.publish(1, baseline)
    plan = RolloutPlan(
        share=0.01, hours=24.0, min_success=0.8, min_episodes=5, baseline=baseline, baseline_version="1.0.1"
    )
    begun = publisher.publish(2, new, plan=plan)
    outside = next(name for name in map(str, range(100)) if not is_within(begun, name))
    words = ["follow", str(publisher.home.root), "--into", str(tmp_path / "into"), "--consumer", outside, "--once"]
    assert simic(tmp_path, *words).returncode == 0
    assert (
        simic(tmp_path, *words).stdout.split()
        == (
            f"no new update: tamiyo 1.0.1 ({baseline[:12]}) stays current; this consumer is outside its share "
            "of 1% and uses 1.0.1"
        ).split()
    )
    (line,) = lines(simic(tmp_path, *words, "--json").stdout)
    assert (line["event"], line["is_within_share"], line["update"]["version"]) == ("unchanged", False, "1.0.2")


@pytest.mark.parametrize(
    ("judged", "said"),
    [
        ({}, ""),
        ({"evidence": "reports"}, "; judged from logged episodes, without trials"),
        ({"without": ["success", "age\x1b"]}, "; judged without success, age\\x1b"),
        ({"without": None, "evidence": None}, "; the update does not say which criteria and evidence it was judged by: "
         "it is of an earlier release"),
    ],
    ids=["usual", "reports", "without", "earlier"],
)  # fmt: skip
def test_follow_says_what_is_unusual_about_the_judgement(
    publisher: Publisher, tmp_path: Path, judged: dict[str, Any], said: str
) -> None:
    usual = publisher.publish(1, sealed_by_digest(publisher.home.policies, 0))
    told = usual.validation.model_dump() | {"without": [], "evidence": "trials"} | judged
    update = publisher.signed(usual, validation=ValidationSummary.model_validate(told))
    publisher.put(update)
    words = ["follow", str(publisher.home.root), "--into", str(tmp_path / "into"), "--once"]
    accepted, unchanged = (simic(tmp_path, *words).stdout for _ in range(2))
    assert " ".join(accepted.split()).endswith(f"key {SIGNER.key_id}{said}")
    assert " ".join(unchanged.split()).endswith(f"stays current{said}")
    (line,) = lines(simic(tmp_path, *words, "--json").stdout)
    shown = {name: line["update"]["validation"].get(name) for name in ("without", "evidence")}
    assert shown == {name: told[name] for name in shown}


def test_follow_takes_a_home_and_redis_and_hides_no_password(
    publisher: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("REDIS_URL", raising=False)
    update = publisher.publish(1, sealed_by_digest(publisher.home.policies, 0))
    into = ["--into", str(tmp_path / "into"), "--once"]
    home = publisher.home.root
    with RedisProcess(tmp_path / "redis") as server:
        remote = ["follow", server.url, "--policies", str(publisher.home.policies), *into]
        keys = ["--trusted-keys", str(publisher.home.keys)]
        publisher.bus = stream_bus(server)
        publisher.put(update)
        assert server.client.xlen(POLICY_UPDATES) == 1
        of_home = simic(home, "follow", str(home), *into)
        by_option = simic(home, "follow", *into)
        of_redis = simic(home, *remote, *keys)
        nowhere = simic(home, "follow", server.url, *into, *keys)
        secret = simic(home, "follow", "redis://:hush@127.0.0.1/0", *into, *keys)
    assert (of_home.returncode, by_option.returncode) == (0, 0)
    assert of_home.stdout.startswith("accepted tamiyo 1.0.1") and SIGNER.key_id in of_home.stdout
    assert by_option.stdout.startswith(f"no new update: tamiyo 1.0.1 ({update.digest[:12]}) stays current")
    assert (of_redis.returncode, of_redis.stdout) == (0, by_option.stdout)  # the same update over another transport
    assert nowhere.returncode == 2 and "ConfigError: --policies: expected" in nowhere.stderr
    assert secret.returncode == 2 and "REDIS_URL" in secret.stderr and "hush" not in secret.stderr
    assert simic(tmp_path, *remote, *keys).returncode == 4
