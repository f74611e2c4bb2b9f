-- The terms of the reward, each a function of the transition and of totals of its episode, and their sum. Terms that
-- the family does not have are null.
-- grain:  one step of a usable episode
-- key:    run_id, step
-- inputs: family_terms (the file of the family in rewards/)
WITH terms AS (
    FROM family_terms
    UNION ALL BY NAME
    SELECT
        NULL::DOUBLE AS reward_shaping,
        NULL::DOUBLE AS reward_effort,
        NULL::DOUBLE AS potential,
        NULL::DOUBLE AS next_potential
    WHERE false
)

SELECT
    report_id,
    run_id,
    step,
    content_id,
    row_id,
    op,
    has_governor,
    terminated,
    truncated,
    accuracy_before,
    accuracy_after,
    test_accuracy,
    rent_parameters,
    committed_parameters,
    contribution,
    is_hacking,
    is_ransomware,
    reward_progress,
    reward_rent,
    reward_penalty,
    reward_shaping,
    reward_effort,
    potential,
    next_potential,
    reward
FROM terms
