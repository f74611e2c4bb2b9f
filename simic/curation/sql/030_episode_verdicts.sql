-- Whether an episode may be used: null, or the first reason against it.
-- An episode expires as a whole, with its first report, so retention leaves no partial episodes behind.
-- grain:  one episode
-- key:    run_id
-- inputs: told_once; $oldest (older reports have expired), $horizon (epochs)
WITH chained AS (
    SELECT
        *,
        lead(state_accuracy) OVER (PARTITION BY run_id ORDER BY step, report_id) AS next_state_accuracy
    FROM told_once
),

told AS (
    SELECT
        run_id,
        count(*) AS steps,
        count(DISTINCT step) AS distinct_steps,
        min(step) AS first_step,
        max(step) AS last_step,
        min(issued_at) AS first_issued_at,
        count(DISTINCT ("set", family, host_key, controller, coalesce(policy_version, ''))) AS identities,
        bool_or(horizon <> $horizon) AS has_other_horizon,
        max_by(has_final_state AND (terminated OR truncated), step) AS has_end,
        count_if(terminated OR truncated) AS ends,
        bool_or(abs(accuracy_before - state_accuracy) > 1e-6) AS starts_elsewhere,
        bool_or(NOT (terminated OR truncated) AND abs(accuracy_after - next_state_accuracy) > 1e-6) AS leads_elsewhere
    FROM chained
    GROUP BY run_id
)

SELECT
    run_id,
    CASE
        WHEN first_issued_at < $oldest THEN 'expired'
        WHEN identities > 1 THEN 'mixed_identity'
        WHEN steps > distinct_steps THEN 'overlap'
        WHEN first_step > 0 OR last_step <> steps - 1 THEN 'gap'
        WHEN NOT has_end THEN 'unfinished'
        WHEN ends > 1 THEN 'ends_twice'
        WHEN has_other_horizon THEN 'other_horizon'
        WHEN starts_elsewhere OR leads_elsewhere THEN 'broken_chain'
    END AS reason
FROM told
