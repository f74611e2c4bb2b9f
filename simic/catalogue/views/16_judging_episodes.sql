-- All landed judging experience: episodes of judgements and comparisons on test hosts, which no snapshot holds.
-- grain: one episode
-- key: run_id
-- inputs: episodes, judgements
-- column run_id: Id of the episode.
-- column trial_id: Id of the trial or comparison.
-- column judgement: Number of the judgement; null in a comparison. View judgements has all.
-- column role: What the policy was in that judgement: candidate or champion; null for controllers without weights, in a comparison, and in judgements of other homes.
-- column controller: Name of the acting controller.
-- column policy: Digest of the acting policy; null for a controller without weights.
-- column set: The host set.
-- column family: Family of the host.
-- column host_key: Key of the host, which determines its data, weights and noise.
-- column split: Data split of the host; test, unless another program wrote the report.
-- column is_complete: Whether all steps from 0 to an end have landed.
-- column ending: terminated, truncated, aborted (by the governor), or open.
-- column accuracy_before: Validation accuracy of the host before growth.
-- column accuracy_after: Validation accuracy of the network that is kept.
-- column test_accuracy: Test accuracy of the network that is kept; null while the episode is open.
-- column issued_at: Time at which the trial began.
SELECT
    episodes.run_id,
    episodes.trial_id,
    episodes.judgement,
    CASE episodes.policy_version
        WHEN judgements.policy THEN 'candidate'
        WHEN judgements.champion THEN 'champion'
    END AS role,
    episodes.controller,
    episodes.policy_version AS policy,
    episodes."set",
    episodes.family,
    episodes.host_key,
    episodes.split,
    episodes.is_complete,
    episodes.ending,
    episodes.accuracy_before,
    episodes.accuracy_after,
    episodes.test_accuracy,
    episodes.first_issued_at AS issued_at
FROM episodes
LEFT JOIN judgements ON episodes.judgement = judgements.ordinal
WHERE episodes.trial_id IS NOT NULL
