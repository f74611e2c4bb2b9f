"""How a program without Simic makes the inputs of an exported policy, as a table that is written beside it.

Each formula is an expression over the fields of a state, a slot or a layer as a field report has them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from simic.contracts.actions import ALPHA_CURVES, ALPHA_SPEEDS, ALPHA_TARGETS, OPS, TEMPOS
from simic.controllers.features import BOUND, feature_names

__all__ = ["describe_inputs"]

_LOSSES = ("validation_loss", "train_loss")
_CONTEXT = {
    "epoch_fraction": "epoch / horizon",
    "remaining_epochs": "log1p(horizon - epoch)",
    "remaining_inverse": "1 / max(horizon - epoch, 1)",
    "budget_used": "seeds_alive / max(seeds_max, 1)",
    "budget_left": "seeds_alive < seeds_max",
    "seed_parameters": "log1p(seed_parameters)",
    "validation_loss": "log1p(validation_loss)",
    "train_loss": "log1p(train_loss)",
    "accuracy_gap": "train_accuracy - validation_accuracy",
    "parameters_per_sample": "log(host_parameters / train_samples)",
    "loss_ratio": "log(validation_loss + 0.001) - log(train_loss + 0.001)",
}
_SLOT = {
    "stage_epochs": "log1p(stage_epochs)",
    "parameters": "log1p(parameters)",
    "tempo": "log1p(tempo)",
    "tempo_left": "log1p(max(tempo - stage_epochs, 0)) if stage == 'TRAINING' else None",
    "age_epochs": "log1p(age_epochs)",
    "gradient_norm": "log1p(gradient_norm)",
    "contribution_epochs": "log1p(contribution_epochs)",
    "depth": "mean(one['depth'] for one in monitored)",
    **{
        f"layer_{name}": f"mean(one['{name}'] for one in monitored)"
        for name in ("width", "is_linear", "hidden_width", "spread", "spread_rise", "dimension")
    },
}
_LAYER = {
    "width": "log1p(width)",
    "depth": "longest_path / max(deepest, 1)",
    "hidden_width": "log1p(hidden_width)",
    "spread": "log1p(activation_spread)",
    "spread_rise": "log1p(activation_spread) - mean(log1p(one['activation_spread']) for one in sources)",
    "dimension": "log1p(effective_dimension)",
    "weight_norm": "log1p(weight_norm)",
    "gradient_norm": "log1p(gradient_norm)",
}
_TABLES = {"context": _CONTEXT, "slot": _SLOT, "layer": _LAYER}


def describe_inputs(digest: str, blueprints: Sequence[str]) -> dict[str, Any]:
    """Return the document that lies beside an exported program: its inputs, formulas and what indices stand for."""
    names = feature_names(blueprints)
    sizes = {node: len(columns) for node, columns in names.items()}
    return {
        "policy": digest,
        "bound": BOUND,
        "inputs": {
            "context": {"dtype": "float32", "shape": [1, sizes["context"]]},
            "slots": {"dtype": "float32", "shape": ["slots", sizes["slot"]]},
            "layers": {"dtype": "float32", "shape": ["layers", sizes["layer"]]},
            "connects": {"dtype": "float32", "shape": ["layers", "layers"]},
            "monitors": {"dtype": "float32", "shape": ["slots", "layers"]},
            "op_mask": {"dtype": "bool", "shape": [len(OPS)]},
            "slot_mask": {"dtype": "bool", "shape": [len(OPS), "slots"]},
            "blueprint_mask": {"dtype": "bool", "shape": [len(blueprints)]},
        },
        "outputs": {
            "op": {"shape": [len(OPS)], "choices": [op.value for op in OPS]},
            "slot": {"shape": [len(OPS), "slots"]},
            "blueprint": {"shape": ["slots", len(blueprints)], "choices": list(blueprints)},
            "tempo": {"shape": ["slots", len(TEMPOS)], "choices": list(TEMPOS)},
            "alpha_target": {"shape": ["slots", len(ALPHA_TARGETS)], "choices": list(ALPHA_TARGETS)},
            "alpha_speed": {"shape": ["slots", len(ALPHA_SPEEDS)], "choices": list(ALPHA_SPEEDS)},
            "alpha_curve": {"shape": ["slots", len(ALPHA_CURVES)], "choices": [curve.value for curve in ALPHA_CURVES]},
            "value": {"shape": [1]},
        },
        "features": {
            node: [{"name": name, "formula": _formula(name, _TABLES[node])} for name in columns]
            for node, columns in names.items()
        },
    }


def _formula(name: str, table: dict[str, str]) -> str:
    """Return the expression of a column; a flag says whether its number exists."""
    if name.endswith("_valid"):
        return f"exists({name.removesuffix('_valid')})"
    if name in table:
        return table[name]
    if "=" in name:
        field, _, value = name.partition("=")
        return f"{field} == '{value}'"
    quantity, is_delta, age = name.partition("_delta_")
    if is_delta:
        newer, older = (f"{quantity}_history[{-1 - int(age) - back}]" for back in (0, 1))
        return f"log1p({newer}) - log1p({older})" if quantity in _LOSSES else f"{newer} - {older}"
    return name
