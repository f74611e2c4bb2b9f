-- The usable episodes, one row each: the table to read first.
-- grain:  one usable episode
-- key:    run_id
-- inputs: episode_rows
SELECT * REPLACE (replace(run_id::VARCHAR, '-', '') AS run_id, split::VARCHAR AS split)
FROM episode_rows
ORDER BY run_id
