"""The public names and their signatures: a change here is a change of the version (docs/api.md)."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import simic

PROBE = """
import sys, simic
{use}
print(*sorted({{'torch', 'torch_geometric', 'mlflow', 'duckdb', 'pyarrow', 'pydantic'}} & set(sys.modules)))
"""

DECIDE = (
    "(self, state: 'StateLike | Sequence[StateLike]', available: 'MasksLike | Sequence[MasksLike]', *, "
    "rng: 'np.random.Generator | None' = None, explore: 'bool' = False)"
)
SURFACE = {
    "Action": "fields alpha_curve alpha_speed alpha_target blueprint op slot tempo",
    "ActionMasks": "fields blueprint op slot",
    "ConfigError": "error under SimicError",
    "ContractError": "error under SimicError",
    "DatasetError": "error under ContractError",
    "Explanation": "fields action alternatives heads karn log_prob out_of_range policy value",
    "Explanation.second": "property -> 'Alternative | None'",
    "FieldReport": "fields action available blueprint_id branch_of branch_step command_id controller final_state "
    "governor host issued_at judgement log_prob_behaviour metrics mitigation observation_window_epochs outcome "
    "policy_version relevant report_id run_id schema_version seed_id state step terminated trial_id truncated",
    "FieldReportWriter": "(home: 'Home | None' = None, *, spool: 'str | os.PathLike[str] | None' = None, "
    "blueprints: 'Sequence[str]' = ())",
    "FieldReportWriter.flush": "(self) -> 'None'",
    "FieldReportWriter.repeat": "(self, run_id: 'str') -> 'None'",
    "FieldReportWriter.write": "(self, report: 'FieldReport | Mapping[str, Any]') -> 'None'",
    "Grower": "(model: 'nn.Module', optimizer: 'Optimizer', *, slots: 'Sequence[str | Layer]', validation: 'Data', "
    "epochs: 'int', policy: 'Policy | str | os.PathLike[str]' = 'champion', out_of_range: 'OutOfRangeUse' = 'warn', "
    "test: 'Data | None' = None, "
    "head: 'str | None' = None, loss: 'Callable[[Tensor, Tensor], Tensor] | None' = None, "
    "logits: 'Callable[[Any], Tensor] | None' = None, blueprints: "
    "'Sequence[str]' = ('norm', 'gate', 'bottleneck', 'dense', 'heavy', 'dropout'), seeds_max: 'int' = 1,"
    " lifecycle: 'Rules' = None, governor: 'Rules' = None,"
    " name: 'str' = 'own', seed: 'int' = 0, report_to: 'FieldReportWriter | Home | str | os.PathLike[str]"
    " | None' = None, home: 'Home | None' = None, trusted_keys: 'TrustedKeys | None' = None)",
    "Grower.loss": "(self, logits: 'Any', labels: 'Tensor') -> 'Tensor'",
    "Grower.step": "(self) -> 'Growth'",
    "Grower.finalize": "(self) -> 'nn.Module'",
    "Grower.state_dict": "(self) -> 'dict[str, Any]'",
    "Grower.load_state_dict": "(self, state: 'Mapping[str, Any]') -> 'None'",
    "Grower.is_finished": "property -> 'bool'",
    "Grower.state": "property -> 'SystemState'",
    "Growth": "(epoch: ForwardRef('int'), validation_accuracy: ForwardRef('float'), validation_loss: "
    "ForwardRef('float'), action: ForwardRef('Action | None'), governor: ForwardRef('GovernorEvent | "
    "None'), out_of_range: ForwardRef('tuple[OutOfRange, ...]'))",
    "Home": "(root: 'str | os.PathLike[str] | None' = None)",
    "Home.public_keys": "(self) -> 'list[str]'",
    "Home.root": "property -> 'Path'",
    "IntegrityError": "error under SimicError",
    "Policy": "made by load_policy",
    "Policy.decide": f"{DECIDE} -> 'Action | list[Action]'",
    "Policy.explain": f"{DECIDE} -> 'Explanation | list[Explanation]'",
    "PolicyUpdate": "fields digest issued_at issued_by key_id policy_name reference rollout schema_version signature "
    "targets validation version",
    "ResourceLimitError": "error under SimicError",
    "SimicError": "error under Exception",
    "Subscriber": "(source: 'Home | str | os.PathLike[str]', *, trusted_keys: 'TrustedKeys', "
    "state: 'str | os.PathLike[str]', policies: 'str | os.PathLike[str] | None' = None, target: 'str' = 'tamiyo', "
    "consumer: 'str | None' = None, consult_karn: 'bool' = False, karns: 'str | os.PathLike[str] | None' = None)",
    "Subscriber.karn_update": "property -> 'PolicyUpdate | None'",
    "Subscriber.close": "(self) -> 'None'",
    "Subscriber.is_within_share": "property -> 'bool'",
    "Subscriber.poll": "(self) -> 'PolicyUpdate | None'",
    "Subscriber.policy": "property -> 'Policy | None'",
    "Subscriber.refusals": "property -> 'int'",
    "Subscriber.refused": "property -> 'tuple[Refusal, ...]'",
    "Subscriber.update": "property -> 'PolicyUpdate | None'",
    "SystemState": "fields committed_validation_accuracy epoch graph hardware horizon host_parameters seed_parameters "
    "seeds_alive seeds_max slots train_accuracy train_loss train_loss_history train_samples validation_accuracy "
    "validation_accuracy_history validation_loss validation_loss_history",
    "TrainingComparison": "fields arms differences seeds trainings",
    "TransientError": "error under SimicError",
    "compare_trainings": "(train: 'Train', arms: 'Sequence[str]', *, seeds: 'Iterable[int]' = range(0, 16), "
    "confidence: 'float' = 0.95, results: 'str | os.PathLike[str] | None' = None, progress: 'bool' = True) "
    "-> 'TrainingComparison'",
    "load_policy": "(ref_or_path: 'str | os.PathLike[str]', *, home: 'Home | None' = None, "
    "trusted_keys: 'TrustedKeys | None' = None, karn: 'str | os.PathLike[str] | None' = None) -> 'Policy'",
    "read_snapshot": "(digest: 'str', *, split: 'str' = 'train', columns: 'Sequence[str] | None' = None, "
    "home: 'Home | None' = None) -> 'pa.Table'",
    "sql": "(query: 'str', *, home: 'Home | None' = None, timeout_s: 'float' = 300.0, memory_mb: 'int' = 1024) "
    "-> 'pa.Table'",
}
"""Every public name, and every public method and property that its class defines itself."""


def described(name: str) -> dict[str, str]:
    """One public name and what a user can reach in it."""
    value = getattr(simic, name)
    if not inspect.isclass(value):
        return {name: str(inspect.signature(value))}
    own = {key: member for key, member in vars(value).items() if not key.startswith("_")}
    methods = {f"{name}.{key}": str(inspect.signature(member)) for key, member in own.items()
               if inspect.isfunction(member)}  # fmt: skip
    properties = {f"{name}.{key}": f"property -> {member.fget.__annotations__['return']!r}"
                  for key, member in own.items() if isinstance(member, property)}  # fmt: skip
    if issubclass(value, Exception):
        return {name: f"error under {value.__base__.__name__}"}
    if hasattr(value, "model_fields"):
        return {name: f"fields {' '.join(sorted(value.model_fields))}"} | {
            key: text for key, text in (methods | properties).items() if key.startswith("Explanation.")
        }
    made = "made by load_policy" if name == "Policy" else str(inspect.signature(value)).partition(" -> ")[0]
    return {name: made} | methods | properties


def test_the_surface_is_as_promised() -> None:
    found: dict[str, str] = {}
    for name in simic.__all__:
        found |= described(name)
    assert found == SURFACE


def test_every_name_is_listed_typed_and_documented_once() -> None:
    tree = ast.parse(Path(simic.__file__).read_text("utf-8"))
    typed = [
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.If)
        for inner in node.body
        if isinstance(inner, ast.ImportFrom)
        for alias in inner.names
    ]
    assert sorted(typed) == sorted(simic.__all__) == sorted(simic._MODULES)
    assert set(simic.__all__) <= set(dir(simic))
    page = (Path(simic.__file__).parents[1] / "docs" / "api.md").read_text("utf-8")
    assert {name for name in simic.__all__ if f"`simic.{name}" not in page} == set()
    assert all(getattr(simic, name).__doc__ for name in simic.__all__)


@pytest.mark.parametrize(
    ("use", "loaded"),
    [
        ("", ""),
        ("dir(simic); simic.SimicError", ""),
        ("simic.Action", "pydantic"),
        ("simic.Home", "pydantic"),
        ("simic.load_policy", "pydantic torch"),
    ],
)
def test_names_are_loaded_when_they_are_used(use: str, loaded: str) -> None:
    done = subprocess.run([sys.executable, "-c", PROBE.format(use=use)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == loaded


def test_an_unknown_name_is_an_attribute_error_that_lists_the_known_ones() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'load_polcy'.*load_policy"):
        _ = simic.load_polcy  # type: ignore[attr-defined]
    assert not hasattr(simic, "grow")
