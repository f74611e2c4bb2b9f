"""Which Karn a policy consults: by the settings, by a name, and never by accident."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError
from support.builders.judged_candidates import sealed_policy
from support.builders.judged_karns import judged_karn
from support.builders.karns import karn_report, sealed_karn
from support.faults.full_disks import read_only
from support.homes.karns import KarnHome, karn_home

from simic.app.container import Container
from simic.app.names.karn_names import consulting_label, parse_consulting
from simic.contracts.controllers import ControllerSpec
from simic.contracts.errors import ConfigError, IntegrityError
from simic.contracts.settings.karn import ControllerConfig
from simic.runtime.home import Home
from simic.runtime.settings import load_profile
from simic.trust.seal import seal, verify


def opened(home: Path, **controller: str) -> Container:
    settings = {f"controller.{name}": value for name, value in controller.items()}
    return Container(Home(home), load_profile("quick", settings), 0)


@pytest.fixture
def policy(home: Path) -> Path:
    app = opened(home)
    path, _ = sealed_policy(app.home, b"one")
    digest = seal(path, app.signer).digest
    return path.rename(app.home.policies / digest)


def made(app: Container, seed: int) -> str:
    digest = sealed_karn(app.home, app.signer, seed)
    app.save_receipt(karn_report(digest))
    return digest


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("champion+karn", ("champion", None)),
        ("tamiyo/2+karn/0123abcd", ("tamiyo/2", "0123abcd")),
        ("tamiyo/2+karn/champion", ("tamiyo/2", "champion")),
        ("models:/tamiyo@champion+karn", ("models:/tamiyo@champion", None)),
        ("a/folder+karn/elsewhere", None),
        ("champion", None),
        ("+karn", None),
        ("champion+karn/abc", None),
    ],
)
def test_a_name_says_who_consults_whom(name: str, parts: tuple[str, str | None] | None) -> None:
    assert parse_consulting(name) == parts


def test_by_default_a_policy_consults_nobody_though_there_is_a_karn(home: Path, policy: Path) -> None:
    app = opened(home)
    made(app, 0)
    spec = app.policies.spec(policy.name, is_decisive=True)
    assert spec.karn_path is None and spec.karn_digest is None
    assert app.policies.learned(policy, policy.name, is_decisive=False).karn_digest is None
    assert app.policies.label(policy.name, spec) == f"policy {policy.name[:8]}"


def test_a_spec_without_a_karn_has_the_content_that_it_had_before_there_was_one() -> None:
    """Names of deliveries and of landed comparisons are digests over specs."""
    assert {"karn_path", "karn_digest"}.isdisjoint(ControllerSpec(name="wait").model_dump(mode="json"))
    consulting = ControllerSpec(name="learned", policy_path="p", karn_path="k", karn_digest="c" * 64)
    assert ControllerSpec.model_validate_json(consulting.model_dump_json()) == consulting
    assert consulting.model_dump(exclude={"karn_path"}).keys() >= {"karn_digest"}
    assert "karn_path" not in consulting.model_dump(exclude={"karn_path"})


def test_with_the_setting_every_policy_consults_the_karn_that_it_names(home: Path, policy: Path) -> None:
    first, last = (made(opened(home), seed) for seed in (0, 1))
    app = opened(home, karn="consult", karn_digest=last)
    for spec in (
        app.policies.spec(policy.name, is_decisive=True),
        app.policies.learned(policy, policy.name, is_decisive=True),
    ):
        assert (spec.karn_path, spec.karn_digest) == (str(app.home.karn / last), last)
        assert app.policies.label(policy.name, spec) == f"policy {policy.name[:8]}+karn/{last[:8]}"
        assert spec.expected_digest(app.home.karn / last) == last
        assert spec.expected_digest(policy) == policy.name
    named = opened(home, karn="consult", karn_digest=first[:8])
    assert named.policies.spec(policy.name, is_decisive=True).karn_digest == first
    assert app.policies.spec("wait", is_decisive=True).karn_digest is None


def test_a_name_decides_whatever_the_settings_say(home: Path, policy: Path) -> None:
    first, last = (made(opened(home), seed) for seed in (0, 1))
    for app in (opened(home), opened(home, karn="consult", karn_digest=first)):
        assert app.policies.spec(f"{policy.name}+karn", is_decisive=True).karn_digest == last
        spec = app.policies.spec(f"{policy.name}+karn/{first[:10]}", is_decisive=True)
        assert spec.karn_digest == first
        label = app.policies.label(f"{policy.name}+karn/{first[:10]}", spec)
        assert label == consulting_label(f"policy {policy.name[:8]}", first)


def test_a_home_without_a_karn_says_how_to_make_one_before_anything_grows(home: Path, policy: Path) -> None:
    for ask in (
        lambda: opened(home, karn="consult").policies.spec(policy.name, is_decisive=True),
        lambda: opened(home).policies.spec(f"{policy.name}+karn", is_decisive=True),
        lambda: opened(home).policies.spec(f"{policy.name}+karn/champion", is_decisive=True),
        lambda: opened(home).policies.spec(f"{policy.name}+karn/{'0' * 8}", is_decisive=True),
    ):
        with pytest.raises(ConfigError, match="simic karn train"):
            ask()
    with pytest.raises(ConfigError, match="only policies consult Karn"):
        opened(home).policies.spec("wait+karn", is_decisive=True)


def test_a_karn_that_changed_since_it_was_sealed_is_not_consulted(home: Path, policy: Path) -> None:
    app = opened(home)
    digest = made(app, 0)
    card = app.home.karn / digest / "card.json"
    card.write_bytes(card.read_bytes() + b"\n")
    with pytest.raises(IntegrityError, match="differ from what was sealed"):
        app.policies.spec(f"{policy.name}+karn", is_decisive=True)


@pytest.fixture
def promoted(home: Path) -> KarnHome:
    """A home whose Karn is champion."""
    made = karn_home(Home(home), controller__karn="consult")
    evidence, registry = judged_karn(made.app.home, made.champion.digest), made.app.karn_registry
    registry.promote(registry.record(evidence), evidence.validation, evidence.gate)
    return made


@pytest.mark.parametrize("is_damaged", [True, False], ids=["damaged", "missing"])
@pytest.mark.parametrize("is_champion", [True, False], ids=["champion", "digest"])
def test_the_copy_of_a_registered_karn_is_fetched_again(
    promoted: KarnHome, is_champion: bool, is_damaged: bool
) -> None:
    app = promoted.app
    digest = str(app.karns.champion_digest())
    folder = app.home.karn / digest
    if is_damaged:
        (folder / "weights.safetensors").write_bytes(b"half")
    else:
        folder.rename(app.home.tmp / "away")
    choice = app.karns.configured() if is_champion else app.karns.named(digest[:8])
    assert choice == (folder, digest)
    assert verify(folder, app.keyring).digest == digest


NAME = """
import sys
from pathlib import Path
from simic.app.container import Container
from simic.runtime.home import Home, HomeUse
from simic.runtime.settings import load_profile
Container(Home(Path(sys.argv[1])), load_profile("quick"), 0, use=HomeUse.LOOK).karns.named(sys.argv[2])
"""


def test_in_a_read_only_home_a_damaged_copy_is_what_the_error_tells(promoted: KarnHome) -> None:
    """It cannot be fetched again there, and to try again would not help."""
    home, digest = promoted.app.home, str(promoted.app.karns.champion_digest())
    (home.karn / digest / "weights.safetensors").write_bytes(b"half")
    command = read_only([sys.executable, "-c", NAME, str(home.root), digest], home.root)
    told = subprocess.run(command, capture_output=True, text=True, check=False).stderr
    assert "IntegrityError" in told and "weights.safetensors" in told and "differ from what was sealed" in told


def test_in_a_read_only_home_a_missing_copy_is_what_the_error_tells(promoted: KarnHome) -> None:
    """Nobody holds its lock, so to try again would not help."""
    home, digest = promoted.app.home, str(promoted.app.karns.champion_digest())
    (home.karn / digest).rename(home.root / "away")
    command = read_only([sys.executable, "-c", NAME, str(home.root), digest], home.root)
    told = subprocess.run(command, capture_output=True, text=True, check=False).stderr
    assert "ConfigError" in told and f"no copy of it at {home.karn / digest}" in told and "SIMIC_HOME" in told


def test_a_line_of_the_ledger_that_leads_to_another_karn_brings_no_other_karn(promoted: KarnHome) -> None:
    app = promoted.app
    first = str(app.karns.champion_digest())
    second = app.karn_registry.record(judged_karn(app.home, promoted.champion.digest, seed=1, champion=first))
    (app.home.karn / first).rename(app.home.tmp / "away")
    path = app.home.ledger / "candidates.jsonl"
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    for line in lines:
        if line["digest"] == first:
            line["reference"] = second.reference
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    with pytest.raises(IntegrityError, match=f"expected digest {first}, found {second.digest}"):
        app.karns.named(first)
    assert not (app.home.karn / first).exists()


def test_a_karn_that_is_damaged_in_the_registry_too_replaces_no_copy(promoted: KarnHome) -> None:
    app = promoted.app
    copy = app.home.karn / str(app.karns.champion_digest()) / "weights.safetensors"
    copy.write_bytes(b"half")
    stored = [path for path in app.home.artifacts.glob("**/weights.safetensors") if path.parent.name == "policy"]
    for path in stored:
        path.chmod(0o600)
        path.write_bytes(b"other")
    assert stored
    with pytest.raises(IntegrityError, match="Restore them from a backup"):
        app.karns.configured()
    assert copy.read_bytes() == b"half"


def test_a_policy_is_no_karn_though_a_trusted_key_sealed_it(home: Path, policy: Path) -> None:
    """Its digest is not that of the receipt, so the folder of another sealed thing cannot take Karn's place."""
    app = opened(home)
    digest = made(app, 0)
    (app.home.karn / digest).rename(app.home.tmp / "away")
    policy.rename(app.home.karn / digest)
    with pytest.raises(IntegrityError, match="expected digest"):
        app.karns.named(None)


def test_two_that_fit_are_named_and_neither_is_taken(home: Path) -> None:
    app = opened(home)
    for end in "ab":
        (app.home.karn / ("0" * 63 + end)).mkdir(parents=True)
    with pytest.raises(ConfigError, match="several Karns have a digest that begins with '00000000'"):
        app.karns.named("0" * 8)


def test_settings_and_specs_that_contradict_themselves_are_refused() -> None:
    with pytest.raises(ValidationError, match=r"controller\.karn is off; set it to consult"):
        ControllerConfig(karn_digest="0" * 8)
    with pytest.raises(ValidationError, match="belong together"):
        ControllerSpec(name="learned", policy_path="p", karn_path="k")
    with pytest.raises(ValidationError, match="only a policy consults Karn"):
        ControllerSpec(name="wait", karn_path="k", karn_digest="c" * 64)
