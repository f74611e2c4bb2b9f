-- Host, controller and parent of an episode, from its first report.
-- branch_of, branch_step: the parent of a branch, and the step at which the branch leaves it; null in other episodes.
-- trial_id: the trial that the episode judges in; null in other episodes.
-- episode: number in the order of run ids; sorting rows by it is faster than by the ids.
-- grain:  one episode that has a step 0
-- key:    run_id
-- inputs: reports, repetitions, content_duplicates
WITH firsts AS (
    SELECT
        report_id::UUID AS report_id,
        run_id::UUID AS run_id,
        host."set" AS "set",
        host.family AS family,
        host.key AS host_key,
        controller,
        policy_version,
        branch_of,
        branch_step,
        trial_id,
        issued_at,
        metrics.validation_accuracy_before AS start_accuracy,
        row_id
    FROM reports
    WHERE step = 0
)

SELECT
    * EXCLUDE (report_id, row_id),
    row_number() OVER (ORDER BY run_id) AS episode
FROM firsts
ANTI JOIN (FROM repetitions UNION ALL FROM content_duplicates) USING (row_id)
QUALIFY row_number() OVER (PARTITION BY run_id ORDER BY report_id) = 1
