-- Every judgement that began in this home, in its order, decided or not. Each is an attempt to replace the champion, and spends a part of the error budget.
-- grain: one judgement
-- key: ordinal
-- inputs: internal.begun_judgements, internal.gate_decisions
-- column ordinal: Number of the judgement in this home, from 1; with the set it chooses the hosts.
-- column attempt: Number among the judgements against the same champion, or without one.
-- column set: Set on which the candidate was judged.
-- column policy: Digest of the candidate.
-- column champion: Digest of the champion with which it was compared, if any.
-- column budget: Setting gate.error_budget: largest chance that the home ever promotes a candidate that is no better.
-- column alpha: Chance that this judgement accepts such a candidate: the level of its bounds.
-- column spent: Sum of the levels up to this one, without those of accepted candidates.
-- column accepted: Whether the candidate passed; null if no decision is on record.
-- column seed: Seed of the run.
-- column code_version: Code of the run.
-- column begun_at: Time before its first host grew.
-- column model: Registered model of the candidate: tamiyo or karn. Both spend the same budget.
WITH decided AS (
    SELECT
        judgement.ordinal AS ordinal,
        bool_or(accepted) AS accepted
    FROM internal.gate_decisions
    GROUP BY judgement.ordinal
)

SELECT
    begun.ordinal,
    begun.attempts AS attempt,
    begun."set",
    begun.policy_digest AS policy,
    begun.champion_digest AS champion,
    begun.budget,
    begun.alpha,
    begun.spent,
    decided.accepted,
    begun.seed,
    begun.code_version,
    begun.begun_at,
    begun.model
FROM internal.begun_judgements AS begun
LEFT JOIN decided ON begun.ordinal = decided.ordinal
