"""Settings of Karn: how it is trained, and whether policies consult it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from simic.contracts.base import Contract, Positive

__all__ = ["ControllerConfig", "KarnConfig", "KarnNetworkConfig"]


class ControllerConfig(Contract):
    """How policies act where this home grows hosts under them: collection, trials, comparisons, `simic watch`.

    A judgement of a policy tries it alone, whatever these settings say: Karn is judged by itself.
    """

    karn: Literal["off", "consult"] = "off"
    """off: a policy chooses the blueprint of a germination. consult: Karn chooses it, for the slot that the policy
    chose; without that Karn in the home it is an error."""
    karn_digest: Annotated[str, Field(pattern=r"^[0-9a-f]{8,64}$")] | None = None
    """First 8 or more characters of the digest of the Karn that is consulted; null means the champion of
    Karn."""

    @model_validator(mode="after")
    def _names_a_karn_to_consult(self) -> ControllerConfig:
        if self.karn == "off" and self.karn_digest is not None:
            raise ValueError(
                f"controller.karn_digest {self.karn_digest} names a Karn, but controller.karn is off; set it to consult"
            )
        return self


class KarnNetworkConfig(Contract):
    """Architecture of Karn's network."""

    hidden: Annotated[int, Field(ge=8, le=1024)] = 32
    """Width of its encoder; that of the fitted returns has two thirds of it."""
    layers: Annotated[int, Field(ge=1, le=16)] = 2
    """Number of rounds of message passing."""


class KarnConfig(Contract):
    """Training of Karn, in float32 on the CPU. Learning rates, weight decay and the clip are those of ``train``."""

    network: KarnNetworkConfig = KarnNetworkConfig()
    passes: Annotated[int, Field(ge=1, le=10_000)] = 80
    """Passes over all examples."""
    max_weight: Annotated[float, Field(ge=1.0, le=1000.0)] = 5.0
    """Bound on the importance weight of a germination of an ordinary episode; a larger one has less bias and more
    variance."""
    min_examples: Positive = 64
    """Least number of examples: pairs of decision and slot with two or more tried blueprints, and germinations of
    ordinary episodes whose blueprint was drawn. With fewer, training refuses to start."""
