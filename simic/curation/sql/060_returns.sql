-- Discounted return from each step to the end of its episode, folded from the last step backwards:
-- G(t) = r(t) + $gamma * G(t + 1). One fold per episode adds in one order, whatever the number of threads.
-- grain:  one step of a usable episode
-- key:    run_id, step
-- inputs: reward_terms; $gamma
WITH backwards AS (
    SELECT
        run_id,
        list([reward] ORDER BY step DESC) AS rewards
    FROM reward_terms
    GROUP BY run_id
),

folded AS (
    SELECT
        run_id,
        list_reduce(rewards, lambda later, now: list_prepend(now[1] + $gamma::DOUBLE * later[1], later)) AS returns
    FROM backwards
)

SELECT
    run_id,
    unnest(generate_series(0, len(returns) - 1)) AS step,
    unnest(returns) AS return_to_go
FROM folded
