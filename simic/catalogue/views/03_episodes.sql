-- Results of all episodes, complete or not, branches and judging experience included: averages over what a controller
-- does need `branch_of IS NULL`, those over what it learns from `trial_id IS NULL` too. A step that was reported under two ids counts once, as it landed first.
-- grain: one episode
-- key: run_id
-- inputs: steps
-- column run_id: Id of the episode.
-- column set: The host set.
-- column family: Family of the host.
-- column host_key: Key of the host, which determines its data, weights and noise.
-- column split: Data split of the host: train, validation or test.
-- column controller: Name of the acting controller.
-- column policy_version: Digest of the acting policy; null for a controller without weights.
-- column branch_of: Parent of a branch, the episode that it repeats up to branch_step; null in other episodes.
-- column branch_step: Step at which the action of a branch was enumerated, not chosen; null in other episodes.
-- column trial_id: Trial or comparison of judging experience, which no training uses; null in other episodes.
-- column judgement: Number of the judgement that the trial belongs to; null in a comparison and in other episodes.
-- column steps: Number of landed steps.
-- column is_complete: Whether all steps from 0 to an end have landed.
-- column ending: terminated, truncated, aborted (by the governor), or open.
-- column accuracy_before: Validation accuracy of the host before growth.
-- column accuracy_after: Validation accuracy of the network that is kept.
-- column test_accuracy: Test accuracy of the network that is kept; null while the episode is open.
-- column committed_parameters: Parameters of fossilised seeds.
-- column parameter_epochs: Sum over epochs of the parameters on which rent was due.
-- column germinated: Number of seeds that germinated.
-- column fossilized: Number of seeds that were fossilised.
-- column pruned: Number of seeds that the controller pruned.
-- column first_issued_at: Time at which the first report was made.
-- column last_issued_at: Time at which the last report was made.
WITH told_once AS (
    SELECT *
    FROM steps
    QUALIFY row_number() OVER (PARTITION BY run_id, step ORDER BY landed_at, source, line) = 1
)

SELECT
    run_id,
    min("set") AS "set",
    min(family) AS family,
    min(host_key) AS host_key,
    min(split) AS split,
    min(controller) AS controller,
    min(policy_version) AS policy_version,
    min(branch_of) AS branch_of,
    min(branch_step) AS branch_step,
    min(trial_id) AS trial_id,
    min(judgement) AS judgement,
    count(*) AS steps,
    min(step) = 0
        AND max(step) = count(*) - 1
        AND max_by(terminated OR truncated, step) AS is_complete,
    CASE
        WHEN bool_or(governor IS NOT NULL) THEN 'aborted'
        WHEN bool_or(terminated) THEN 'terminated'
        WHEN bool_or(truncated) THEN 'truncated'
        ELSE 'open'
    END AS ending,
    min_by(accuracy_before, step) AS accuracy_before,
    max_by(accuracy_after, step) AS accuracy_after,
    max_by(test_accuracy, step) AS test_accuracy,
    max_by(committed_parameters, step) AS committed_parameters,
    sum(rent_parameters)::BIGINT AS parameter_epochs,
    count_if(op = 'GERMINATE')::BIGINT AS germinated,
    count_if(op = 'FOSSILIZE')::BIGINT AS fossilized,
    count_if(op = 'PRUNE')::BIGINT AS pruned,
    min(issued_at) AS first_issued_at,
    max(issued_at) AS last_issued_at
FROM told_once
GROUP BY run_id
