-- The result of every controller in every judgement, on every further set of a run, in every `simic trials`, `simic compare` and `simic ab`, and in every choice among training seeds, over all hosts and within each family.
-- The seals of the receipts are not checked here; `simic doctor --deep` checks them.
-- grain: one controller over all hosts, or over those of one family, in one trial report
-- key: receipt, controller, family
-- inputs: internal.trial_reports
-- column receipt: Receipt of the trials, below data/receipts.
-- column stage: validate for the judgement of a candidate, trials for everything else.
-- column policy: Digest of the candidate, a policy or Karn; null in all trials but judgements and further sets.
-- column champion: Digest of the champion at that time; null without one and in trials.
-- column snapshot: Digest of the snapshot that the candidate learned from; null in trials.
-- column set: The host set.
-- column family: The family of the hosts; null for the row over all hosts.
-- column controller: Name of the controller; candidate and champion are policies; policy_alone is the policy without Karn in a judgement of Karn.
-- column episodes: Number of hosts.
-- column scored_by: Accuracy that returns and their differences end with: validation, or test for the arms simulate and hindsight, which take the best of several episodes by validation accuracy.
-- column mean_return: Mean return of an episode, in points of the basic reward family.
-- column over_wait: Mean paired difference to the return of wait on the same hosts, in points; null for wait and for a single host.
-- column over_wait_lower: Lower bound of its interval, in points: of a bootstrap over all hosts, Student's if a family has fewer than 30 hosts and within a family.
-- column over_wait_upper: Upper bound of that interval.
-- column confidence: Confidence level of the interval, 0.5 to 1.
-- column test_accuracy: Mean test accuracy of the network that is kept, 0 to 1.
-- column validation_accuracy: Mean validation accuracy of the network that is kept, 0 to 1.
-- column committed_parameters: Mean number of parameters in fossilised seeds.
-- column test_over_wait: Mean paired difference to the test accuracy of wait on the same hosts, -1 to 1; null for wait and for a single host, and in receipts of earlier versions.
-- column test_over_wait_lower: Lower bound of its interval, of the same kind.
-- column test_over_wait_upper: Upper bound of that interval.
-- column host_parameters: Mean number of trainable parameters of the hosts without seeds; null in receipts of earlier versions.
-- column extra_compute: Mean share of parameters of seeds times their epochs in those of the host times the horizon; null in receipts of earlier versions.
-- column controller_compute: Mean share of the multiply-adds of a policy's decisions in those of the host's training; null in receipts of earlier versions.
-- column probe_compute: The same share of the contributions and gradients of seeds that observations show; null in receipts of earlier versions.
-- column illegal_actions: Decisions that the masks forbid; null for the rows by family.
-- column governor_events: Episodes that the governor ended; null for the rows by family.
-- column seed: Root seed.
-- column code_version: Version of the code that ran the trials.
-- column finished_at: Time at which the trials ended.
WITH controllers AS (
    SELECT
        * EXCLUDE (controllers),
        unnest(controllers) AS tried
    FROM internal.trial_reports
),

families AS (
    SELECT
        *,
        unnest(map_entries(tried.by_family)) AS entry
    FROM controllers
),

results AS (
    SELECT
        *,
        NULL::VARCHAR AS family,
        tried.episodes AS episodes,
        tried.mean_return AS mean_return,
        tried.over_wait AS difference,
        tried.test_accuracy AS test_accuracy,
        tried.validation_accuracy AS validation_accuracy,
        tried.committed_parameters AS committed_parameters,
        tried.test_over_wait AS tested,
        tried.host_parameters AS host_parameters,
        tried.extra_compute AS extra_compute,
        tried.controller_compute AS controller_compute,
        tried.probe_compute AS probe_compute,
        tried.illegal_actions AS illegal_actions,
        tried.governor_events AS governor_events
    FROM controllers
    UNION ALL BY NAME
    SELECT
        * EXCLUDE (entry),
        entry.key AS family,
        entry.value.episodes AS episodes,
        entry.value.mean_return AS mean_return,
        entry.value.over_wait AS difference,
        entry.value.test_accuracy AS test_accuracy,
        entry.value.validation_accuracy AS validation_accuracy,
        entry.value.committed_parameters AS committed_parameters,
        entry.value.test_over_wait AS tested,
        entry.value.host_parameters AS host_parameters,
        entry.value.extra_compute AS extra_compute,
        entry.value.controller_compute AS controller_compute,
        entry.value.probe_compute AS probe_compute
    FROM families
)

SELECT
    receipt,
    stage,
    policy,
    champion,
    "snapshot",
    "set",
    family,
    tried.controller AS controller,
    episodes,
    coalesce(tried.scored_by, 'validation') AS scored_by,
    mean_return,
    difference.mean AS over_wait,
    difference.lower AS over_wait_lower,
    difference.upper AS over_wait_upper,
    difference.confidence AS confidence,
    test_accuracy,
    validation_accuracy,
    committed_parameters,
    tested.mean AS test_over_wait,
    tested.lower AS test_over_wait_lower,
    tested.upper AS test_over_wait_upper,
    host_parameters,
    extra_compute,
    controller_compute,
    probe_compute,
    illegal_actions,
    governor_events,
    seed,
    code_version,
    finished_at
FROM results
