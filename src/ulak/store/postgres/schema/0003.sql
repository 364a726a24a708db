-- The third schema.

-- The W3C traceparent of the submit, so that the stages belong to its trace; NULL without one.
ALTER TABLE ulak.payloads ADD COLUMN trace text;
