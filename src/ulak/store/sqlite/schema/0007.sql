-- The seventh schema.
-- oldest: 6

-- A lease ends when the machine has been running for so many microseconds, or when it has started
-- again: `boot` is the id of the start it is counted from. Nobody can set that clock. Both are NULL
-- in a lease of an earlier release, which ends at `expires_at`, by the time of day.
ALTER TABLE workers ADD COLUMN boot TEXT;

ALTER TABLE workers ADD COLUMN ends_us INTEGER;
