-- The eighth schema.
-- oldest: 5

-- A follower is a handler of the events of a flow: its topic is empty, which no message has.
ALTER TABLE ulak.handlers ADD COLUMN flow text COLLATE "C";
