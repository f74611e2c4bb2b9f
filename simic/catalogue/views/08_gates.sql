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
-- column value: What is compared with the bound: of return_over_* and log_return_over_* a lower confidence bound at level alpha, of mean_over_* the mean. Null if the evidence is missing or not finite.
-- column comparison: Required relation of value and bound.
-- column bound: Required bound.
-- column verdict: PASS, FAIL or MISSING; anything but PASS rejects.
-- column evidence: Source of the value; of a difference its mean and 95 % interval.
-- column detectable: Smallest true difference in points that would have passed with 80 % power; null where the value is no bound of a difference.
-- column ordinal: Number of the judgement in this home, from 1; with the set it chose the hosts. View judgements has all.
-- column alpha: Level of the bounds.
-- column finished_at: Time of the decision.
-- column model: Registered model of the candidate: tamiyo or karn.
-- column consulted_by: For Karn, digest of the policy that consulted it; else null.
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
    criteria[position].detectable AS detectable,
    judgement.ordinal AS ordinal,
    judgement.alpha AS alpha,
    finished_at,
    model,
    consulted_by
FROM numbered
