-- Episode and step of every landed row, repetitions included; ids take 16 bytes, because all rows are in memory.
-- row_id: part and row number, the key of a landed row in all later statements.
-- grain:  one landed row
-- key:    row_id
-- inputs: reports (the parts that the ledger lists)
SELECT
    report_id::UUID AS report_id,
    run_id::UUID AS run_id,
    step::INTEGER AS step,
    row_id
FROM reports
