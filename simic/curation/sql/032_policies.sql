-- Every policy that acted in an episode without a fault or was promoted here, with the number of newer ones; 0 is the
-- newest. Reports that are no such episode count for nothing, so that nobody makes experience stale with less. Neither
-- does judging experience, so that a landed trial makes no other experience stale. Expired episodes count, so that the
-- order of policies stays as their episodes expire.
-- grain:  one policy
-- key:    policy_version
-- inputs: episode_heads, episode_summaries, promotions (the ledger of champions)
WITH known AS (
    SELECT
        policy_version,
        min(known_at) AS known_at
    FROM (
        SELECT
            episode_heads.policy_version,
            episode_heads.issued_at AS known_at
        FROM episode_heads
        INNER JOIN episode_summaries USING (run_id)
        WHERE
            episode_heads.policy_version IS NOT NULL
            AND NOT episode_summaries.is_judging
            AND episode_summaries.fault IS NULL
        UNION ALL
        SELECT policy_version, promoted_at FROM promotions
    )
    GROUP BY policy_version
)

SELECT
    policy_version,
    rank() OVER (ORDER BY known_at DESC) - 1 AS versions_behind
FROM known
