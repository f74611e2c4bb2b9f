-- Whether an episode may be used: null, or the reason against it. Beyond the byte budget whole episodes leave: those of
-- the oldest days first, of a day the least useful first.
-- grain:  one episode
-- key:    run_id
-- inputs: judged; $max_bytes (null: no limit)
WITH ranked AS (
    SELECT
        run_id,
        sum(size_bytes) OVER (
            ORDER BY first_issued_at::DATE DESC, quality DESC, run_id ROWS UNBOUNDED PRECEDING
        ) AS bytes_so_far
    FROM judged
    WHERE reason IS NULL
)

SELECT
    judged.* REPLACE (if(ranked.bytes_so_far > $max_bytes::BIGINT, 'evicted', judged.reason) AS reason)
FROM judged
LEFT JOIN ranked USING (run_id)
