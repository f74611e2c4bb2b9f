-- Discounted return from each step to the end of its episode, folded from the last step backwards:
-- G(t) = r(t) + $gamma * G(t + 1). One fold per episode adds in one order, whatever the number of threads, and needs no
-- power of $gamma that a long episode could push to 0.
-- grain:  one step of a usable episode
-- key:    report_id; run_id, step
-- inputs: reward_terms; $gamma
WITH backwards AS (
    SELECT
        run_id,
        list(report_id ORDER BY step) AS report_ids,
        list([reward] ORDER BY step DESC) AS rewards
    FROM reward_terms
    GROUP BY run_id
),

folded AS (
    SELECT
        run_id,
        report_ids,
        list_reduce(rewards, lambda later, now: list_prepend(now[1] + $gamma::DOUBLE * later[1], later)) AS returns
    FROM backwards
)

SELECT
    run_id,
    unnest(generate_series(0, len(returns) - 1))::INTEGER AS step,
    unnest(report_ids) AS report_id,
    unnest(returns) AS return_to_go
FROM folded
