-- What a learner reads. No column holds a wall-clock time: the same rows give the same bytes.
-- grain:  one step of a usable episode
-- key:    run_id, step
-- inputs: reports, reward_terms, returns
WITH nested AS (
    SELECT
        report_id,
        landed_at,
        source,
        line,
        state,
        final_state,
        available,
        action,
        relevant,
        log_prob_behaviour,
        outcome
    FROM reports
)

SELECT
    reward_terms.run_id,
    reward_terms.step,
    reward_terms.report_id,
    reward_terms."set",
    reward_terms.family,
    reward_terms.host_key,
    reward_terms.split,
    reward_terms.controller,
    reward_terms.policy_version,
    nested.state,
    nested.final_state,
    nested.available,
    nested.action,
    nested.relevant,
    nested.log_prob_behaviour,
    nested.outcome,
    reward_terms.accuracy_before,
    reward_terms.accuracy_after,
    reward_terms.test_accuracy,
    reward_terms.rent_parameters,
    reward_terms.committed_parameters,
    reward_terms.has_governor,
    reward_terms.terminated,
    reward_terms.truncated,
    reward_terms.reward_progress,
    reward_terms.reward_rent,
    reward_terms.reward_penalty,
    reward_terms.reward,
    returns.return_to_go
FROM reward_terms
INNER JOIN returns USING (run_id, step)
INNER JOIN nested USING (report_id, landed_at, source, line)
ORDER BY reward_terms.run_id, reward_terms.step
