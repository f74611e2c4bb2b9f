-- What each usable episode came to.
-- grain:  one usable episode
-- key:    run_id
-- inputs: reward_terms, returns
WITH steps AS (
    SELECT
        reward_terms.*,
        return_to_go
    FROM reward_terms
    INNER JOIN returns USING (run_id, step)
)

SELECT
    run_id,
    any_value("set") AS "set",
    any_value(family) AS family,
    any_value(host_key) AS host_key,
    any_value(split) AS split,
    any_value(controller) AS controller,
    any_value(policy_version) AS policy_version,
    count(*) AS steps,
    bool_or(terminated) AS terminated,
    bool_or(truncated) AS truncated,
    bool_or(has_governor) AS has_governor,
    count_if(op = 'GERMINATE')::BIGINT AS germinated,
    count_if(op = 'FOSSILIZE')::BIGINT AS fossilized,
    count_if(op = 'PRUNE')::BIGINT AS pruned,
    min_by(accuracy_before, step) AS accuracy_before,
    max_by(accuracy_after, step) AS accuracy_after,
    max_by(test_accuracy, step) AS test_accuracy,
    max_by(committed_parameters, step) AS committed_parameters,
    list_sum(list(reward_progress ORDER BY step)) AS reward_progress,
    list_sum(list(reward_rent ORDER BY step)) AS reward_rent,
    list_sum(list(reward_penalty ORDER BY step)) AS reward_penalty,
    list_sum(list(reward ORDER BY step)) AS episode_return,
    min_by(return_to_go, step) AS discounted_return
FROM steps
GROUP BY run_id
