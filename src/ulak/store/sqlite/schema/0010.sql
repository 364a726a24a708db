-- The tenth schema.
-- oldest: 7

-- A follower is a handler of the events of a flow: its topic is empty, which no message has.
ALTER TABLE handlers ADD COLUMN flow TEXT;
