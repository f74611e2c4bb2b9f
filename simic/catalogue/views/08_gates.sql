-- Every criterion of every gate decision.
-- grain: one criterion of one decision
-- key: gate, position
-- inputs: internal.gate_decisions
-- column gate: Digest of the decision.
-- column policy: Digest of the candidate.
-- column champion: Digest of the champion with which it was compared, if any.
-- column accepted: Whether every criterion passed.
-- column position: Position of the criterion in the decision, from 1.
-- column criterion: Name of the criterion.
-- column value: Measured value; null if the evidence is missing or not finite.
-- column comparison: Required relation of value and bound.
-- column bound: Required bound.
-- column verdict: PASS, FAIL or MISSING; anything but PASS rejects.
-- column evidence: Source of the value.
-- column finished_at: Time of the decision.
WITH numbered AS (
    SELECT
        *,
        unnest(generate_series(1, len(criteria))) AS position
    FROM internal.gate_decisions
)

SELECT
    digest AS gate,
    policy_digest AS policy,
    champion_digest AS champion,
    accepted,
    position,
    criteria[position].name AS criterion,
    criteria[position].value AS value,
    criteria[position].comparison AS comparison,
    criteria[position].bound AS bound,
    criteria[position].verdict AS verdict,
    criteria[position].evidence AS evidence,
    finished_at
FROM numbered
