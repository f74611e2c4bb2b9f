-- The result of every controller on every host, in every judgement, on every further set of a run, in every `simic trials`, `simic compare` and `simic ab`, and in every choice among training seeds.
-- grain: one host under one controller in one trial report
-- key: receipt, controller, host_key
-- inputs: internal.trial_reports
-- column receipt: Receipt of the trials, below data/receipts.
-- column stage: validate for the judgement of a candidate, trials for everything else.
-- column policy: Digest of the candidate; null in all trials but judgements and further sets.
-- column champion: Digest of the champion at that time; null without one and in trials.
-- column set: The host set.
-- column family: The family of the host.
-- column host_key: Key of the host: fixes its data, weights and noise.
-- column controller: Name of the controller; candidate and champion are policies.
-- column episode_return: Undiscounted sum of the rewards of the episode, in points of the basic reward family; with the test accuracy in place of the validation accuracy for simulate and hindsight, which chose by it.
-- column over_wait: Difference to the return of wait on the same host, in points, both by test accuracy for simulate and hindsight; 0 for wait itself.
-- column test_accuracy: Test accuracy of the network that is kept, 0 to 1.
-- column rent_points: Points of rent in the return; null in receipts of earlier versions.
-- column finished_at: Time at which the trials ended.
WITH controllers AS (
    SELECT
        * EXCLUDE (controllers),
        unnest(controllers) AS tried
    FROM internal.trial_reports
),

hosts AS (
    SELECT
        *,
        unnest(generate_series(1, len(host_keys))) AS position
    FROM controllers
),

results AS (
    SELECT
        *,
        tried.controller AS controller,
        host_keys[position] AS host_key,
        tried.returns[position] AS episode_return
    FROM hosts
)

SELECT
    results.receipt,
    results.stage,
    results.policy,
    results.champion,
    results."set",
    results.families[results.position] AS family,
    results.host_key,
    results.controller,
    results.episode_return,
    results.episode_return
    - CASE
        WHEN results.tried.scored_by = 'test' THEN waited.tried.test_returns[waited.position]
        ELSE waited.episode_return
    END AS over_wait,
    results.tried.test_accuracies[results.position] AS test_accuracy,
    results.tried.rents[results.position] AS rent_points,
    results.finished_at
FROM results
LEFT JOIN results AS waited
    ON
        results.receipt = waited.receipt
        AND results.host_key = waited.host_key
        AND waited.controller = 'wait'
