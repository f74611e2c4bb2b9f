-- Every policy that acted or was promoted, with the number of newer ones; 0 is the newest. Judging experience counts for
-- nothing here, so that a landed trial makes no other experience stale.
-- grain:  one policy
-- key:    policy_version
-- inputs: episode_heads, promotions (the ledger of champions)
WITH known AS (
    SELECT
        policy_version,
        min(known_at) AS known_at
    FROM (
        SELECT policy_version, issued_at AS known_at
        FROM episode_heads
        WHERE policy_version IS NOT NULL AND trial_id IS NULL
        UNION ALL
        SELECT policy_version, promoted_at FROM promotions
    )
    GROUP BY policy_version
)

SELECT
    policy_version,
    rank() OVER (ORDER BY known_at DESC) - 1 AS versions_behind
FROM known
