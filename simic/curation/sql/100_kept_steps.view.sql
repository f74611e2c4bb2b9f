-- The rows of the snapshot, with the row id of the report behind each.
-- grain:  one step of a usable episode
-- key:    run_id, step
-- inputs: reward_terms, returns, episode_heads, splits
SELECT
    heads.episode,
    terms.run_id,
    terms.step,
    terms.report_id,
    terms.content_id,
    heads."set",
    heads.family,
    heads.host_key,
    splits.split,
    heads.controller,
    heads.policy_version,
    heads.branch_of,
    heads.branch_step,
    terms.op,
    terms.accuracy_before,
    terms.accuracy_after,
    terms.test_accuracy,
    terms.rent_parameters,
    terms.committed_parameters,
    terms.has_governor,
    terms.terminated,
    terms.truncated,
    terms.contribution,
    terms.is_hacking,
    terms.is_ransomware,
    terms.reward_progress,
    terms.reward_rent,
    terms.reward_penalty,
    terms.reward_shaping,
    terms.reward_effort,
    terms.potential,
    terms.reward,
    returns.returns[terms.step + 1] AS return_to_go,
    terms.row_id
FROM reward_terms AS terms
INNER JOIN returns USING (run_id)
INNER JOIN episode_heads AS heads USING (run_id)
INNER JOIN splits ON heads."set" = splits."set" AND heads.host_key = splits.host_key
