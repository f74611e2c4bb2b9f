-- The sum of basic in the last step: final minus initial accuracy, and the rent of the whole episode. The undiscounted
-- return of an episode is the same in both.
-- summary: the sum of ``basic``, told at the end of the episode.
-- term reward_progress in [-$accuracy_scale, $accuracy_scale]: accuracy gained since the start, in the last step
-- term reward_rent in [-$rent * $parameters_most / $rent_parameters, 0]: rent of all epochs, in the last step
-- term reward_penalty in [-$governor_penalty, 0]: a panic, in the step it ended
-- grain:  one step of a usable episode
-- key:    run_id, step
-- inputs: usable_steps; $accuracy_scale, $rent, $rent_parameters, $governor_penalty
WITH terms AS (
    SELECT
        *,
        CASE
            WHEN has_final_state THEN $accuracy_scale::DOUBLE * (accuracy_after - start_accuracy) ELSE 0.0::DOUBLE
        END AS reward_progress,
        CASE
            WHEN has_final_state
                THEN 0.0 - $rent::DOUBLE * parameter_epochs::DOUBLE / $rent_parameters::DOUBLE / horizon::DOUBLE
            ELSE 0.0::DOUBLE
        END AS reward_rent,
        CASE WHEN has_governor THEN -$governor_penalty::DOUBLE ELSE 0.0::DOUBLE END AS reward_penalty
    FROM usable_steps
)

SELECT
    *,
    reward_progress + reward_rent + reward_penalty AS reward
FROM terms
