-- The inputs of a reward: one transition (state, action, next state) and totals of its episode.
-- contribution: the largest measured of any seed after the step; null if none was measured, and so are the flags.
-- is_hacking: a seed contributes more than $hacking_ratio times the improvement of the host since its start.
-- is_ransomware: a seed contributes over $ransom_contribution although the host lost over $ransom_loss since its start.
-- grain:  one step of a usable episode
-- key:    run_id, step
-- inputs: transitions, episode_verdicts; $hacking_ratio, $ransom_contribution, $ransom_loss (accuracies)
WITH usable AS (
    SELECT
        run_id,
        start_accuracy,
        parameter_epochs
    FROM episode_verdicts
    WHERE reason IS NULL
),

measured AS (
    SELECT
        *,
        list_max(list_transform(next_seeds, lambda seed: seed.contribution)) AS contribution,
        next_accuracy - start_accuracy AS improvement
    FROM transitions
    INNER JOIN usable USING (run_id)
)

SELECT
    *,
    CASE
        WHEN contribution IS NOT NULL
            THEN improvement > 0 AND contribution > $hacking_ratio::DOUBLE * improvement
    END AS is_hacking,
    CASE
        WHEN contribution IS NOT NULL
            THEN contribution > $ransom_contribution::DOUBLE AND improvement < -$ransom_loss::DOUBLE
    END AS is_ransomware
FROM measured
