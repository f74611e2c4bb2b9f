-- Violations of the invariants of a snapshot; any row stops the stage. The declared range of every term of the reward
-- family is checked too: see range_violations in curation/statements.py.
-- grain:  one violation
-- key:    none
-- inputs: reports, transitions, rejected_rows, reward_terms, returns, episode_heads, episode_rows, episode_verdicts, difficulty_rows,
--         range_violations; $accuracy_scale, $gamma, $shortest_horizon, $points_tolerance, $chain_tolerance, $max_versions_behind,
--         $max_bytes
WITH steps AS (
    SELECT
        reward_terms.*,
        reward_progress + reward_rent + reward_penalty + coalesce(reward_shaping, 0.0)
        + coalesce(reward_effort, 0.0) AS terms,
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

violations AS (
    SELECT 'step_twice' AS invariant, run_id, step, 'expected one row, found ' || count(*) AS violation FROM reward_terms
    GROUP BY run_id, step HAVING count(*) > 1
    UNION ALL
    SELECT 'terms_add_up', run_id, step, 'expected the sum ' || coalesce(terms::VARCHAR, 'null') || ', found ' || reward
    FROM steps
    WHERE NOT coalesce(abs(terms - reward) <= $points_tolerance, false)
    UNION ALL
    SELECT invariant, run_id, step, violation FROM range_violations
    UNION ALL
    SELECT
        'return_recursion', run_id, step,
        'expected ' || coalesce((reward + $gamma::DOUBLE * later_return)::VARCHAR, 'null')
        || ', found ' || coalesce(return_to_go::VARCHAR, 'null')
    FROM steps
    WHERE NOT coalesce(abs(reward + $gamma::DOUBLE * later_return - return_to_go) <= $points_tolerance, false)
    UNION ALL
    SELECT
        'shaping_telescopes', run_id, NULL,
        'expected ' || coalesce((last_potential - first_potential)::VARCHAR, 'null')
        || ', found ' || coalesce(shaping::VARCHAR, 'null')
    FROM potentials
    WHERE NOT coalesce(abs(shaping + first_potential - last_potential) <= $points_tolerance, false)
    UNION ALL
    SELECT
        'progress_telescopes', run_id, NULL,
        'expected ' || coalesce(($accuracy_scale::DOUBLE * (accuracy_after - accuracy_before))::VARCHAR, 'null')
        || ', found ' || coalesce(reward_progress::VARCHAR, 'null')
    FROM episode_rows
    WHERE NOT coalesce(
        abs(reward_progress - $accuracy_scale::DOUBLE * (accuracy_after - accuracy_before))
        -- each step may be off from its state and from the next: 031_episode_summaries.sql tolerates both
        <= $accuracy_scale::DOUBLE * 2 * $chain_tolerance * steps + $points_tolerance,
        false
    )
    UNION ALL
    SELECT
        'flags_follow_measurement', run_id, step,
        'expected flags exactly where a contribution was measured, found contribution '
        || coalesce(contribution::VARCHAR, 'null')
    FROM reward_terms
    WHERE (contribution IS NULL) <> (is_hacking IS NULL) OR (contribution IS NULL) <> (is_ransomware IS NULL)
    UNION ALL
    SELECT
        'host_on_two_sides', min(run_id), NULL,
        'expected one split for host ' || "set" || '/' || host_key || ', found ' || string_agg(DISTINCT split::VARCHAR, ', ')
    FROM episode_rows
    GROUP BY "set", host_key HAVING count(DISTINCT split) > 1
    UNION ALL
    SELECT 'no_judging_experience', run_id, step, 'expected no report of a trial or comparison, found one'
    FROM transitions
    SEMI JOIN reward_terms USING (row_id)
    WHERE is_judging
    UNION ALL
    SELECT 'quality_in_range', run_id, NULL, 'expected 0 to 1, found ' || coalesce(quality::VARCHAR, 'null')
    FROM episode_rows WHERE NOT coalesce(quality BETWEEN 0 AND 1, false)
    UNION ALL
    SELECT
        'within_staleness', run_id, NULL,
        'expected at most ' || $max_versions_behind::BIGINT || ' versions behind, found ' || versions_behind
    FROM episode_rows WHERE versions_behind > $max_versions_behind::BIGINT
    UNION ALL
    SELECT
        'within_byte_budget', max(run_id), NULL,
        'expected at most ' || $max_bytes::BIGINT || ' bytes in all, found ' || sum(size_bytes)
    FROM episode_verdicts
    WHERE reason IS NULL HAVING sum(size_bytes) > $max_bytes::BIGINT
    UNION ALL
    SELECT 'difficulty_in_range', NULL, NULL, 'expected 0 to 1, found ' || coalesce(difficulty::VARCHAR, 'null')
    FROM difficulty_rows
    WHERE NOT coalesce(difficulty BETWEEN 0 AND 1, false)
    UNION ALL
    SELECT 'every_step_has_an_episode', run_id, NULL, 'expected a row among the episodes, found none' FROM reward_terms
    ANTI JOIN episode_rows USING (run_id)
)

SELECT
    invariant,
    replace(run_id::VARCHAR, '-', '') AS run_id,
    step,
    violation
FROM violations
UNION ALL
SELECT
    'every_row_accounted',
    NULL,
    NULL,
    'expected ' || landed || ' landed rows, found ' || accounted || ' kept or rejected'
FROM counts
WHERE landed <> accounted
