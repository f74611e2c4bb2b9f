-- basic, plus $gamma phi(next state) - phi(state) (Ng, Harada and Russell 1999), which leaves the optimal policy as it is.
-- phi(state) = -$potential (1 - growth as a share of the seeds that the host may have). It depends on the state only, is
-- never above 0, and is 0 after the end, so with unchanged measurements no step that grows, waits or ends costs anything.
-- A seed counts 0.1 to 0.9 by its stage, plus up to 0.1 for its measured contribution; unmeasured adds nothing. Stages
-- are 0.2 apart, so no measurement outweighs a stage. A falling contribution costs at most 0.2 of a seed's share.
-- summary: ``basic`` plus the change of a potential, which no policy can gain from.
-- constant potential = 2.0 in [0, 100]: Points by which the potential rises from a host that has grown nothing to one that has grown all it may.
-- constant contribution_full = 0.1 in (0, 1]: Contribution, as a share of accuracy, beyond which a seed's potential rises no further.
-- term reward_progress in [-$accuracy_scale, $accuracy_scale]: accuracy gained
-- term reward_rent in [-$rent * $parameters_most / $rent_parameters / $shortest_horizon, 0]: seeds alive or fossilised
-- term reward_penalty in [-$governor_penalty, 0]: a panic, in the step it ended
-- term reward_shaping in [-$potential, $potential]: change of the potential
-- grain:  one step of a usable episode
-- key:    run_id, step
-- inputs: usable_steps; $accuracy_scale, $rent, $rent_parameters, $shortest_horizon, $governor_penalty, $potential,
--         $contribution_full, $gamma
WITH grown AS (
    SELECT
        *,
        [
            list_sum(
                list_transform(
                    found,
                    lambda seed:
                        CASE seed.stage
                            WHEN 'GERMINATED' THEN 0.1::DOUBLE
                            WHEN 'TRAINING' THEN 0.3::DOUBLE
                            WHEN 'BLENDING' THEN 0.5::DOUBLE
                            WHEN 'HOLDING' THEN 0.7::DOUBLE
                            WHEN 'FOSSILIZED' THEN 0.9::DOUBLE
                        END
                        + 0.1::DOUBLE * greatest(
                            -1.0::DOUBLE,
                            least(1.0::DOUBLE, coalesce(seed.contribution, 0.0::DOUBLE) / $contribution_full::DOUBLE)
                        )
                )
            )
            FOR found IN [seeds, next_seeds]
        ] AS worths
    FROM usable_steps
),

potentials AS (
    SELECT
        * EXCLUDE (worths),
        [
            -$potential::DOUBLE
            * (1.0::DOUBLE - least(1.0::DOUBLE, coalesce(worth / nullif(seeds_max, 0)::DOUBLE, 0.0::DOUBLE)))
            FOR worth IN worths
        ] AS phis
    FROM grown
),

terms AS (
    SELECT
        * EXCLUDE (phis),
        phis[1] AS potential,
        if(terminated, 0.0::DOUBLE, phis[2]) AS next_potential,
        $accuracy_scale::DOUBLE * (accuracy_after - accuracy_before) AS reward_progress,
        0.0 - $rent::DOUBLE * rent_parameters::DOUBLE / $rent_parameters::DOUBLE / horizon::DOUBLE AS reward_rent,
        CASE WHEN has_governor THEN -$governor_penalty::DOUBLE ELSE 0.0::DOUBLE END AS reward_penalty
    FROM potentials
),

shaped AS (
    SELECT
        *,
        $gamma::DOUBLE * next_potential - potential AS reward_shaping
    FROM terms
)

SELECT
    *,
    reward_progress + reward_rent + reward_penalty + reward_shaping AS reward
FROM shaped
