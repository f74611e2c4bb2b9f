-- Totals of each usable episode, branches included: averages over behaviour leave out rows with a branch_of. Sums are decimals of 12 digits, so they do not depend on the order of rows.
-- grain:  one usable episode
-- key:    run_id
-- inputs: reward_terms, returns, episode_heads, episode_verdicts, splits
WITH sums AS (
    SELECT
        run_id,
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
        count(*) FILTER (is_hacking)::BIGINT AS hacking_steps,
        count(*) FILTER (is_ransomware)::BIGINT AS ransomware_steps,
        sum(reward_progress::DECIMAL(38, 12))::DOUBLE AS reward_progress,
        sum(reward_rent::DECIMAL(38, 12))::DOUBLE AS reward_rent,
        sum(reward_penalty::DECIMAL(38, 12))::DOUBLE AS reward_penalty,
        sum(reward_shaping::DECIMAL(38, 12))::DOUBLE AS reward_shaping,
        sum(reward_effort::DECIMAL(38, 12))::DOUBLE AS reward_effort,
        sum(reward::DECIMAL(38, 12))::DOUBLE AS episode_return
    FROM reward_terms
    GROUP BY run_id
)

SELECT
    sums.run_id,
    heads."set",
    heads.family,
    heads.host_key,
    splits.split,
    heads.controller,
    heads.policy_version,
    heads.branch_of,
    heads.branch_step,
    verdicts.versions_behind,
    verdicts.quality,
    verdicts.steps,
    sums.* EXCLUDE (run_id),
    returns.returns[1] AS discounted_return
FROM sums
INNER JOIN episode_verdicts AS verdicts USING (run_id)
INNER JOIN episode_heads AS heads USING (run_id)
INNER JOIN splits USING ("set", host_key)
INNER JOIN returns USING (run_id)
