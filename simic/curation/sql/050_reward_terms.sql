-- The terms of the reward, each a function of (state, action, next state) alone, and their sum.
-- range:  progress in [-$accuracy_scale, $accuracy_scale], rent <= 0, penalty in {-$governor_penalty, 0}; points
-- grain:  one step of a usable episode
-- key:    run_id, step
-- inputs: told_once, episode_verdicts, splits; $accuracy_scale, $rent, $rent_parameters, $horizon, $governor_penalty
WITH usable AS (
    SELECT told_once.*
    FROM told_once
    INNER JOIN episode_verdicts USING (run_id)
    WHERE reason IS NULL
),

terms AS (
    SELECT
        *,
        $accuracy_scale::DOUBLE * (accuracy_after - accuracy_before) AS reward_progress,
        0.0 - $rent::DOUBLE * rent_parameters::DOUBLE / $rent_parameters::DOUBLE / $horizon::DOUBLE AS reward_rent,
        CASE WHEN has_governor THEN -$governor_penalty::DOUBLE ELSE 0.0::DOUBLE END AS reward_penalty
    FROM usable
)

SELECT
    terms.*,
    splits.split,
    reward_progress + reward_rent + reward_penalty AS reward
FROM terms
INNER JOIN splits USING ("set", host_key)
