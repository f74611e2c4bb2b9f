-- Offenders against what a snapshot promises; anything here stops the stage.
-- grain:  one broken promise
-- key:    none
-- inputs: landed, rejected_rows, reward_terms, returns, episode_rows; $accuracy_scale, $governor_penalty, $gamma
WITH steps AS (
    SELECT
        reward_terms.*,
        return_to_go,
        lead(return_to_go, 1, 0.0) OVER (PARTITION BY run_id ORDER BY step) AS later_return
    FROM reward_terms
    LEFT JOIN returns USING (run_id, step)
),

counts AS (
    SELECT
        (SELECT count(*) FROM landed) AS landed,
        (SELECT count(*) FROM rejected_rows) + (SELECT count(*) FROM reward_terms) AS accounted
),

broken AS (
    SELECT 'step_twice' AS promise, run_id, step FROM steps GROUP BY run_id, step HAVING count(*) > 1
    UNION ALL
    SELECT 'terms_add_up', run_id, step FROM steps
    WHERE NOT coalesce(abs(reward_progress + reward_rent + reward_penalty - reward) <= 1e-9, false)
    UNION ALL
    SELECT 'progress_in_range', run_id, step FROM steps
    WHERE NOT coalesce(abs(reward_progress) <= $accuracy_scale::DOUBLE, false)
    UNION ALL
    SELECT 'rent_in_range', run_id, step FROM steps
    WHERE NOT coalesce(reward_rent <= 0 AND isfinite(reward_rent), false)
    UNION ALL
    SELECT 'penalty_in_range', run_id, step FROM steps
    WHERE NOT coalesce(reward_penalty IN (0.0, -$governor_penalty::DOUBLE), false)
    UNION ALL
    SELECT 'return_recursion', run_id, step FROM steps
    WHERE NOT coalesce(abs(reward + $gamma::DOUBLE * later_return - return_to_go) <= 1e-9, false)
    UNION ALL
    SELECT 'progress_telescopes', run_id, NULL FROM episode_rows
    WHERE NOT coalesce(
        abs(reward_progress - $accuracy_scale::DOUBLE * (accuracy_after - accuracy_before))
        <= $accuracy_scale::DOUBLE * 1e-6 * steps + 1e-9, -- a chain may be off by 1e-6 at each step
        false
    )
    UNION ALL
    SELECT 'host_on_two_sides', min(run_id), NULL FROM steps
    GROUP BY "set", host_key HAVING count(DISTINCT split) > 1
    UNION ALL
    SELECT 'every_row_accounted', landed::VARCHAR || ' landed, ' || accounted::VARCHAR || ' accounted', NULL
    FROM counts WHERE landed <> accounted
)

SELECT * FROM broken
