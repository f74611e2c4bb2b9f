-- Offenders against what a snapshot promises; anything here stops the stage. The declared range of every term of the
-- family in use is checked too: see range_offenders in curation/families.py.
-- grain:  one broken promise
-- key:    none
-- inputs: reports, rejected_rows, reward_terms, returns, episode_heads, episode_rows, episode_verdicts, difficulty_rows,
--         range_offenders; $accuracy_scale, $gamma, $horizon, $points_tolerance, $chain_tolerance, $max_versions_behind,
--         $max_bytes
WITH steps AS (
    SELECT
        reward_terms.*,
        returns[step + 1] AS return_to_go,
        if(step + 1 < len(returns), returns[step + 2], 0.0) AS later_return
    FROM reward_terms
    LEFT JOIN returns USING (run_id)
),

potentials AS (
    SELECT
        run_id,
        min_by(potential, step) AS first_potential,
        max_by(next_potential, step) * power($gamma::DOUBLE, count(*)) AS last_potential,
        sum(power($gamma::DOUBLE, step) * reward_shaping) AS shaping
    FROM reward_terms
    WHERE reward_shaping IS NOT NULL
    GROUP BY run_id
),

counts AS (
    SELECT
        (SELECT count(*) FROM reports) AS landed,
        (SELECT count(*) FROM rejected_rows) + (SELECT count(*) FROM reward_terms) AS accounted
),

broken AS (
    SELECT 'step_twice' AS promise, run_id, step FROM reward_terms GROUP BY run_id, step HAVING count(*) > 1
    UNION ALL
    SELECT 'terms_add_up', run_id, step FROM steps
    WHERE NOT coalesce(
        abs(
            reward_progress + reward_rent + reward_penalty + coalesce(reward_shaping, 0.0)
            + coalesce(reward_effort, 0.0) - reward
        ) <= $points_tolerance,
        false
    )
    UNION ALL
    SELECT promise, run_id, step FROM range_offenders
    UNION ALL
    SELECT 'return_recursion', run_id, step FROM steps
    WHERE NOT coalesce(abs(reward + $gamma::DOUBLE * later_return - return_to_go) <= $points_tolerance, false)
    UNION ALL
    SELECT 'shaping_telescopes', run_id, NULL FROM potentials
    WHERE NOT coalesce(abs(shaping + first_potential - last_potential) <= $points_tolerance, false)
    UNION ALL
    SELECT 'progress_telescopes', run_id, NULL FROM episode_rows
    WHERE NOT coalesce(
        abs(reward_progress - $accuracy_scale::DOUBLE * (accuracy_after - accuracy_before))
        -- each step may be off from its state and from the next: 034_judged.sql lets both pass
        <= $accuracy_scale::DOUBLE * 2 * $chain_tolerance * steps + $points_tolerance,
        false
    )
    UNION ALL
    SELECT 'flags_follow_measurement', run_id, step FROM reward_terms
    WHERE (contribution IS NULL) <> (is_hacking IS NULL) OR (contribution IS NULL) <> (is_ransomware IS NULL)
    UNION ALL
    SELECT 'host_on_two_sides', min(run_id), NULL FROM episode_rows
    GROUP BY "set", host_key HAVING count(DISTINCT split) > 1
    UNION ALL
    SELECT 'quality_in_range', run_id, NULL FROM episode_rows WHERE NOT coalesce(quality BETWEEN 0 AND 1, false)
    UNION ALL
    SELECT 'within_staleness', run_id, NULL FROM episode_rows WHERE versions_behind > $max_versions_behind::BIGINT
    UNION ALL
    SELECT 'within_byte_budget', max(run_id), NULL FROM episode_verdicts
    WHERE reason IS NULL HAVING sum(size_bytes) > $max_bytes::BIGINT
    UNION ALL
    SELECT 'difficulty_in_range', NULL, NULL FROM difficulty_rows
    WHERE NOT coalesce(difficulty BETWEEN 0 AND 1, false)
    UNION ALL
    SELECT 'every_step_has_an_episode', run_id, NULL FROM reward_terms
    ANTI JOIN episode_rows USING (run_id)
)

SELECT
    promise,
    replace(run_id::VARCHAR, '-', '') AS run_id,
    step
FROM broken
UNION ALL
SELECT
    'every_row_accounted',
    landed::VARCHAR || ' landed, ' || accounted::VARCHAR || ' accounted',
    NULL
FROM counts
WHERE landed <> accounted
