-- oldest: 1
-- Rests of plans of mode E that are worth keeping: free, promised to an order, or used by it.
CREATE TABLE {schema}.cutting_offcuts (
    id {serial}, material text NOT NULL, thickness_mm text NOT NULL, width_mm text NOT NULL,
    height_mm text NOT NULL, cut_from text NOT NULL, n integer NOT NULL, kept_at {bigint} NOT NULL,
    promised_to text, used_at {bigint}, UNIQUE (cut_from, n)
){strict};
CREATE INDEX cutting_offcuts_there ON {schema}.cutting_offcuts (material, thickness_mm)
    WHERE used_at IS NULL;
INSERT INTO {schema}.cutting_messages (event_type, kind, en, tr) VALUES
    ('OFFCUTS_LOST', 'cutting.offcuts-lost', 'The rests of a plan are not in the store',
        'Artiklar depoya alinmadi');
