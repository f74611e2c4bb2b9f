-- What a person reads first.
-- grain:  one usable episode
-- key:    run_id
-- inputs: episode_rows
SELECT *
FROM episode_rows
ORDER BY run_id
