-- Discounted returns from each step to the end of its episode, folded from the last step backwards:
-- G(t) = r(t) + $gamma * G(t + 1). One fold per episode adds in one order, whatever the number of threads, and needs no
-- power of $gamma that a long episode could push to 0.
-- returns: list by step, from step 0.
-- grain:  one usable episode
-- key:    run_id
-- inputs: reward_terms; $gamma
WITH backwards AS (
    SELECT
        run_id,
        list([reward] ORDER BY step DESC) AS rewards
    FROM reward_terms
    GROUP BY run_id
)

SELECT
    run_id,
    list_reduce(rewards, lambda later, now: list_prepend(now[1] + $gamma::DOUBLE * later[1], later)) AS returns
FROM backwards
