-- What each episode came to, complete or not. A step told again under another id counts once, as it landed first.
-- grain: one episode
-- key: run_id
-- inputs: steps
-- column run_id: The episode.
-- column set: The world the host belongs to.
-- column family: The host's family.
-- column host_key: Fixes the host's data, weights and noise.
-- column split: train, validation or test, by the host's key.
-- column controller: Who decided.
-- column policy_version: Digest of the acting policy; null for a controller without weights.
-- column steps: Steps landed.
-- column is_complete: Steps 0, 1, 2 ... up to an end.
-- column ending: terminated, truncated, aborted (by the governor), or open.
-- column accuracy_before: Validation accuracy of the untouched host.
-- column accuracy_after: Validation accuracy of the network kept at the end.
-- column test_accuracy: Of the network kept; null while open.
-- column committed_parameters: Parameters of its fossilised seeds.
-- column parameter_epochs: Parameters times epochs for which rent was due.
-- column germinated: Seeds placed.
-- column fossilized: Seeds kept.
-- column pruned: Seeds removed on purpose.
-- column first_issued_at: When its first report was made.
-- column last_issued_at: When its last report was made.
WITH told_once AS (
    SELECT *
    FROM steps
    QUALIFY row_number() OVER (PARTITION BY run_id, step ORDER BY landed_at, source, report_id) = 1
)

SELECT
    run_id,
    min("set") AS "set",
    min(family) AS family,
    min(host_key) AS host_key,
    min(split) AS split,
    min(controller) AS controller,
    min(policy_version) AS policy_version,
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
