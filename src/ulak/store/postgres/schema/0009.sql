-- The ninth schema.
-- oldest: 5

-- Flows that were ever stopped or followed. A lone job is stored by a statement that looks here
-- alone, and fails when it finds its flow: another one looks for stops and followers then. By
-- triggers, for the release before, which stops and follows too. Nothing is ever removed: that
-- statement is only a little slower.
CREATE TABLE ulak.particular_flows (
    flow text COLLATE "C" NOT NULL PRIMARY KEY
);

CREATE FUNCTION ulak.note_particular_flow() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM ulak.particular_flows WHERE flow = NEW.flow) THEN
        INSERT INTO ulak.particular_flows (flow) VALUES (NEW.flow) ON CONFLICT DO NOTHING;
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER stopped_flows AFTER INSERT ON ulak.stops
FOR EACH ROW EXECUTE FUNCTION ulak.note_particular_flow();

CREATE TRIGGER followed_flows AFTER INSERT OR UPDATE ON ulak.handlers
FOR EACH ROW WHEN (NEW.flow IS NOT NULL) EXECUTE FUNCTION ulak.note_particular_flow();

INSERT INTO ulak.particular_flows (flow)
SELECT flow FROM ulak.stops UNION SELECT flow FROM ulak.handlers WHERE flow IS NOT NULL;
