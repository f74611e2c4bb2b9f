-- sparse, plus a price on every germination and prune, so that random actions cost something before the last step.
-- summary: ``sparse``, and a price on every seed placed and every seed given up.
-- constant germination_cost = 0.1 in [0, 1000]: Points a germination costs.
-- constant prune_cost = 0.2 in [0, 1000]: Points a prune costs.
-- term reward_progress in [-$accuracy_scale, $accuracy_scale]: accuracy gained since the start, in the last step
-- term reward_rent in [-$rent * $parameters_most / $rent_parameters, 0]: rent of all epochs, in the last step
-- term reward_penalty in [-$governor_penalty, 0]: a panic, in the step it ended
-- term reward_effort in [-greatest($germination_cost, $prune_cost), 0]: a germination or a prune
-- grain:  one step of a usable episode
-- key:    run_id, step
-- inputs: usable_steps; $accuracy_scale, $rent, $rent_parameters, $governor_penalty, $germination_cost, $prune_cost
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
        CASE WHEN has_governor THEN -$governor_penalty::DOUBLE ELSE 0.0::DOUBLE END AS reward_penalty,
        CASE op
            WHEN 'GERMINATE' THEN -$germination_cost::DOUBLE
            WHEN 'PRUNE' THEN -$prune_cost::DOUBLE
            ELSE 0.0::DOUBLE
        END AS reward_effort
    FROM usable_steps
)

SELECT
    *,
    reward_progress + reward_rent + reward_penalty + reward_effort AS reward
FROM terms
