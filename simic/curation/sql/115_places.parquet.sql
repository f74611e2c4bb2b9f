-- Where the report behind each row of steps.parquet lies: row by row in the same order. It is no part of what a snapshot
-- is, for the same rows may lie in other parts elsewhere.
-- part: index in the manifest's ledger_parts; row: from 0, in that part.
-- grain:  one step of a usable episode
-- key:    part, row
-- inputs: reward_terms; $places (rows that a part may have)
SELECT
    place // $places::BIGINT AS part,
    place % $places::BIGINT AS "row"
FROM reward_terms
ORDER BY
    run_id,
    step
