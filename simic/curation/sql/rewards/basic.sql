-- Progress minus rent, per epoch. Trials judge by these points, whatever family a learner is trained on.
-- term reward_progress in [-$accuracy_scale, $accuracy_scale]: accuracy gained
-- term reward_rent in [-$rent * $parameters_most / $rent_parameters / $shortest_horizon, 0]: seeds alive or fossilised
-- term reward_penalty in [-$governor_penalty, 0]: a panic, in the step it ended
-- grain:  one step of a usable episode
-- key:    run_id, step
-- inputs: usable_steps; $accuracy_scale, $rent, $rent_parameters, $shortest_horizon, $governor_penalty
WITH terms AS (
    SELECT
        *,
        $accuracy_scale::DOUBLE * (accuracy_after - accuracy_before) AS reward_progress,
        0.0 - $rent::DOUBLE * rent_parameters::DOUBLE / $rent_parameters::DOUBLE / horizon::DOUBLE AS reward_rent,
        CASE WHEN has_governor THEN -$governor_penalty::DOUBLE ELSE 0.0::DOUBLE END AS reward_penalty
    FROM usable_steps
)

SELECT
    *,
    reward_progress + reward_rent + reward_penalty AS reward
FROM terms
