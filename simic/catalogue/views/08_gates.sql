-- Every criterion of every gate decision.
-- grain: one criterion of one decision
-- key: gate, position
-- inputs: internal.gate_decisions
-- column gate: Digest of the decision.
-- column policy: Digest of the candidate.
-- column champion: Digest of the champion it was compared with, if any.
-- column accepted: Whether every criterion passed.
-- column position: Of the criterion in the decision, from 1.
-- column criterion: What was asked.
-- column value: What was measured; null when the evidence is missing or not finite.
-- column comparison: How value and bound should compare.
-- column bound: What was required.
-- column verdict: PASS, FAIL or MISSING; anything but PASS rejects.
-- column evidence: Where the value comes from.
-- column finished_at: When it was decided.
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
