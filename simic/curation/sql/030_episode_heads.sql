-- Who grew which host, as an episode's first report says, and how much memory one of its steps takes.
-- episode: its number in the order of run ids, by which rows are sorted faster than by the ids.
-- bytes_per_step: 8 for each value of the state and its masks, whatever the compression.
-- grain:  one episode that has a step 0
-- key:    run_id
-- inputs: reports, repetitions, retold
WITH firsts AS (
    SELECT
        report_id::UUID AS report_id,
        run_id::UUID AS run_id,
        host."set" AS "set",
        host.family AS family,
        host.key AS host_key,
        controller,
        policy_version,
        issued_at,
        metrics.validation_accuracy_before AS start_accuracy,
        place,
        8 * (
            64 + 21 * len(state.slots) + 7 * len(state.graph.layers)
            + 2 * (len(state.graph.connects) + len(state.graph.monitors))
        ) AS bytes_per_step
    FROM reports
    WHERE step = 0
)

SELECT
    * EXCLUDE (report_id, place),
    row_number() OVER (ORDER BY run_id) AS episode
FROM firsts
ANTI JOIN (FROM repetitions UNION ALL FROM retold) USING (place)
QUALIFY row_number() OVER (PARTITION BY run_id ORDER BY report_id) = 1
