-- What a learner reads. No column holds a wall-clock time: the same rows give the same bytes.
-- grain:  one step of a usable episode
-- key:    run_id, step
-- inputs: reports, repetitions, retold, reward_terms, returns, episode_heads, splits
WITH told AS (
    SELECT
        *,
        report_id::UUID AS told_id
    FROM reports
    ANTI JOIN (
        SELECT
            replace(report_id::VARCHAR, '-', '') AS report_id,
            landed_at,
            source,
            line
        FROM (FROM repetitions UNION ALL FROM retold)
    ) USING (report_id, landed_at, source, line)
)

SELECT
    told.run_id,
    told.step,
    told.report_id,
    told.host."set" AS "set",
    told.host.family AS family,
    told.host.key AS host_key,
    splits.split,
    told.controller,
    told.policy_version,
    told.state,
    told.final_state,
    told.available,
    told.action,
    told.relevant,
    told.log_prob_behaviour,
    told.outcome,
    told.metrics.validation_accuracy_before AS accuracy_before,
    told.metrics.validation_accuracy_after AS accuracy_after,
    told.metrics.test_accuracy AS test_accuracy,
    told.metrics.rent_parameters AS rent_parameters,
    told.metrics.committed_parameters AS committed_parameters,
    reward_terms.has_governor,
    told.terminated,
    told.truncated,
    reward_terms.contribution,
    reward_terms.is_hacking,
    reward_terms.is_ransomware,
    reward_terms.reward_progress,
    reward_terms.reward_rent,
    reward_terms.reward_penalty,
    reward_terms.reward_shaping,
    reward_terms.reward_effort,
    reward_terms.potential,
    reward_terms.reward,
    returns.return_to_go
FROM told
INNER JOIN reward_terms ON told.told_id = reward_terms.report_id
INNER JOIN returns ON told.told_id = returns.report_id
INNER JOIN splits ON told.host."set" = splits."set" AND told.host.key = splits.host_key
ORDER BY told.run_id, told.step
