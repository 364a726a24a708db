-- The fourth schema.

-- The W3C traceparent of the submit, so that the stages belong to its trace; NULL without one.
ALTER TABLE payloads ADD COLUMN trace TEXT;
