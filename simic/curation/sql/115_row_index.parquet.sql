-- Part and row of the report behind each row of steps.parquet, in the same order. The snapshot's digest does not cover
-- it, because the same rows may lie in other parts in another home.
-- part: index in the manifest's ledger_parts; row: from 0, in that part.
-- grain:  one step of a usable episode
-- key:    part, row
-- inputs: reward_terms; $row_id_stride (rows that a part may have)
SELECT
    row_id // $row_id_stride::BIGINT AS part,
    row_id % $row_id_stride::BIGINT AS "row"
FROM reward_terms
ORDER BY
    run_id,
    step
