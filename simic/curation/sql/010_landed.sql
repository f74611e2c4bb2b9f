-- Whose step each landed row tells, repetitions included; ids as 16 bytes, since every row is held at once.
-- place: where the row lies, and its key from here on.
-- grain:  one landed row
-- key:    place
-- inputs: reports (the parts that the ledger lists)
SELECT
    report_id::UUID AS report_id,
    run_id::UUID AS run_id,
    step::INTEGER AS step,
    place
FROM reports
