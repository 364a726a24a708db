PRAGMA user_version = 5;
BEGIN TRANSACTION;
CREATE TABLE audit (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    at       INTEGER NOT NULL,
    actor    TEXT    NOT NULL,
    act      TEXT    NOT NULL,
    subject  TEXT    NOT NULL,
    note     TEXT,
    details  TEXT    NOT NULL
) STRICT;
INSERT INTO "audit" VALUES(1,1767600000000000,'ada','created','credential/key/ejnxcufh',NULL,'{"name":"fixture","tenant":null,"roles":"operator","scopes":"","created_at":1767600000000000,"created_by":"ada","expires_at":null,"revoked_at":null,"used_at":null,"version":1,"before":null}');
INSERT INTO "audit" VALUES(2,1767600000000000,'ada','created','credential/key/b5e8wxtm',NULL,'{"name":"lost","tenant":"acme","roles":"viewer","scopes":"","created_at":1767600000000000,"created_by":"ada","expires_at":null,"revoked_at":null,"used_at":null,"version":1,"before":null}');
INSERT INTO "audit" VALUES(3,1767600000000000,'ada','revoked','credential/key/b5e8wxtm','lost on a train','{"name":"lost","tenant":"acme","roles":"viewer","scopes":"","created_at":1767600000000000,"created_by":"ada","expires_at":null,"revoked_at":1767600000000000,"used_at":null,"version":2,"before":{"name":"lost","tenant":"acme","roles":"viewer","scopes":"","created_at":1767600000000000,"created_by":"ada","expires_at":null,"revoked_at":null,"used_at":null,"version":1}}');
INSERT INTO "audit" VALUES(4,1767600000000000,'cli','created','credential/user/ada',NULL,'{"name":"ada","tenant":null,"roles":"admin","scopes":"","created_at":1767600000000000,"created_by":"cli","expires_at":null,"revoked_at":null,"used_at":null,"version":1,"before":null}');
INSERT INTO "audit" VALUES(5,1767600000000000,'ada','limit','order/packed','a new van','{"n":5,"before":3,"declared":3}');
INSERT INTO "audit" VALUES(6,1767600000000000,'ada','rate','report/queued',NULL,'{"n":4,"per_us":1000000,"burst":2,"before":[2,1000000,2],"declared":[2,1000000,2]}');
INSERT INTO "audit" VALUES(7,1767600000000000,'ada','weight','acme',NULL,'{"weight":3,"before":1}');
INSERT INTO "audit" VALUES(8,1767600000000000,'ada','pause','queue/night','neighbours','{"until_at":null,"before":null}');
INSERT INTO "audit" VALUES(9,1767600000000000,'ada','pause','flow/nap',NULL,'{"until_at":1767603600000000,"before":null}');
INSERT INTO "audit" VALUES(10,1767600000000000,'ada','pause','key/B','machine B is being cleaned','{"until_at":null,"before":null}');
INSERT INTO "audit" VALUES(11,1767600000000000,'ada','pause','schedule/nightly','holidays','{"next_at": 1767657600000000}');
CREATE TABLE buckets (
    name      TEXT    NOT NULL PRIMARY KEY,
    level     INTEGER NOT NULL CHECK (level >= 0),
    filled_at INTEGER NOT NULL,
    ready_at  INTEGER
) STRICT, WITHOUT ROWID;
INSERT INTO "buckets" VALUES('report/queued',0,1767772800000000,1767772800250000);
CREATE TABLE count_deltas (
    flow         TEXT    NOT NULL,
    flow_version INTEGER NOT NULL,
    state        TEXT    NOT NULL,
    role         TEXT    NOT NULL,
    jobs         INTEGER NOT NULL
) STRICT;
INSERT INTO "count_deltas" VALUES('order',1,'new','ready',1);
CREATE TABLE counts (
    flow         TEXT    NOT NULL,
    flow_version INTEGER NOT NULL,
    state        TEXT    NOT NULL,
    role         TEXT    NOT NULL,
    jobs         INTEGER NOT NULL,
    PRIMARY KEY (flow, flow_version, state, role)
) STRICT, WITHOUT ROWID;
INSERT INTO "counts" VALUES('booking',1,'asked','ready',0);
INSERT INTO "counts" VALUES('booking',1,'booked','ready',0);
INSERT INTO "counts" VALUES('booking',1,'undoing','undoing',1);
INSERT INTO "counts" VALUES('claim',1,'approved','waiting',1);
INSERT INTO "counts" VALUES('claim',1,'requested','held',1);
INSERT INTO "counts" VALUES('claim',1,'settled','done',2);
INSERT INTO "counts" VALUES('count',1,'counted','ready',0);
INSERT INTO "counts" VALUES('count',1,'done','done',4);
INSERT INTO "counts" VALUES('letter',1,'written','held',1);
INSERT INTO "counts" VALUES('letter',2,'written','held',1);
INSERT INTO "counts" VALUES('nap',1,'asleep','waiting',1);
INSERT INTO "counts" VALUES('order',1,'cancelled','cancelled',1);
INSERT INTO "counts" VALUES('order',1,'expired','expired',1);
INSERT INTO "counts" VALUES('order',1,'failed','failed',2);
INSERT INTO "counts" VALUES('order',1,'held','held',1);
INSERT INTO "counts" VALUES('order',1,'new','ready',1);
INSERT INTO "counts" VALUES('order',1,'packed','ready',0);
INSERT INTO "counts" VALUES('order',1,'packing','busy',3);
INSERT INTO "counts" VALUES('order',1,'sent','done',4);
INSERT INTO "counts" VALUES('press',1,'queued','ready',3);
INSERT INTO "counts" VALUES('quiet',1,'queued','ready',1);
INSERT INTO "counts" VALUES('report',1,'done','done',2);
INSERT INTO "counts" VALUES('report',1,'queued','ready',2);
CREATE TABLE credentials (
    kind       TEXT    NOT NULL CHECK (kind = 'key' OR kind = 'user' OR kind = 'link'),
    id         TEXT    NOT NULL,
    name       TEXT    NOT NULL,
    tenant     TEXT,
    roles      TEXT    NOT NULL,
    scopes     TEXT    NOT NULL,
    hash       TEXT    NOT NULL,
    created_at INTEGER NOT NULL,
    created_by TEXT    NOT NULL,
    expires_at INTEGER,
    revoked_at INTEGER,
    used_at    INTEGER,
    version    INTEGER NOT NULL,
    PRIMARY KEY (kind, id)
) STRICT, WITHOUT ROWID;
INSERT INTO "credentials" VALUES('key','b5e8wxtm','lost','acme','viewer','','c76c475752f30901e88b378fa6a810a2f848cdfe5746b0d20ec9b7644f82f542',1767600000000000,'ada',NULL,1767600000000000,NULL,2);
INSERT INTO "credentials" VALUES('key','ejnxcufh','fixture',NULL,'operator','','30b507d4ddee889aa9f8e90edb7b29b2c3162944db8874e28395ccb5efeb19b3',1767600000000000,'ada',NULL,NULL,NULL,1);
INSERT INTO "credentials" VALUES('user','ada','ada',NULL,'admin','','$argon2id$v=19$m=65536,t=3,p=4$LTVummh7SF+fe8FP2fpqcA$VHSIffYe5IqFR44uX87b+uA9ueyew99e1DfPAY5zEJ4',1767600000000000,'cli',NULL,NULL,NULL,1);
CREATE TABLE dedup (
    tenant     TEXT NOT NULL,
    flow       TEXT NOT NULL,
    key        TEXT NOT NULL,
    job_id     BLOB NOT NULL,
    expires_at INTEGER,
    PRIMARY KEY (tenant, flow, key)
) STRICT, WITHOUT ROWID;
INSERT INTO "dedup" VALUES('','order','delayed',X'019B97784400700094DD20CF49E81F1B',NULL);
INSERT INTO "dedup" VALUES('','order','ready',X'019B9778440070009D5A521AA47844A9',NULL);
INSERT INTO "dedup" VALUES('acme','order','asked',X'019B977844007000B7B8202C6694AEF7',NULL);
INSERT INTO "dedup" VALUES('acme','order','crashed',X'019B97784400700090996115353B3297',NULL);
INSERT INTO "dedup" VALUES('acme','order','held',X'019B9778440070009D48B2F3737A3EFD',NULL);
INSERT INTO "dedup" VALUES('acme','order','retried',X'019B977844007000B660C6D8EB339F61',NULL);
CREATE TABLE events (
    job_id     BLOB    NOT NULL,
    seq        INTEGER NOT NULL,
    kind       TEXT    NOT NULL,
    from_state TEXT,
    to_state   TEXT    NOT NULL,
    actor      TEXT    NOT NULL,
    code       TEXT,
    message    TEXT,
    details    TEXT,
    round      INTEGER NOT NULL,
    attempt    INTEGER NOT NULL,
    worker     TEXT,
    token      INTEGER NOT NULL,
    started_at INTEGER,
    at         INTEGER NOT NULL,
    emitted    INTEGER NOT NULL,
    commit_id  BLOB    NOT NULL,
    PRIMARY KEY (job_id, seq)
) STRICT, WITHOUT ROWID;
INSERT INTO "events" VALUES(X'019B8D2B8C007000832AC54378D4057D',1,'submitted',NULL,'new','ulak',NULL,NULL,NULL,1,0,NULL,0,NULL,1767600000000000,0,X'13D87E6C0565E47F07F6000000000003');
INSERT INTO "events" VALUES(X'019B8D2B8C007000832AC54378D4057D',2,'expired','new','expired','ulak','expired','its time ran out in "new"',NULL,1,1,NULL,0,NULL,1767607200000000,0,X'13D87E6C0565E47F07F6000000000006');
INSERT INTO "events" VALUES(X'019B8D2B8C00700085A468A23C2AEDE2',1,'submitted',NULL,'requested','ada',NULL,NULL,NULL,1,0,NULL,0,NULL,1767600000000000,0,X'3FB1247B7CAED3A81993000000000008');
INSERT INTO "events" VALUES(X'019B8D2B8C007000863FD75AB1E612CE',1,'submitted',NULL,'requested','ada',NULL,NULL,NULL,1,0,NULL,0,NULL,1767600000000000,0,X'3FB1247B7CAED3A81993000000000009');
INSERT INTO "events" VALUES(X'019B8D2B8C007000863FD75AB1E612CE',2,'decided','requested','approved','bob','approve',NULL,NULL,1,1,NULL,0,NULL,1767600000000000,0,X'3FB1247B7CAED3A8199300000000000A');
INSERT INTO "events" VALUES(X'019B8D2B8C0070008B2C6CE343C638F8',1,'submitted',NULL,'new','ulak',NULL,NULL,NULL,1,0,NULL,0,NULL,1767600000000000,0,X'13D87E6C0565E47F07F6000000000001');
INSERT INTO "events" VALUES(X'019B8D2B8C0070008B2C6CE343C638F8',2,'entered','new','packing','fixture-17281-33a27e0e357f',NULL,NULL,NULL,1,1,'fixture-17281-33a27e0e357f',1,1767600000000000,1767600000000000,0,X'');
INSERT INTO "events" VALUES(X'019B8D2B8C0070008B2C6CE343C638F8',3,'noted','packing','packing','fixture-17281-33a27e0e357f',NULL,'label',NULL,1,1,'fixture-17281-33a27e0e357f',1,1767600000000000,1767600000000000,0,X'FA09E5889E58A7E2E5F2000000000000');
INSERT INTO "events" VALUES(X'019B8D2B8C0070008B2C6CE343C638F8',4,'failed','packing','failed','fixture-17281-33a27e0e357f','permanent','LookupError: there is no such address','{"type":"LookupError","traceback":"Traceback (most recent call last):\n  File \"/ulak/src/ulak/engine/stages.py\", line 114, in _run_in_thread\n    returned = function(Run(run.row, run, run.is_stopping))\n               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n  File \"/ulak/tests/upgrade/program.py\", line 96, in pack\n    by = run.resource(Outside).reach(run)\n         ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n  File \"/ulak/tests/upgrade/make.py\", line 62, in reach\n    raise LookupError(\"there is no such address\")\nLookupError: there is no such address\n"}',1,1,'fixture-17281-33a27e0e357f',1,1767600000000000,1767600000000000,0,X'FA09E5889E58A7E2E5F2000000000003');
INSERT INTO "events" VALUES(X'019B8D2B8C00700094C1BA173FB1247B',1,'submitted',NULL,'new','ulak',NULL,NULL,NULL,1,0,NULL,0,NULL,1767600000000000,0,X'3FB1247B7CAED3A81993000000000001');
INSERT INTO "events" VALUES(X'019B8D2B8C00700094C1BA173FB1247B',2,'entered','new','packing','fixture-17281-34ca804ec543',NULL,NULL,NULL,1,1,'fixture-17281-34ca804ec543',1,1767600000000000,1767600000000000,0,X'');
INSERT INTO "events" VALUES(X'019B8D2B8C00700094C1BA173FB1247B',3,'noted','packing','packing','fixture-17281-34ca804ec543',NULL,'label',NULL,1,1,'fixture-17281-34ca804ec543',1,1767600000000000,1767600000000000,0,X'0B2C6CE343C638F863D1000000000000');
INSERT INTO "events" VALUES(X'019B8D2B8C00700094C1BA173FB1247B',4,'moved','packing','packed','fixture-17281-34ca804ec543',NULL,NULL,NULL,1,1,'fixture-17281-34ca804ec543',1,1767600000000000,1767600000000000,1,X'0B2C6CE343C638F863D1000000000002');
INSERT INTO "events" VALUES(X'019B8D2B8C00700094C1BA173FB1247B',5,'moved','packed','sent','fixture-17281-34ca804ec543',NULL,NULL,NULL,1,1,'fixture-17281-34ca804ec543',1,1767600000000000,1767600000000000,0,X'0B2C6CE343C638F863D1000000000004');
INSERT INTO "events" VALUES(X'019B8D2B8C00700095BF23341D4BAEB6',1,'submitted',NULL,'new','ada',NULL,NULL,NULL,1,0,NULL,0,NULL,1767600000000000,0,X'3FB1247B7CAED3A81993000000000000');
INSERT INTO "events" VALUES(X'019B8D2B8C00700095BF23341D4BAEB6',2,'entered','new','packing','fixture-17281-34ca804ec543',NULL,NULL,NULL,1,1,'fixture-17281-34ca804ec543',1,1767600000000000,1767600000000000,0,X'');
INSERT INTO "events" VALUES(X'019B8D2B8C00700095BF23341D4BAEB6',3,'noted','packing','packing','fixture-17281-34ca804ec543',NULL,'label',NULL,1,1,'fixture-17281-34ca804ec543',1,1767600000000000,1767600000000000,0,X'0B2C6CE343C638F863D1000000000001');
INSERT INTO "events" VALUES(X'019B8D2B8C00700095BF23341D4BAEB6',4,'moved','packing','packed','fixture-17281-34ca804ec543',NULL,NULL,NULL,1,1,'fixture-17281-34ca804ec543',1,1767600000000000,1767600000000000,1,X'0B2C6CE343C638F863D1000000000003');
INSERT INTO "events" VALUES(X'019B8D2B8C00700095BF23341D4BAEB6',5,'moved','packed','sent','fixture-17281-34ca804ec543',NULL,NULL,NULL,1,1,'fixture-17281-34ca804ec543',1,1767600000000000,1767600000000000,0,X'0B2C6CE343C638F863D1000000000005');
INSERT INTO "events" VALUES(X'019B8D2B8C0070009A31D8457459A85E',1,'submitted',NULL,'new','ulak',NULL,NULL,NULL,1,0,NULL,0,NULL,1767600000000000,0,X'13D87E6C0565E47F07F6000000000004');
INSERT INTO "events" VALUES(X'019B8D2B8C0070009A31D8457459A85E',2,'cancelled','new','cancelled','ada','cancelled','wrong address',NULL,1,1,NULL,0,NULL,1767600000000000,0,X'13D87E6C0565E47F07F6000000000005');
INSERT INTO "events" VALUES(X'019B8D2B8C007000B3930C96AF0E4F4F',1,'submitted',NULL,'requested','ada',NULL,NULL,NULL,1,0,NULL,0,NULL,1767600000000000,0,X'3FB1247B7CAED3A81993000000000005');
INSERT INTO "events" VALUES(X'019B8D2B8C007000B3930C96AF0E4F4F',2,'decided','requested','approved','bob','approve','seen',NULL,1,1,NULL,0,NULL,1767600000000000,0,X'3FB1247B7CAED3A81993000000000006');
INSERT INTO "events" VALUES(X'019B8D2B8C007000B3930C96AF0E4F4F',3,'signalled','approved','settled','bank','paid',NULL,NULL,1,1,NULL,0,NULL,1767600000000000,0,X'3FB1247B7CAED3A81993000000000007');
INSERT INTO "events" VALUES(X'019B8D2B8C007000B617867386138993',1,'submitted',NULL,'new','ada',NULL,NULL,NULL,1,0,NULL,0,NULL,1767600000000000,0,X'13D87E6C0565E47F07F6000000000000');
INSERT INTO "events" VALUES(X'019B8D2B8C007000B617867386138993',2,'entered','new','packing','fixture-17281-33a27e0e357f',NULL,NULL,NULL,1,1,'fixture-17281-33a27e0e357f',1,1767600000000000,1767600000000000,0,X'');
INSERT INTO "events" VALUES(X'019B8D2B8C007000B617867386138993',3,'noted','packing','packing','fixture-17281-33a27e0e357f',NULL,'label',NULL,1,1,'fixture-17281-33a27e0e357f',1,1767600000000000,1767600000000000,0,X'FA09E5889E58A7E2E5F2000000000001');
INSERT INTO "events" VALUES(X'019B8D2B8C007000B617867386138993',4,'retry','packing','packing','fixture-17281-33a27e0e357f','raised','ConnectionError: the carrier does not answer','{"type":"ConnectionError","traceback":"Traceback (most recent call last):\n  File \"/ulak/src/ulak/engine/stages.py\", line 114, in _run_in_thread\n    returned = function(Run(run.row, run, run.is_stopping))\n               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n  File \"/ulak/tests/upgrade/program.py\", line 96, in pack\n    by = run.resource(Outside).reach(run)\n         ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n  File \"/ulak/tests/upgrade/make.py\", line 60, in reach\n    raise ConnectionError(\"the carrier does not answer\")\nConnectionError: the carrier does not answer\n"}',1,1,'fixture-17281-33a27e0e357f',1,1767600000000000,1767600000000000,0,X'FA09E5889E58A7E2E5F2000000000004');
INSERT INTO "events" VALUES(X'019B8D2B8C007000B617867386138993',5,'failed','packing','failed','fixture-17281-6488c6a0e2b0','raised','ConnectionError: the carrier does not answer','{"type":"ConnectionError","traceback":"Traceback (most recent call last):\n  File \"/ulak/src/ulak/engine/stages.py\", line 114, in _run_in_thread\n    returned = function(Run(run.row, run, run.is_stopping))\n               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n  File \"/ulak/tests/upgrade/program.py\", line 96, in pack\n    by = run.resource(Outside).reach(run)\n         ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n  File \"/ulak/tests/upgrade/make.py\", line 60, in reach\n    raise ConnectionError(\"the carrier does not answer\")\nConnectionError: the carrier does not answer\n"}',1,2,'fixture-17281-6488c6a0e2b0',3,1767603600000000,1767603600000000,0,X'76523B4DB4A5CD7F51DF000000000000');
INSERT INTO "events" VALUES(X'019B8D2B8C007000B62463D134CA804E',1,'submitted',NULL,'new','ulak',NULL,NULL,NULL,1,0,NULL,0,NULL,1767600000000000,0,X'13D87E6C0565E47F07F6000000000002');
INSERT INTO "events" VALUES(X'019B8D2B8C007000B62463D134CA804E',2,'entered','new','packing','fixture-17281-33a27e0e357f',NULL,NULL,NULL,1,1,'fixture-17281-33a27e0e357f',1,1767600000000000,1767600000000000,0,X'');
INSERT INTO "events" VALUES(X'019B8D2B8C007000B62463D134CA804E',3,'noted','packing','packing','fixture-17281-33a27e0e357f',NULL,'label',NULL,1,1,'fixture-17281-33a27e0e357f',1,1767600000000000,1767600000000000,0,X'FA09E5889E58A7E2E5F2000000000002');
INSERT INTO "events" VALUES(X'019B8D2B8C007000B62463D134CA804E',4,'moved','packing','packed','fixture-17281-33a27e0e357f',NULL,NULL,NULL,1,1,'fixture-17281-33a27e0e357f',1,1767600000000000,1767600000000000,1,X'FA09E5889E58A7E2E5F2000000000005');
INSERT INTO "events" VALUES(X'019B8D2B8C007000B62463D134CA804E',5,'moved','packed','sent','fixture-17281-33a27e0e357f',NULL,NULL,NULL,1,1,'fixture-17281-33a27e0e357f',1,1767600000000000,1767600000000000,0,X'FA09E5889E58A7E2E5F2000000000006');
INSERT INTO "events" VALUES(X'019B8D2B8C007000BCAED3A8B94F1993',1,'submitted',NULL,'requested','ada',NULL,NULL,NULL,1,0,NULL,0,NULL,1767600000000000,0,X'3FB1247B7CAED3A81993000000000002');
INSERT INTO "events" VALUES(X'019B8D2B8C007000BCAED3A8B94F1993',2,'decided','requested','approved','bob','approve','seen',NULL,1,1,NULL,0,NULL,1767600000000000,0,X'3FB1247B7CAED3A81993000000000003');
INSERT INTO "events" VALUES(X'019B8D2B8C007000BCAED3A8B94F1993',3,'signalled','approved','settled','bank','paid',NULL,NULL,1,1,NULL,0,NULL,1767600000000000,0,X'3FB1247B7CAED3A81993000000000004');
INSERT INTO "events" VALUES(X'019B8E07460070009F010413F199FD8B',1,'submitted',NULL,'counted','schedule:half-daily',NULL,NULL,NULL,1,0,NULL,0,NULL,1767614400000000,0,X'13D87E6C0565E47F07F6000000000007');
INSERT INTO "events" VALUES(X'019B8E07460070009F010413F199FD8B',2,'moved','counted','done','fixture-17281-20543ccae705',NULL,NULL,NULL,1,1,'fixture-17281-20543ccae705',1,1767657600000000,1767657600000000,0,X'A954ABFCBF8381656221000000000000');
INSERT INTO "events" VALUES(X'019B909A74007000BFBE46BBF4CDD724',1,'submitted',NULL,'counted','schedule:half-daily',NULL,NULL,NULL,1,0,NULL,0,NULL,1767657600000000,0,X'13D87E6C0565E47F07F6000000000008');
INSERT INTO "events" VALUES(X'019B909A74007000BFBE46BBF4CDD724',2,'moved','counted','done','fixture-17281-20543ccae705',NULL,NULL,NULL,1,1,'fixture-17281-20543ccae705',1,1767657600000000,1767657600000000,0,X'A954ABFCBF8381656221000000000001');
INSERT INTO "events" VALUES(X'019B932DA200700096D5810ABC985FFA',1,'submitted',NULL,'counted','schedule:half-daily',NULL,NULL,NULL,1,0,NULL,0,NULL,1767700800000000,0,X'13D87E6C0565E47F07F6000000000009');
INSERT INTO "events" VALUES(X'019B932DA200700096D5810ABC985FFA',2,'moved','counted','done','fixture-17281-de53c7b3a681',NULL,NULL,NULL,1,1,'fixture-17281-de53c7b3a681',1,1767744000000000,1767744000000000,0,X'4BA81993325EE0D6989D000000000000');
INSERT INTO "events" VALUES(X'019B95C0D0007000A1BED6AD1F118BA2',1,'submitted',NULL,'counted','schedule:half-daily',NULL,NULL,NULL,1,0,NULL,0,NULL,1767744000000000,0,X'13D87E6C0565E47F07F600000000000A');
INSERT INTO "events" VALUES(X'019B95C0D0007000A1BED6AD1F118BA2',2,'moved','counted','done','fixture-17281-de53c7b3a681',NULL,NULL,NULL,1,1,'fixture-17281-de53c7b3a681',1,1767744000000000,1767744000000000,0,X'4BA81993325EE0D6989D000000000001');
INSERT INTO "events" VALUES(X'019B97784400700080460EAFA0F6B3AD',1,'submitted',NULL,'queued','ulak',NULL,NULL,NULL,1,0,NULL,0,NULL,1767772800000000,0,X'6694AEF700460EAFB3AD000000000002');
INSERT INTO "events" VALUES(X'019B977844007000805466EDB48A16C5',1,'submitted',NULL,'queued','ulak',NULL,NULL,NULL,1,0,NULL,0,NULL,1767772800000000,0,X'13D87E6C0565E47F07F6000000000015');
INSERT INTO "events" VALUES(X'019B977844007000805466EDB48A16C5',2,'moved','queued','done','fixture-17281-d8b74477a370',NULL,NULL,NULL,1,1,'fixture-17281-d8b74477a370',1,1767772800000000,1767772800000000,0,X'D8FF970C9AFAF866162A000000000003');
INSERT INTO "events" VALUES(X'019B9778440070008969665F1D8DB175',1,'submitted',NULL,'new','ulak',NULL,NULL,NULL,1,0,NULL,0,NULL,1767772800000000,0,X'13D87E6C0565E47F07F600000000000D');
INSERT INTO "events" VALUES(X'019B9778440070008969665F1D8DB175',2,'entered','new','packing','fixture-17281-d8b74477a370',NULL,NULL,NULL,1,1,'fixture-17281-d8b74477a370',1,1767772800000000,1767772800000000,0,X'');
INSERT INTO "events" VALUES(X'019B9778440070008969665F1D8DB175',3,'noted','packing','packing','fixture-17281-d8b74477a370',NULL,'label',NULL,1,1,'fixture-17281-d8b74477a370',1,1767772800000000,1767772800000000,0,X'D8FF970C9AFAF866162A000000000000');
INSERT INTO "events" VALUES(X'019B9778440070008969665F1D8DB175',4,'moved','packing','packed','fixture-17281-d8b74477a370',NULL,NULL,NULL,1,1,'fixture-17281-d8b74477a370',1,1767772800000000,1767772800000000,1,X'D8FF970C9AFAF866162A000000000007');
INSERT INTO "events" VALUES(X'019B9778440070008969665F1D8DB175',5,'moved','packed','sent','fixture-17281-d8b74477a370',NULL,NULL,NULL,1,1,'fixture-17281-d8b74477a370',1,1767772800000000,1767772800000000,0,X'D8FF970C9AFAF866162A00000000000A');
INSERT INTO "events" VALUES(X'019B97784400700090996115353B3297',1,'submitted',NULL,'new','ulak',NULL,NULL,NULL,1,0,NULL,0,NULL,1767772800000000,0,X'6694AEF700460EAFB3AD000000000000');
INSERT INTO "events" VALUES(X'019B97784400700090996115353B3297',2,'entered','new','packing','fixture-17818-0f951fd7dd5e',NULL,NULL,NULL,1,1,'fixture-17818-0f951fd7dd5e',1,1767772800000000,1767772800000000,0,X'');
INSERT INTO "events" VALUES(X'019B97784400700090996115353B3297',3,'noted','packing','packing','fixture-17818-0f951fd7dd5e',NULL,'label',NULL,1,1,'fixture-17818-0f951fd7dd5e',1,1767772800000000,1767772800000000,0,X'0059613E5CF91930719A000000000000');
INSERT INTO "events" VALUES(X'019B97784400700090DE4E29CFDDF966',1,'submitted',NULL,'queued','ulak',NULL,NULL,NULL,1,0,NULL,0,NULL,1767772800000000,0,X'6694AEF700460EAFB3AD000000000003');
INSERT INTO "events" VALUES(X'019B97784400700094DD20CF49E81F1B',1,'submitted',NULL,'new','ulak',NULL,NULL,NULL,1,0,NULL,0,NULL,1767772800000000,0,X'13D87E6C0565E47F07F600000000000E');
INSERT INTO "events" VALUES(X'019B9778440070009CF80AC5C3FCDF86',1,'submitted',NULL,'asleep','ulak',NULL,NULL,NULL,1,0,NULL,0,NULL,1767772800000000,0,X'13D87E6C0565E47F07F6000000000010');
INSERT INTO "events" VALUES(X'019B9778440070009D2A3F2ED875E70D',1,'submitted',NULL,'queued','ulak',NULL,NULL,NULL,1,0,NULL,0,NULL,1767772800000000,0,X'13D87E6C0565E47F07F6000000000011');
INSERT INTO "events" VALUES(X'019B9778440070009D48B2F3737A3EFD',1,'submitted',NULL,'new','ada',NULL,NULL,NULL,1,0,NULL,0,NULL,1767772800000000,0,X'13D87E6C0565E47F07F600000000000B');
INSERT INTO "events" VALUES(X'019B9778440070009D48B2F3737A3EFD',2,'entered','new','packing','fixture-17281-d8b74477a370',NULL,NULL,NULL,1,1,'fixture-17281-d8b74477a370',1,1767772800000000,1767772800000000,0,X'');
INSERT INTO "events" VALUES(X'019B9778440070009D48B2F3737A3EFD',3,'noted','packing','packing','fixture-17281-d8b74477a370',NULL,'label',NULL,1,1,'fixture-17281-d8b74477a370',1,1767772800000000,1767772800000000,0,X'D8FF970C9AFAF866162A000000000001');
INSERT INTO "events" VALUES(X'019B9778440070009D48B2F3737A3EFD',4,'held','packing','held','fixture-17281-d8b74477a370','customs','papers are missing',NULL,1,1,'fixture-17281-d8b74477a370',1,1767772800000000,1767772800000000,0,X'D8FF970C9AFAF866162A000000000006');
INSERT INTO "events" VALUES(X'019B9778440070009D5A521AA47844A9',1,'submitted',NULL,'new','ada',NULL,NULL,NULL,1,0,NULL,0,NULL,1767772800000000,0,X'FADCBE749C818A98609A000000000000');
INSERT INTO "events" VALUES(X'019B9778440070009EEA7A3602CAB01F',1,'submitted',NULL,'queued','ulak',NULL,NULL,NULL,1,0,NULL,0,NULL,1767772800000000,0,X'13D87E6C0565E47F07F6000000000016');
INSERT INTO "events" VALUES(X'019B977844007000A75A5306D011021F',1,'submitted',NULL,'queued','ulak',NULL,NULL,NULL,1,0,NULL,0,NULL,1767772800000000,0,X'13D87E6C0565E47F07F6000000000013');
INSERT INTO "events" VALUES(X'019B977844007000A75A5306D011021F',2,'moved','queued','done','fixture-17281-d8b74477a370',NULL,NULL,NULL,1,1,'fixture-17281-d8b74477a370',1,1767772800000000,1767772800000000,0,X'D8FF970C9AFAF866162A000000000002');
INSERT INTO "events" VALUES(X'019B977844007000A818A7211873BC8B',1,'submitted',NULL,'asked','ulak',NULL,NULL,NULL,1,0,NULL,0,NULL,1767772800000000,0,X'13D87E6C0565E47F07F600000000000F');
INSERT INTO "events" VALUES(X'019B977844007000A818A7211873BC8B',2,'moved','asked','booked','fixture-17281-d8b74477a370',NULL,NULL,NULL,1,1,'fixture-17281-d8b74477a370',1,1767772800000000,1767772800000000,0,X'D8FF970C9AFAF866162A000000000004');
INSERT INTO "events" VALUES(X'019B977844007000A818A7211873BC8B',3,'failed','booked','undoing','fixture-17281-d8b74477a370','raised','ConnectionError: there is no train today','{"type":"ConnectionError","traceback":"Traceback (most recent call last):\n  File \"/ulak/src/ulak/engine/stages.py\", line 114, in _run_in_thread\n    returned = function(Run(run.row, run, run.is_stopping))\n               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n  File \"/ulak/tests/upgrade/program.py\", line 129, in travel\n    raise ConnectionError(\"there is no train today\")\nConnectionError: there is no train today\n"}',1,1,'fixture-17281-d8b74477a370',1,1767772800000000,1767772800000000,0,X'D8FF970C9AFAF866162A000000000008');
INSERT INTO "events" VALUES(X'019B977844007000A818A7211873BC8B',4,'retry','undoing','undoing','fixture-17281-d8b74477a370','raised','undo of asked: ConnectionError: the railway does not answer','{"type":"ConnectionError","traceback":"Traceback (most recent call last):\n  File \"/ulak/src/ulak/engine/stages.py\", line 114, in _run_in_thread\n    returned = function(Run(run.row, run, run.is_stopping))\n               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n  File \"/ulak/tests/upgrade/program.py\", line 125, in give_back\n    run.resource(Outside).undo(run)\n  File \"/ulak/tests/upgrade/make.py\", line 68, in undo\n    raise ConnectionError(\"the railway does not answer\")\nConnectionError: the railway does not answer\n"}',1,1,'fixture-17281-d8b74477a370',3,1767772800000000,1767772800000000,0,X'D8FF970C9AFAF866162A00000000000B');
INSERT INTO "events" VALUES(X'019B977844007000AC313B81A951E249',1,'submitted',NULL,'queued','ulak',NULL,NULL,NULL,1,0,NULL,0,NULL,1767772800000000,0,X'13D87E6C0565E47F07F6000000000014');
INSERT INTO "events" VALUES(X'019B977844007000B368EAAD7341B513',1,'submitted',NULL,'queued','ulak',NULL,NULL,NULL,1,0,NULL,0,NULL,1767772800000000,0,X'13D87E6C0565E47F07F6000000000012');
INSERT INTO "events" VALUES(X'019B977844007000B660C6D8EB339F61',1,'submitted',NULL,'new','ulak',NULL,NULL,NULL,1,0,NULL,0,NULL,1767772800000000,0,X'13D87E6C0565E47F07F600000000000C');
INSERT INTO "events" VALUES(X'019B977844007000B660C6D8EB339F61',2,'entered','new','packing','fixture-17281-d8b74477a370',NULL,NULL,NULL,1,1,'fixture-17281-d8b74477a370',1,1767772800000000,1767772800000000,0,X'');
INSERT INTO "events" VALUES(X'019B977844007000B660C6D8EB339F61',3,'noted','packing','packing','fixture-17281-d8b74477a370',NULL,'label',NULL,1,1,'fixture-17281-d8b74477a370',1,1767772800000000,1767772800000000,0,X'D8FF970C9AFAF866162A000000000005');
INSERT INTO "events" VALUES(X'019B977844007000B660C6D8EB339F61',4,'retry','packing','packing','fixture-17281-d8b74477a370','raised','ConnectionError: the carrier does not answer','{"type":"ConnectionError","traceback":"Traceback (most recent call last):\n  File \"/ulak/src/ulak/engine/stages.py\", line 114, in _run_in_thread\n    returned = function(Run(run.row, run, run.is_stopping))\n               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n  File \"/ulak/tests/upgrade/program.py\", line 96, in pack\n    by = run.resource(Outside).reach(run)\n         ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n  File \"/ulak/tests/upgrade/make.py\", line 60, in reach\n    raise ConnectionError(\"the carrier does not answer\")\nConnectionError: the carrier does not answer\n"}',1,1,'fixture-17281-d8b74477a370',1,1767772800000000,1767772800000000,0,X'D8FF970C9AFAF866162A000000000009');
INSERT INTO "events" VALUES(X'019B977844007000B7B8202C6694AEF7',1,'submitted',NULL,'new','ulak',NULL,NULL,NULL,1,0,NULL,0,NULL,1767772800000000,0,X'6694AEF700460EAFB3AD000000000001');
INSERT INTO "events" VALUES(X'019B977844007000B7B8202C6694AEF7',2,'entered','new','packing','fixture-17818-0f951fd7dd5e',NULL,NULL,NULL,1,1,'fixture-17818-0f951fd7dd5e',1,1767772800000000,1767772800000000,0,X'');
INSERT INTO "events" VALUES(X'019B977844007000B7B8202C6694AEF7',3,'noted','packing','packing','fixture-17818-0f951fd7dd5e',NULL,'label',NULL,1,1,'fixture-17818-0f951fd7dd5e',1,1767772800000000,1767772800000000,0,X'0059613E5CF91930719A000000000001');
INSERT INTO "events" VALUES(X'3CB73D9665C24A92AFB80D40374881D0',1,'submitted',NULL,'written','ada',NULL,NULL,NULL,1,0,NULL,0,NULL,1767600000000000,0,X'3FB1247B7CAED3A8199300000000000C');
INSERT INTO "events" VALUES(X'6086E07241844C6C9BA831179ECC71B2',1,'submitted',NULL,'written','ada',NULL,NULL,NULL,1,0,NULL,0,NULL,1767600000000000,0,X'3FB1247B7CAED3A8199300000000000B');
CREATE TABLE hos_contract_schema (version INTEGER NOT NULL);
INSERT INTO "hos_contract_schema" VALUES(2);
CREATE TABLE hos_contract_subjects (
    tenant_id  TEXT    NOT NULL,
    type       TEXT    NOT NULL,
    id         TEXT    NOT NULL,
    status     TEXT    NOT NULL,
    version    INTEGER NOT NULL,
    proof_id   INTEGER,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, type, id)
) STRICT, WITHOUT ROWID;
INSERT INTO "hos_contract_subjects" VALUES('acme','order','dead','paid',1,3,1767772800000000,1767772800000000);
INSERT INTO "hos_contract_subjects" VALUES('acme','order','due','paid',1,5,1767772800000000,1767772800000000);
INSERT INTO "hos_contract_subjects" VALUES('acme','order','leased','paid',1,4,1767772800000000,1767772800000000);
INSERT INTO "hos_contract_subjects" VALUES('acme','order','rejected','paid',1,2,1767772800000000,1767772800000000);
INSERT INTO "hos_contract_subjects" VALUES('acme','order','sent','paid',1,1,1767772800000000,1767772800000000);
CREATE TABLE hos_idempotency_keys (
    id               INTEGER NOT NULL PRIMARY KEY,
    tenant_id        TEXT    NOT NULL DEFAULT '',
    scope            TEXT    NOT NULL DEFAULT '',
    key              TEXT    NOT NULL,
    status           TEXT    NOT NULL CHECK (status IN ('processing', 'completed', 'failed')),
    request_hash     TEXT    NOT NULL,
    actor_id         TEXT    NOT NULL DEFAULT '',
    owner_token      TEXT,
    lease_until      INTEGER,
    attempt          INTEGER NOT NULL DEFAULT 1,
    recovery_point   TEXT,
    recovery_data    TEXT,
    response_status  INTEGER,
    response_headers TEXT,
    response_json    TEXT,
    response_bytes   BLOB,
    response_digest  TEXT,
    created_at       INTEGER NOT NULL,
    updated_at       INTEGER NOT NULL,
    expires_at       INTEGER NOT NULL
) STRICT;
INSERT INTO "hos_idempotency_keys" VALUES(1,'acme','fixture.charge','charged','completed','cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc','ada','0a5546e8248dc651c0e15eaaf974ffdf',NULL,1,NULL,NULL,201,'[["content-type", "application/json"]]','{"receipt": 1}',NULL,NULL,1767600000000000,1767600000000000,4921200000000000);
INSERT INTO "hos_idempotency_keys" VALUES(2,'acme','contract.transition','pay sent','completed','7199ad1e5c2d31ea86049f7880a6f6633bcab01826fbd6286cefb0ec64bf9f71','ada','63ba16e300b54303cebd99146855c14d',NULL,1,NULL,NULL,200,'[["Content-Type", "application/json"]]','{"ok":true,"from":"pending","to":"paid","contract_version":"2025-12-28","proof_id":1,"version":1,"changed":true}',NULL,NULL,1767772800000000,1767772800000000,1768377600000000);
INSERT INTO "hos_idempotency_keys" VALUES(3,'acme','contract.transition','pay rejected','completed','9e5ea7e6a7483337b974eae52c9a547dc1c70130fa8a575c603877cc998a6d3b','ada','1f5e1a8cd0765cf58fa3c9c48157c26d',NULL,1,NULL,NULL,200,'[["Content-Type", "application/json"]]','{"ok":true,"from":"pending","to":"paid","contract_version":"2025-12-28","proof_id":2,"version":1,"changed":true}',NULL,NULL,1767772800000000,1767772800000000,1768377600000000);
INSERT INTO "hos_idempotency_keys" VALUES(4,'acme','contract.transition','pay dead','completed','825abce20be9dfc1e9c47f17de06af074308ca165baa5660c6a2c800d3e130b4','ada','2b74ff1911a885c40641ddbae708f131',NULL,1,NULL,NULL,200,'[["Content-Type", "application/json"]]','{"ok":true,"from":"pending","to":"paid","contract_version":"2025-12-28","proof_id":3,"version":1,"changed":true}',NULL,NULL,1767772800000000,1767772800000000,1768377600000000);
INSERT INTO "hos_idempotency_keys" VALUES(5,'acme','contract.transition','pay leased','completed','1244dcd40a28bf90faa51dd81fca532927fcf328360bcb579b9056f60bead7be','ada','f8052e0a6f7ce7270018d98b53bec613',NULL,1,NULL,NULL,200,'[["Content-Type", "application/json"]]','{"ok":true,"from":"pending","to":"paid","contract_version":"2025-12-28","proof_id":4,"version":1,"changed":true}',NULL,NULL,1767772800000000,1767772800000000,1768377600000000);
INSERT INTO "hos_idempotency_keys" VALUES(6,'acme','contract.transition','pay due','completed','4d29c4ad9903b31b293c296663e6f73d7d2fc9020f26b261df558717f54592b3','ada','173f1e16dca9855d47cfeefbb38618da',NULL,1,NULL,NULL,200,'[["Content-Type", "application/json"]]','{"ok":true,"from":"pending","to":"paid","contract_version":"2025-12-28","proof_id":5,"version":1,"changed":true}',NULL,NULL,1767772800000000,1767772800000000,1768377600000000);
INSERT INTO "hos_idempotency_keys" VALUES(7,'acme','fixture.charge','charging','processing','dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd','ada','10de4e29cfddf966d55cfff2f0c97f75',1767772860000000,1,NULL,NULL,NULL,NULL,NULL,NULL,NULL,1767772800000000,1767772800000000,4921372800000000);
CREATE TABLE hos_outbox_events (
    id              INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    tenant_id       TEXT    NOT NULL,
    event_type      TEXT    NOT NULL,
    -- The subject: its type, a colon and its id. Events of one go out in the order of their ids.
    aggregate       TEXT    NOT NULL,
    -- The body that is sent, to the byte, at every attempt.
    payload         TEXT    NOT NULL,
    idempotency_key TEXT    NOT NULL,
    status          TEXT    NOT NULL
        CHECK (status IN ('pending', 'processing', 'sent', 'rejected', 'dead')),
    attempts        INTEGER NOT NULL DEFAULT 0,
    last_error      TEXT,
    -- From when on somebody may claim it; while it is claimed, the end of the lease.
    available_at    INTEGER NOT NULL,
    lease_until     INTEGER,
    -- Which claim it is: a dispatcher whose lease has lapsed no longer has it and cannot write.
    owner_token     TEXT,
    -- After this moment no retry begins.
    give_up_at      INTEGER NOT NULL,
    sent_at         INTEGER,
    response_status INTEGER,
    response_json   TEXT,
    -- In what the remote's judgement differs from ours; NULL when it does not.
    drift           TEXT,
    -- When the last attempt ended, how long it took, and when one last failed.
    attempted_at    INTEGER,
    duration_us     INTEGER,
    failed_at       INTEGER,
    -- Set when an operator has given it up; it holds up nobody from then on.
    discarded_at    INTEGER,
    -- What operators did with it: a JSON list of act, actor, note and time.
    acts            TEXT    NOT NULL DEFAULT '[]',
    created_at      INTEGER NOT NULL,
    updated_at      INTEGER NOT NULL
) STRICT;
INSERT INTO "hos_outbox_events" VALUES(1,'acme','status_change','order:sent','{"idempotency_key":"pazar:proof:status_change:1","tenant_id":"acme","subject_ref":{"type":"order","id":"sent"},"from":"pending","to":"paid","source":"ada","meta":{"local_proof_id":1,"local_contract_version":"2025-12-28"}}','pazar:proof:status_change:1','sent',1,NULL,1767772800000000,NULL,NULL,1768032000000000,1767772800000000,200,'{"ok":true,"from":"pending","to":"paid"}',NULL,1767772800000000,1811,NULL,NULL,'[]',1767772800000000,1767772800000000);
INSERT INTO "hos_outbox_events" VALUES(2,'acme','status_change','order:rejected','{"idempotency_key":"pazar:proof:status_change:2","tenant_id":"acme","subject_ref":{"type":"order","id":"rejected"},"from":"pending","to":"paid","source":"ada","meta":{"local_proof_id":2,"local_contract_version":"2025-12-28"}}','pazar:proof:status_change:2','rejected',1,'HTTP 422: terminal_state',1767772800000000,NULL,NULL,1768032000000000,NULL,422,'{"ok":false,"reason":"terminal_state"}','HTTP 422: terminal_state',1767772800000000,665,NULL,NULL,'[]',1767772800000000,1767772800000000);
INSERT INTO "hos_outbox_events" VALUES(3,'acme','status_change','order:dead','{"idempotency_key":"pazar:proof:status_change:3","tenant_id":"acme","subject_ref":{"type":"order","id":"dead"},"from":"pending","to":"paid","source":"ada","meta":{"local_proof_id":3,"local_contract_version":"2025-12-28"}}','pazar:proof:status_change:3','dead',1,'HTTP 400: no_such_field',1767772800000000,NULL,NULL,1768032000000000,NULL,400,'{"code":"no_such_field"}',NULL,1767772800000000,553,1767772800000000,NULL,'[]',1767772800000000,1767772800000000);
INSERT INTO "hos_outbox_events" VALUES(4,'acme','status_change','order:leased','{"idempotency_key":"pazar:proof:status_change:4","tenant_id":"acme","subject_ref":{"type":"order","id":"leased"},"from":"pending","to":"paid","source":"ada","meta":{"local_proof_id":4,"local_contract_version":"2025-12-28"}}','pazar:proof:status_change:4','processing',1,NULL,1767776400000000,1767776400000000,'8a668ccf6e5b406191644f66babb3d35',1768032000000000,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'[]',1767772800000000,1767772800000000);
INSERT INTO "hos_outbox_events" VALUES(5,'acme','status_change','order:due','{"idempotency_key":"pazar:proof:status_change:5","tenant_id":"acme","subject_ref":{"type":"order","id":"due"},"from":"pending","to":"paid","source":"ada","meta":{"local_proof_id":5,"local_contract_version":"2025-12-28"}}','pazar:proof:status_change:5','pending',0,NULL,1767772800000000,NULL,NULL,1768032000000000,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'[]',1767772800000000,1767772800000000);
CREATE TABLE hos_proof_heads (
    tenant_id TEXT    NOT NULL PRIMARY KEY,
    proof_id  INTEGER NOT NULL,
    hash      TEXT    NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO "hos_proof_heads" VALUES('acme',6,'6d5a9b4604ff975ca0de0c221ea9582f05513cb762d47aae4ec88360e98b4cdd');
CREATE TABLE hos_proofs (
    proof_id         INTEGER NOT NULL PRIMARY KEY,
    occurred_at      INTEGER NOT NULL,
    tenant_id        TEXT    NOT NULL,
    actor_id         TEXT,
    source           TEXT    NOT NULL,
    kind             TEXT    NOT NULL,
    subject_type     TEXT,
    subject_id       TEXT,
    from_status      TEXT,
    to_status        TEXT,
    payload          TEXT    NOT NULL,
    request_id       TEXT,
    idempotency_key  TEXT,
    request_hash     TEXT    NOT NULL,
    contract_version TEXT,
    prev_hash        TEXT    NOT NULL,
    hash             TEXT    NOT NULL
) STRICT;
INSERT INTO "hos_proofs" VALUES(1,1767772800000000,'acme',NULL,'ada','status_change','order','sent','pending','paid','{"version":1}',NULL,'pay sent','7199ad1e5c2d31ea86049f7880a6f6633bcab01826fbd6286cefb0ec64bf9f71','2025-12-28','0000000000000000000000000000000000000000000000000000000000000000','d0e2467edb99824d627577e2184bb634c4f9d814e8b31f31e3a46525486f5912');
INSERT INTO "hos_proofs" VALUES(2,1767772800000000,'acme',NULL,'ada','status_change','order','rejected','pending','paid','{"version":1}',NULL,'pay rejected','9e5ea7e6a7483337b974eae52c9a547dc1c70130fa8a575c603877cc998a6d3b','2025-12-28','d0e2467edb99824d627577e2184bb634c4f9d814e8b31f31e3a46525486f5912','c2eea5dad3aca777d24e49abc958cdb9729feb1efd2591d1402876aca6da7b27');
INSERT INTO "hos_proofs" VALUES(3,1767772800000000,'acme',NULL,'ada','status_change','order','dead','pending','paid','{"version":1}',NULL,'pay dead','825abce20be9dfc1e9c47f17de06af074308ca165baa5660c6a2c800d3e130b4','2025-12-28','c2eea5dad3aca777d24e49abc958cdb9729feb1efd2591d1402876aca6da7b27','cfd8567875d65efdde31e5e4083f0de94d41bd1b56243e9d70d13c23872c2578');
INSERT INTO "hos_proofs" VALUES(4,1767772800000000,'acme',NULL,'ada','status_change','order','leased','pending','paid','{"version":1}',NULL,'pay leased','1244dcd40a28bf90faa51dd81fca532927fcf328360bcb579b9056f60bead7be','2025-12-28','cfd8567875d65efdde31e5e4083f0de94d41bd1b56243e9d70d13c23872c2578','c364dfa459111b31855e6be61714f2d661387fa6d5dddb412af859cbb39dfb1f');
INSERT INTO "hos_proofs" VALUES(5,1767772800000000,'acme',NULL,'ada','status_change','order','due','pending','paid','{"version":1}',NULL,'pay due','4d29c4ad9903b31b293c296663e6f73d7d2fc9020f26b261df558717f54592b3','2025-12-28','c364dfa459111b31855e6be61714f2d661387fa6d5dddb412af859cbb39dfb1f','a47958401e2b2a8a84b395e8af81383f004678d0efa4511aac7af142a7686c83');
INSERT INTO "hos_proofs" VALUES(6,1767772800000000,'acme',NULL,'ada','note',NULL,NULL,NULL,NULL,'{"text": "seen"}',NULL,'note-1','b7220f966e06f18f23c6c55bcbd93ffa96cad5c8a47947310f158b41f0d33aa0',NULL,'a47958401e2b2a8a84b395e8af81383f004678d0efa4511aac7af142a7686c83','6d5a9b4604ff975ca0de0c221ea9582f05513cb762d47aae4ec88360e98b4cdd');
CREATE TABLE jobs (
    id            BLOB    NOT NULL PRIMARY KEY CHECK (length(id) = 16),
    tenant        TEXT    NOT NULL,
    flow          TEXT    NOT NULL,
    flow_version  INTEGER NOT NULL,
    created_at    INTEGER NOT NULL,
    submitter     TEXT    NOT NULL,
    dedup_key     TEXT,
    priority      INTEGER NOT NULL CHECK (priority BETWEEN 0 AND 3),
    expires_at    INTEGER,
    scheduled_for INTEGER,
    state         TEXT    NOT NULL,
    role          TEXT    NOT NULL,
    version       INTEGER NOT NULL,
    seq           INTEGER NOT NULL,
    round         INTEGER NOT NULL,
    attempt       INTEGER NOT NULL,
    lapses        INTEGER NOT NULL,
    changed_at    INTEGER NOT NULL,
    code          TEXT,
    permanent     INTEGER NOT NULL,
    resume        TEXT,
    started       TEXT    NOT NULL,
    undo_to       TEXT,
    has_results   INTEGER NOT NULL,
    lane          TEXT    NOT NULL,
    not_before    INTEGER NOT NULL,
    slot          TEXT,
    parked_on     TEXT,
    awaits        TEXT,
    deadline_at   INTEGER,
    wake_at       INTEGER,
    leased_by     TEXT,
    leased_at     INTEGER,
    token         INTEGER NOT NULL,
    stood         INTEGER NOT NULL,
    lapsed        INTEGER NOT NULL,
    requests      INTEGER NOT NULL, keys TEXT, rate TEXT, cost INTEGER NOT NULL DEFAULT 0,
    CHECK (leased_by IS NULL OR parked_on IS NULL)
) STRICT, WITHOUT ROWID;
INSERT INTO "jobs" VALUES(X'019B8D2B8C007000832AC54378D4057D','','order',1,1767600000000000,'','expired',1,1767607200000000,NULL,'expired','expired',2,2,1,0,0,1767607200000000,'expired',0,'new','',NULL,0,'',1767607200000000,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,0,0,0,NULL,NULL,0);
INSERT INTO "jobs" VALUES(X'019B8D2B8C00700085A468A23C2AEDE2','acme','claim',1,1767600000000000,'ada',NULL,1,NULL,NULL,'requested','held',1,1,1,0,0,1767600000000000,NULL,0,NULL,'',NULL,0,'',1767600000000000,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,0,0,0,NULL,NULL,0);
INSERT INTO "jobs" VALUES(X'019B8D2B8C007000863FD75AB1E612CE','acme','claim',1,1767600000000000,'ada',NULL,1,NULL,NULL,'approved','waiting',2,2,1,0,0,1767600000000000,NULL,0,NULL,'',NULL,1,'',1767600000000000,NULL,NULL,'paid',NULL,NULL,NULL,NULL,0,0,0,0,NULL,NULL,0);
INSERT INTO "jobs" VALUES(X'019B8D2B8C0070008B2C6CE343C638F8','acme','order',1,1767600000000000,'','permanent',1,NULL,NULL,'failed','failed',4,4,1,0,0,1767600000000000,'permanent',1,'packing','',NULL,1,'',1767600000000000,NULL,NULL,NULL,NULL,NULL,NULL,1767600000000000,2,0,0,0,NULL,NULL,0);
INSERT INTO "jobs" VALUES(X'019B8D2B8C00700094C1BA173FB1247B','globex','order',1,1767600000000000,'','done too',1,NULL,NULL,'sent','done',5,5,1,0,0,1767600000000000,NULL,0,NULL,'',NULL,1,'',1767600000000000,NULL,NULL,NULL,NULL,NULL,NULL,1767600000000000,2,0,0,0,NULL,NULL,0);
INSERT INTO "jobs" VALUES(X'019B8D2B8C00700095BF23341D4BAEB6','acme','order',1,1767600000000000,'ada','done',1,NULL,NULL,'sent','done',5,5,1,0,0,1767600000000000,NULL,0,NULL,'',NULL,1,'',1767600000000000,NULL,NULL,NULL,NULL,NULL,NULL,1767600000000000,2,0,0,0,NULL,NULL,0);
INSERT INTO "jobs" VALUES(X'019B8D2B8C0070009A31D8457459A85E','','order',1,1767600000000000,'','cancelled',1,NULL,NULL,'cancelled','cancelled',2,2,1,0,0,1767600000000000,'cancelled',0,'new','',NULL,0,'',1767600000000000,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,0,0,0,NULL,NULL,0);
INSERT INTO "jobs" VALUES(X'019B8D2B8C007000B3930C96AF0E4F4F','globex','claim',1,1767600000000000,'ada',NULL,1,NULL,NULL,'settled','done',3,3,1,0,0,1767600000000000,NULL,0,NULL,'',NULL,1,'',1767600000000000,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,0,0,0,NULL,NULL,0);
INSERT INTO "jobs" VALUES(X'019B8D2B8C007000B617867386138993','acme','order',1,1767600000000000,'ada','failed',1,NULL,NULL,'failed','failed',5,5,1,0,0,1767603600000000,'raised',0,'packing','',NULL,1,'',1767603600000000,NULL,NULL,NULL,NULL,NULL,NULL,1767603600000000,4,0,0,0,NULL,NULL,0);
INSERT INTO "jobs" VALUES(X'019B8D2B8C007000B62463D134CA804E','','order',1,1767600000000000,'','dead message',1,NULL,NULL,'sent','done',5,5,1,0,0,1767600000000000,NULL,0,NULL,'',NULL,1,'',1767600000000000,NULL,NULL,NULL,NULL,NULL,NULL,1767600000000000,2,0,0,0,NULL,NULL,0);
INSERT INTO "jobs" VALUES(X'019B8D2B8C007000BCAED3A8B94F1993','acme','claim',1,1767600000000000,'ada',NULL,1,NULL,NULL,'settled','done',3,3,1,0,0,1767600000000000,NULL,0,NULL,'',NULL,1,'',1767600000000000,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,0,0,0,NULL,NULL,0);
INSERT INTO "jobs" VALUES(X'019B8E07460070009F010413F199FD8B','','count',1,1767614400000000,'schedule:half-daily',NULL,1,NULL,1767614400000000,'done','done',2,2,1,0,0,1767657600000000,NULL,0,NULL,'',NULL,1,'',1767657600000000,NULL,NULL,NULL,NULL,NULL,NULL,1767657600000000,2,0,0,0,NULL,NULL,0);
INSERT INTO "jobs" VALUES(X'019B909A74007000BFBE46BBF4CDD724','','count',1,1767657600000000,'schedule:half-daily',NULL,1,NULL,1767657600000000,'done','done',2,2,1,0,0,1767657600000000,NULL,0,NULL,'',NULL,1,'',1767657600000000,NULL,NULL,NULL,NULL,NULL,NULL,1767657600000000,2,0,0,0,NULL,NULL,0);
INSERT INTO "jobs" VALUES(X'019B932DA200700096D5810ABC985FFA','','count',1,1767700800000000,'schedule:half-daily',NULL,1,NULL,1767700800000000,'done','done',2,2,1,0,0,1767744000000000,NULL,0,NULL,'',NULL,1,'',1767744000000000,NULL,NULL,NULL,NULL,NULL,NULL,1767744000000000,2,0,0,0,NULL,NULL,0);
INSERT INTO "jobs" VALUES(X'019B95C0D0007000A1BED6AD1F118BA2','','count',1,1767744000000000,'schedule:half-daily',NULL,1,NULL,1767744000000000,'done','done',2,2,1,0,0,1767744000000000,NULL,0,NULL,'',NULL,1,'',1767744000000000,NULL,NULL,NULL,NULL,NULL,NULL,1767744000000000,2,0,0,0,NULL,NULL,0);
INSERT INTO "jobs" VALUES(X'019B97784400700080460EAFA0F6B3AD','','press',1,1767772800000000,'',NULL,1,NULL,NULL,'queued','ready',1,1,1,0,0,1767772800000000,NULL,0,NULL,'',NULL,0,'press/thread/press@1',1767772800000000,'press/queued/A',NULL,NULL,NULL,NULL,'fixture-17818-0f951fd7dd5e',1767772800000000,1,1,0,0,'{"queued":{"slot":"A"}}',NULL,0);
INSERT INTO "jobs" VALUES(X'019B977844007000805466EDB48A16C5','globex','report',1,1767772800000000,'',NULL,1,NULL,NULL,'done','done',2,2,1,0,0,1767772800000000,NULL,0,NULL,'',NULL,1,'',1767772800000000,NULL,NULL,NULL,NULL,NULL,NULL,1767772800000000,2,0,0,0,NULL,NULL,0);
INSERT INTO "jobs" VALUES(X'019B9778440070008969665F1D8DB175','','order',1,1767772800000000,'','unsent',1,NULL,NULL,'sent','done',5,5,1,0,0,1767772800000000,NULL,0,NULL,'',NULL,1,'',1767772800000000,NULL,NULL,NULL,NULL,NULL,NULL,1767772800000000,2,0,0,0,NULL,NULL,0);
INSERT INTO "jobs" VALUES(X'019B97784400700090996115353B3297','acme','order',1,1767772800000000,'','crashed',1,NULL,NULL,'packing','busy',3,3,1,0,0,1767772800000000,NULL,0,NULL,'',NULL,1,'order/thread/order@1',1767772800000000,NULL,NULL,NULL,NULL,NULL,'fixture-17818-0f951fd7dd5e',1767772800000000,1,1,0,0,NULL,NULL,0);
INSERT INTO "jobs" VALUES(X'019B97784400700090DE4E29CFDDF966','','press',1,1767772800000000,'',NULL,1,NULL,NULL,'queued','ready',1,1,1,0,0,1767772800000000,NULL,0,NULL,'',NULL,0,'press/thread/press@1',1767772800000000,'press/queued/A','press/queued/A',NULL,NULL,NULL,NULL,NULL,0,0,0,0,'{"queued":{"slot":"A"}}',NULL,0);
INSERT INTO "jobs" VALUES(X'019B97784400700094DD20CF49E81F1B','','order',1,1767772800000000,'','delayed',1,NULL,NULL,'new','ready',1,1,1,0,0,1767772800000000,NULL,0,NULL,'',NULL,0,'order/thread/order@1',1767859200000000,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,0,0,0,NULL,NULL,0);
INSERT INTO "jobs" VALUES(X'019B9778440070009CF80AC5C3FCDF86','','nap',1,1767772800000000,'',NULL,1,NULL,NULL,'asleep','waiting',1,1,1,0,0,1767772800000000,NULL,0,NULL,'',NULL,0,'',1767772800000000,NULL,NULL,NULL,1767945600000000,1767945600000000,NULL,NULL,0,0,0,0,NULL,NULL,0);
INSERT INTO "jobs" VALUES(X'019B9778440070009D2A3F2ED875E70D','','press',1,1767772800000000,'',NULL,1,NULL,NULL,'queued','ready',1,1,1,0,0,1767772800000000,NULL,0,NULL,'',NULL,0,'press/thread/press@1',1767772800000000,'press/queued/B','/key/B',NULL,NULL,NULL,NULL,NULL,0,0,0,0,'{"queued":{"slot":"B"}}',NULL,0);
INSERT INTO "jobs" VALUES(X'019B9778440070009D48B2F3737A3EFD','acme','order',1,1767772800000000,'ada','held',1,NULL,NULL,'held','held',4,4,1,0,0,1767772800000000,'customs',0,'packing','',NULL,1,'',1767772800000000,NULL,NULL,NULL,NULL,NULL,NULL,1767772800000000,2,0,0,0,NULL,NULL,0);
INSERT INTO "jobs" VALUES(X'019B9778440070009D5A521AA47844A9','','order',1,1767772800000000,'ada','ready',0,NULL,NULL,'new','ready',1,1,1,0,0,1767772800000000,NULL,0,NULL,'',NULL,0,'order/thread/order@1',1767772800000000,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,0,0,0,NULL,NULL,0);
INSERT INTO "jobs" VALUES(X'019B9778440070009EEA7A3602CAB01F','globex','report',1,1767772800000000,'',NULL,1,NULL,NULL,'queued','ready',1,1,1,0,0,1767772800000000,NULL,0,NULL,'',NULL,0,'report/loop/report@1/globex',1767772800000000,NULL,'/rate/report/queued',NULL,NULL,NULL,NULL,NULL,0,0,0,0,NULL,'report/queued',1);
INSERT INTO "jobs" VALUES(X'019B977844007000A75A5306D011021F','acme','report',1,1767772800000000,'',NULL,1,NULL,NULL,'done','done',2,2,1,0,0,1767772800000000,NULL,0,NULL,'',NULL,1,'',1767772800000000,NULL,NULL,NULL,NULL,NULL,NULL,1767772800000000,2,0,0,0,NULL,NULL,0);
INSERT INTO "jobs" VALUES(X'019B977844007000A818A7211873BC8B','acme','booking',1,1767772800000000,'',NULL,1,NULL,NULL,'undoing','undoing',4,4,1,1,0,1767772800000000,'raised',0,'booked','asked','failed',1,'booking/thread/booking@1',1767776400000000,NULL,NULL,NULL,NULL,NULL,NULL,1767772800000000,4,1,0,0,NULL,NULL,0);
INSERT INTO "jobs" VALUES(X'019B977844007000AC313B81A951E249','acme','report',1,1767772800000000,'',NULL,1,NULL,NULL,'queued','ready',1,1,1,0,0,1767772800000000,NULL,0,NULL,'',NULL,0,'report/loop/report@1/acme',1767772800000000,NULL,'/rate/report/queued',NULL,NULL,NULL,NULL,NULL,0,0,0,0,NULL,'report/queued',1);
INSERT INTO "jobs" VALUES(X'019B977844007000B368EAAD7341B513','','quiet',1,1767772800000000,'',NULL,1,NULL,NULL,'queued','ready',1,1,1,0,0,1767772800000000,NULL,0,NULL,'',NULL,0,'night/loop/quiet@1',1767772800000000,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,0,0,0,NULL,NULL,0);
INSERT INTO "jobs" VALUES(X'019B977844007000B660C6D8EB339F61','acme','order',1,1767772800000000,'','retried',1,NULL,NULL,'packing','busy',4,4,1,1,0,1767772800000000,NULL,0,NULL,'',NULL,1,'order/thread/order@1',1767776400000000,NULL,NULL,NULL,NULL,NULL,NULL,1767772800000000,2,1,0,0,NULL,NULL,0);
INSERT INTO "jobs" VALUES(X'019B977844007000B7B8202C6694AEF7','acme','order',1,1767772800000000,'','asked',1,NULL,NULL,'packing','busy',3,3,1,0,0,1767772800000000,NULL,0,NULL,'',NULL,1,'order/thread/order@1',1767772800000000,NULL,NULL,NULL,NULL,NULL,'fixture-17818-0f951fd7dd5e',1767772800000000,1,1,0,1,NULL,NULL,0);
INSERT INTO "jobs" VALUES(X'3CB73D9665C24A92AFB80D40374881D0','','letter',2,1767600000000000,'ada',NULL,1,NULL,NULL,'written','held',1,1,1,0,0,1767600000000000,NULL,0,NULL,'',NULL,0,'',1767600000000000,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,0,0,0,NULL,NULL,0);
INSERT INTO "jobs" VALUES(X'6086E07241844C6C9BA831179ECC71B2','','letter',1,1767600000000000,'ada',NULL,1,NULL,NULL,'written','held',1,1,1,0,0,1767600000000000,NULL,0,NULL,'',NULL,0,'',1767600000000000,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,0,0,0,NULL,NULL,0);
CREATE TABLE limits (
    name     TEXT    NOT NULL PRIMARY KEY,
    n        INTEGER NOT NULL CHECK (n >= 0),
    declared INTEGER NOT NULL,
    keyed    INTEGER NOT NULL,
    actor    TEXT,
    at       INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO "limits" VALUES('order/packed',5,3,0,'ada',1767600000000000);
INSERT INTO "limits" VALUES('press/queued',1,1,1,NULL,1767600000000000);
CREATE TABLE outbox (
    position   INTEGER PRIMARY KEY AUTOINCREMENT,
    job_id     BLOB    NOT NULL,
    seq        INTEGER NOT NULL,
    n          INTEGER NOT NULL,
    key        TEXT    NOT NULL,
    topic      TEXT    NOT NULL,
    data       BLOB    NOT NULL,
    at         INTEGER NOT NULL,
    sent_at    INTEGER,
    tries      INTEGER NOT NULL DEFAULT 0,
    not_before INTEGER NOT NULL,
    dead       INTEGER NOT NULL DEFAULT 0,
    head       INTEGER NOT NULL DEFAULT 0,
    UNIQUE (job_id, seq, n)
) STRICT;
INSERT INTO "outbox" VALUES(1,X'019B8D2B8C00700094C1BA173FB1247B',4,0,'shared','packed',X'7B226E616D65223A22646F6E6520746F6F227D',1767600000000000,1767600000000000,0,1767600060000000,0,0);
INSERT INTO "outbox" VALUES(2,X'019B8D2B8C00700095BF23341D4BAEB6',4,0,'019b8d2b8c00700095bf23341d4baeb6','packed',X'7B226E616D65223A22646F6E65227D',1767600000000000,1767600000000000,0,1767600060000000,0,0);
INSERT INTO "outbox" VALUES(3,X'019B8D2B8C007000B62463D134CA804E',4,0,'blocked for good','packed',X'7B226E616D65223A2264656164206D657373616765227D',1767600000000000,NULL,11,1767601081280546,1,0);
INSERT INTO "outbox" VALUES(4,X'019B9778440070008969665F1D8DB175',4,0,'blocked today','packed',X'7B226E616D65223A22756E73656E74227D',1767772800000000,NULL,1,1767772801051681,0,1);
CREATE TABLE pauses (
    kind     TEXT    NOT NULL CHECK (kind = 'queue' OR kind = 'flow' OR kind = 'key'),
    name     TEXT    NOT NULL,
    until_at INTEGER,
    actor    TEXT    NOT NULL,
    note     TEXT,
    at       INTEGER NOT NULL,
    PRIMARY KEY (kind, name)
) STRICT, WITHOUT ROWID;
INSERT INTO "pauses" VALUES('key','B',NULL,'ada','machine B is being cleaned',1767600000000000);
INSERT INTO "pauses" VALUES('queue','night',NULL,'ada','neighbours',1767600000000000);
CREATE TABLE payloads (
    job_id BLOB    NOT NULL PRIMARY KEY,
    data   BLOB    NOT NULL,
    schema INTEGER NOT NULL
, trace TEXT) STRICT, WITHOUT ROWID;
INSERT INTO "payloads" VALUES(X'019B8D2B8C007000832AC54378D4057D',X'7B226E616D65223A2265787069726564227D',1,NULL);
INSERT INTO "payloads" VALUES(X'019B8D2B8C00700085A468A23C2AEDE2',X'7B226E616D65223A2267617465227D',1,NULL);
INSERT INTO "payloads" VALUES(X'019B8D2B8C007000863FD75AB1E612CE',X'7B226E616D65223A227369676E616C227D',1,NULL);
INSERT INTO "payloads" VALUES(X'019B8D2B8C0070008B2C6CE343C638F8',X'7B226E616D65223A227065726D616E656E74222C22686F77223A227065726D616E656E74227D',1,NULL);
INSERT INTO "payloads" VALUES(X'019B8D2B8C00700094C1BA173FB1247B',X'7B226E616D65223A22646F6E6520746F6F222C226B6579223A22736861726564227D',1,NULL);
INSERT INTO "payloads" VALUES(X'019B8D2B8C00700095BF23341D4BAEB6',X'7B226E616D65223A22646F6E65227D',1,NULL);
INSERT INTO "payloads" VALUES(X'019B8D2B8C0070009A31D8457459A85E',X'7B226E616D65223A2263616E63656C6C6564227D',1,NULL);
INSERT INTO "payloads" VALUES(X'019B8D2B8C007000B3930C96AF0E4F4F',X'7B226E616D65223A22736574746C656420676C6F626578227D',1,NULL);
INSERT INTO "payloads" VALUES(X'019B8D2B8C007000B617867386138993',X'7B226E616D65223A226661696C6564222C22686F77223A227472616E7369656E74227D',1,NULL);
INSERT INTO "payloads" VALUES(X'019B8D2B8C007000B62463D134CA804E',X'7B226E616D65223A2264656164206D657373616765222C226B6579223A22626C6F636B656420666F7220676F6F64227D',1,NULL);
INSERT INTO "payloads" VALUES(X'019B8D2B8C007000BCAED3A8B94F1993',X'7B226E616D65223A22736574746C65642061636D65227D',1,NULL);
INSERT INTO "payloads" VALUES(X'019B8E07460070009F010413F199FD8B',X'7B226E616D65223A227469636B227D',1,NULL);
INSERT INTO "payloads" VALUES(X'019B909A74007000BFBE46BBF4CDD724',X'7B226E616D65223A227469636B227D',1,NULL);
INSERT INTO "payloads" VALUES(X'019B932DA200700096D5810ABC985FFA',X'7B226E616D65223A227469636B227D',1,NULL);
INSERT INTO "payloads" VALUES(X'019B95C0D0007000A1BED6AD1F118BA2',X'7B226E616D65223A227469636B227D',1,NULL);
INSERT INTO "payloads" VALUES(X'019B97784400700080460EAFA0F6B3AD',X'7B226E616D65223A2270726573736564222C226D616368696E65223A2241227D',1,NULL);
INSERT INTO "payloads" VALUES(X'019B977844007000805466EDB48A16C5',X'7B226E616D65223A227265706F72742032227D',1,NULL);
INSERT INTO "payloads" VALUES(X'019B9778440070008969665F1D8DB175',X'7B226E616D65223A22756E73656E74222C226B6579223A22626C6F636B656420746F646179227D',1,NULL);
INSERT INTO "payloads" VALUES(X'019B97784400700090996115353B3297',X'7B226E616D65223A2263726173686564227D',1,NULL);
INSERT INTO "payloads" VALUES(X'019B97784400700090DE4E29CFDDF966',X'7B226E616D65223A227365636F6E64222C226D616368696E65223A2241227D',1,NULL);
INSERT INTO "payloads" VALUES(X'019B97784400700094DD20CF49E81F1B',X'7B226E616D65223A2264656C61796564227D',1,NULL);
INSERT INTO "payloads" VALUES(X'019B9778440070009CF80AC5C3FCDF86',X'7B226E616D65223A226E617070696E67227D',1,NULL);
INSERT INTO "payloads" VALUES(X'019B9778440070009D2A3F2ED875E70D',X'7B226E616D65223A22706175736564206B6579222C226D616368696E65223A2242227D',1,NULL);
INSERT INTO "payloads" VALUES(X'019B9778440070009D48B2F3737A3EFD',X'7B226E616D65223A2268656C64222C22686F77223A22686F6C64227D',1,NULL);
INSERT INTO "payloads" VALUES(X'019B9778440070009D5A521AA47844A9',X'7B226E616D65223A227265616479227D',1,NULL);
INSERT INTO "payloads" VALUES(X'019B9778440070009EEA7A3602CAB01F',X'7B226E616D65223A227265706F72742033227D',1,NULL);
INSERT INTO "payloads" VALUES(X'019B977844007000A75A5306D011021F',X'7B226E616D65223A227265706F72742030227D',1,NULL);
INSERT INTO "payloads" VALUES(X'019B977844007000A818A7211873BC8B',X'7B226E616D65223A22756E646F696E67227D',1,NULL);
INSERT INTO "payloads" VALUES(X'019B977844007000AC313B81A951E249',X'7B226E616D65223A227265706F72742031227D',1,NULL);
INSERT INTO "payloads" VALUES(X'019B977844007000B368EAAD7341B513',X'7B226E616D65223A22706175736564207175657565227D',1,NULL);
INSERT INTO "payloads" VALUES(X'019B977844007000B660C6D8EB339F61',X'7B226E616D65223A2272657472696564222C22686F77223A227472616E7369656E74227D',1,NULL);
INSERT INTO "payloads" VALUES(X'019B977844007000B7B8202C6694AEF7',X'7B226E616D65223A2261736B6564227D',1,NULL);
INSERT INTO "payloads" VALUES(X'3CB73D9665C24A92AFB80D40374881D0',X'7B226E616D65223A226C65747465722032227D',1,NULL);
INSERT INTO "payloads" VALUES(X'6086E07241844C6C9BA831179ECC71B2',X'7B226E616D65223A226C65747465722031227D',1,NULL);
CREATE TABLE progress (
    job_id   BLOB    NOT NULL PRIMARY KEY,
    fraction REAL    NOT NULL,
    note     TEXT,
    at       INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO "progress" VALUES(X'019B97784400700080460EAFA0F6B3AD',0.5,'half way',1767772800000000);
INSERT INTO "progress" VALUES(X'019B97784400700090996115353B3297',0.5,'half way',1767772800000000);
INSERT INTO "progress" VALUES(X'019B977844007000B7B8202C6694AEF7',0.5,'half way',1767772800000000);
CREATE TABLE proof_heads (
    tenant   TEXT    NOT NULL PRIMARY KEY,
    proof_id INTEGER NOT NULL,
    hash     BLOB    NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO "proof_heads" VALUES('acme',6,X'5737BC74BEE4F9649F50E0E614AAC3E558A2F36B53765A5A9656C6A4CC413435');
INSERT INTO "proof_heads" VALUES('globex',3,X'BDC49B104A22E3FF9525D5866F561E7F355F8411E7E6912449C3D1AC4985E8A0');
CREATE TABLE proofs (
    tenant   TEXT    NOT NULL,
    proof_id INTEGER NOT NULL CHECK (proof_id > 0),
    job_id   BLOB    NOT NULL,
    seq      INTEGER NOT NULL,
    body     BLOB    NOT NULL,
    hash     BLOB    NOT NULL,
    PRIMARY KEY (tenant, proof_id)
) STRICT, WITHOUT ROWID;
INSERT INTO "proofs" VALUES('acme',1,X'019B8D2B8C007000BCAED3A8B94F1993',1,X'30313962386432623863303037303030626361656433613862393466313939331F311F7375626D69747465641F1F7265717565737465641F6164611F1F1F1F31373637363030303030303030303030',X'FB2F33D33C70B51189053EECE5A4C4DE8D23FBD26676FE6533A39DE5C5B0A3C1');
INSERT INTO "proofs" VALUES('acme',2,X'019B8D2B8C007000BCAED3A8B94F1993',2,X'30313962386432623863303037303030626361656433613862393466313939331F321F646563696465641F7265717565737465641F617070726F7665641F626F621F617070726F76651F7365656E1F1F31373637363030303030303030303030',X'AD1B824A8835CCAC04AD7B927A99D5C3B34A34462A1A9AAB650044F21BCBA83F');
INSERT INTO "proofs" VALUES('acme',3,X'019B8D2B8C007000BCAED3A8B94F1993',3,X'30313962386432623863303037303030626361656433613862393466313939331F331F7369676E616C6C65641F617070726F7665641F736574746C65641F62616E6B1F706169641F1F1F31373637363030303030303030303030',X'8F19E37D966A5D9E28FF4D3BA76C16C6C8DBF9FA8C2B3872EFB963735ACE5FC1');
INSERT INTO "proofs" VALUES('acme',4,X'019B8D2B8C00700085A468A23C2AEDE2',1,X'30313962386432623863303037303030383561343638613233633261656465321F311F7375626D69747465641F1F7265717565737465641F6164611F1F1F1F31373637363030303030303030303030',X'3DE821E9D037D1CCA7722003C8E0A6F339AA1C3AA7A43F8396EC2593040F42A1');
INSERT INTO "proofs" VALUES('acme',5,X'019B8D2B8C007000863FD75AB1E612CE',1,X'30313962386432623863303037303030383633666437356162316536313263651F311F7375626D69747465641F1F7265717565737465641F6164611F1F1F1F31373637363030303030303030303030',X'23F5D800478BBBBE2266A86EF8C12FA0CC5DF3E0BD291AFA37FB0060CF6A9FBF');
INSERT INTO "proofs" VALUES('acme',6,X'019B8D2B8C007000863FD75AB1E612CE',2,X'30313962386432623863303037303030383633666437356162316536313263651F321F646563696465641F7265717565737465641F617070726F7665641F626F621F617070726F76651F1F1F31373637363030303030303030303030',X'5737BC74BEE4F9649F50E0E614AAC3E558A2F36B53765A5A9656C6A4CC413435');
INSERT INTO "proofs" VALUES('globex',1,X'019B8D2B8C007000B3930C96AF0E4F4F',1,X'30313962386432623863303037303030623339333063393661663065346634661F311F7375626D69747465641F1F7265717565737465641F6164611F1F1F1F31373637363030303030303030303030',X'302C036ADB0B35BA2726F17BDE6D415E322EEBBDCA8C7B28B1FB430657BA9369');
INSERT INTO "proofs" VALUES('globex',2,X'019B8D2B8C007000B3930C96AF0E4F4F',2,X'30313962386432623863303037303030623339333063393661663065346634661F321F646563696465641F7265717565737465641F617070726F7665641F626F621F617070726F76651F7365656E1F1F31373637363030303030303030303030',X'6273D01CF633253F48B0A949FB4AAA694B83D3FC08DC1CB8BE8DDA720E3B11F6');
INSERT INTO "proofs" VALUES('globex',3,X'019B8D2B8C007000B3930C96AF0E4F4F',3,X'30313962386432623863303037303030623339333063393661663065346634661F331F7369676E616C6C65641F617070726F7665641F736574746C65641F62616E6B1F706169641F1F1F31373637363030303030303030303030',X'BDC49B104A22E3FF9525D5866F561E7F355F8411E7E6912449C3D1AC4985E8A0');
CREATE TABLE rates (
    name            TEXT    NOT NULL PRIMARY KEY,
    n               INTEGER NOT NULL CHECK (n > 0),
    per_us          INTEGER NOT NULL CHECK (per_us > 0),
    burst           INTEGER NOT NULL CHECK (burst > 0),
    declared_n      INTEGER NOT NULL,
    declared_per_us INTEGER NOT NULL,
    declared_burst  INTEGER NOT NULL,
    actor           TEXT,
    at              INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO "rates" VALUES('report/queued',4,1000000,2,2,1000000,2,'ada',1767600000000000);
CREATE TABLE requests (
    job_id BLOB    NOT NULL,
    kind   TEXT    NOT NULL,
    name   TEXT    NOT NULL,
    actor  TEXT    NOT NULL,
    note   TEXT,
    data   BLOB,
    at     INTEGER NOT NULL,
    PRIMARY KEY (job_id, kind, name)
) STRICT, WITHOUT ROWID;
INSERT INTO "requests" VALUES(X'019B977844007000B7B8202C6694AEF7','cancel','','ada','changed her mind',NULL,1767772800000000);
CREATE TABLE results (
    job_id BLOB    NOT NULL,
    round  INTEGER NOT NULL,
    stage  TEXT    NOT NULL,
    name   TEXT    NOT NULL,
    data   BLOB    NOT NULL,
    PRIMARY KEY (job_id, round, stage, name)
) STRICT, WITHOUT ROWID;
INSERT INTO "results" VALUES(X'019B8D2B8C007000863FD75AB1E612CE',1,'requested','',X'7B2263686F696365223A22617070726F7665222C226163746F72223A22626F62222C226E6F7465223A22222C226174223A313736373630303030303030303030302C2264617461223A6E756C6C7D');
INSERT INTO "results" VALUES(X'019B8D2B8C0070008B2C6CE343C638F8',1,'new','label',X'226C6162656C207065726D616E656E7422');
INSERT INTO "results" VALUES(X'019B8D2B8C00700094C1BA173FB1247B',1,'new','',X'7B226C6162656C223A226C6162656C20646F6E6520746F6F222C226279223A2230227D');
INSERT INTO "results" VALUES(X'019B8D2B8C00700094C1BA173FB1247B',1,'new','label',X'226C6162656C20646F6E6520746F6F22');
INSERT INTO "results" VALUES(X'019B8D2B8C00700094C1BA173FB1247B',1,'packed','',X'7B226C6162656C223A226C6162656C20646F6E6520746F6F222C226279223A2230222C2273656E745F6279223A2230227D');
INSERT INTO "results" VALUES(X'019B8D2B8C00700095BF23341D4BAEB6',1,'new','',X'7B226C6162656C223A226C6162656C20646F6E65222C226279223A2230227D');
INSERT INTO "results" VALUES(X'019B8D2B8C00700095BF23341D4BAEB6',1,'new','label',X'226C6162656C20646F6E6522');
INSERT INTO "results" VALUES(X'019B8D2B8C00700095BF23341D4BAEB6',1,'packed','',X'7B226C6162656C223A226C6162656C20646F6E65222C226279223A2230222C2273656E745F6279223A2230227D');
INSERT INTO "results" VALUES(X'019B8D2B8C007000B3930C96AF0E4F4F',1,'approved','',X'7B22616D6F756E74223A31327D');
INSERT INTO "results" VALUES(X'019B8D2B8C007000B3930C96AF0E4F4F',1,'requested','',X'7B2263686F696365223A22617070726F7665222C226163746F72223A22626F62222C226E6F7465223A227365656E222C226174223A313736373630303030303030303030302C2264617461223A6E756C6C7D');
INSERT INTO "results" VALUES(X'019B8D2B8C007000B617867386138993',1,'new','label',X'226C6162656C206661696C656422');
INSERT INTO "results" VALUES(X'019B8D2B8C007000B62463D134CA804E',1,'new','',X'7B226C6162656C223A226C6162656C2064656164206D657373616765222C226279223A2230227D');
INSERT INTO "results" VALUES(X'019B8D2B8C007000B62463D134CA804E',1,'new','label',X'226C6162656C2064656164206D65737361676522');
INSERT INTO "results" VALUES(X'019B8D2B8C007000B62463D134CA804E',1,'packed','',X'7B226C6162656C223A226C6162656C2064656164206D657373616765222C226279223A2230222C2273656E745F6279223A2230227D');
INSERT INTO "results" VALUES(X'019B8D2B8C007000BCAED3A8B94F1993',1,'approved','',X'7B22616D6F756E74223A31327D');
INSERT INTO "results" VALUES(X'019B8D2B8C007000BCAED3A8B94F1993',1,'requested','',X'7B2263686F696365223A22617070726F7665222C226163746F72223A22626F62222C226E6F7465223A227365656E222C226174223A313736373630303030303030303030302C2264617461223A6E756C6C7D');
INSERT INTO "results" VALUES(X'019B8E07460070009F010413F199FD8B',1,'counted','',X'223022');
INSERT INTO "results" VALUES(X'019B909A74007000BFBE46BBF4CDD724',1,'counted','',X'223022');
INSERT INTO "results" VALUES(X'019B932DA200700096D5810ABC985FFA',1,'counted','',X'223022');
INSERT INTO "results" VALUES(X'019B95C0D0007000A1BED6AD1F118BA2',1,'counted','',X'223022');
INSERT INTO "results" VALUES(X'019B977844007000805466EDB48A16C5',1,'queued','',X'223022');
INSERT INTO "results" VALUES(X'019B9778440070008969665F1D8DB175',1,'new','',X'7B226C6162656C223A226C6162656C20756E73656E74222C226279223A2230227D');
INSERT INTO "results" VALUES(X'019B9778440070008969665F1D8DB175',1,'new','label',X'226C6162656C20756E73656E7422');
INSERT INTO "results" VALUES(X'019B9778440070008969665F1D8DB175',1,'packed','',X'7B226C6162656C223A226C6162656C20756E73656E74222C226279223A2230222C2273656E745F6279223A2230227D');
INSERT INTO "results" VALUES(X'019B97784400700090996115353B3297',1,'new','label',X'226C6162656C206372617368656422');
INSERT INTO "results" VALUES(X'019B9778440070009D48B2F3737A3EFD',1,'new','label',X'226C6162656C2068656C6422');
INSERT INTO "results" VALUES(X'019B977844007000A75A5306D011021F',1,'queued','',X'223022');
INSERT INTO "results" VALUES(X'019B977844007000A818A7211873BC8B',1,'asked','',X'227365617420313222');
INSERT INTO "results" VALUES(X'019B977844007000B660C6D8EB339F61',1,'new','label',X'226C6162656C207265747269656422');
INSERT INTO "results" VALUES(X'019B977844007000B7B8202C6694AEF7',1,'new','label',X'226C6162656C2061736B656422');
CREATE TABLE schedules (
    name         TEXT    NOT NULL PRIMARY KEY,
    flow         TEXT    NOT NULL,
    flow_version INTEGER NOT NULL,
    tenant       TEXT    NOT NULL,
    priority     INTEGER NOT NULL CHECK (priority BETWEEN 0 AND 3),
    expires_us   INTEGER,
    payload      BLOB    NOT NULL,
    rule         TEXT    NOT NULL,
    zone         TEXT    NOT NULL,
    catch_up     TEXT    NOT NULL,
    next_at      INTEGER NOT NULL,
    paused_at    INTEGER,
    paused_by    TEXT,
    pause_note   TEXT
) STRICT, WITHOUT ROWID;
INSERT INTO "schedules" VALUES('half-daily','count',1,'',1,NULL,X'7B226E616D65223A227469636B227D','@every 43200s','UTC','last',1767787200000000,NULL,NULL,NULL);
INSERT INTO "schedules" VALUES('nightly','count',1,'',1,NULL,X'7B226E616D65223A226E69676874227D','0 3 * * *','Europe/Istanbul','last',1767657600000000,1767600000000000,'ada','holidays');
CREATE TABLE slots (
    limit_name TEXT    NOT NULL,
    n          INTEGER NOT NULL CHECK (n > 0),
    job_id     BLOB    UNIQUE,
    closed     INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (limit_name, n)
) STRICT, WITHOUT ROWID;
INSERT INTO "slots" VALUES('order/packed',1,NULL,0);
INSERT INTO "slots" VALUES('order/packed',2,NULL,0);
INSERT INTO "slots" VALUES('order/packed',3,NULL,0);
INSERT INTO "slots" VALUES('order/packed',4,NULL,0);
INSERT INTO "slots" VALUES('order/packed',5,NULL,0);
INSERT INTO "slots" VALUES('press/queued/A',1,X'019B97784400700080460EAFA0F6B3AD',0);
CREATE TABLE ticks (
    schedule TEXT    NOT NULL,
    due_at   INTEGER NOT NULL,
    job_id   BLOB    NOT NULL,
    PRIMARY KEY (schedule, due_at)
) STRICT, WITHOUT ROWID;
INSERT INTO "ticks" VALUES('half-daily',1767614400000000,X'019B8E07460070009F010413F199FD8B');
INSERT INTO "ticks" VALUES('half-daily',1767657600000000,X'019B909A74007000BFBE46BBF4CDD724');
INSERT INTO "ticks" VALUES('half-daily',1767700800000000,X'019B932DA200700096D5810ABC985FFA');
INSERT INTO "ticks" VALUES('half-daily',1767744000000000,X'019B95C0D0007000A1BED6AD1F118BA2');
CREATE TABLE turns (
    lane   TEXT    NOT NULL,
    tenant TEXT    NOT NULL,
    passed INTEGER NOT NULL,
    began  INTEGER NOT NULL,
    PRIMARY KEY (lane, tenant)
) STRICT, WITHOUT ROWID;
INSERT INTO "turns" VALUES('report/loop/report@1/*','acme',333333,0);
INSERT INTO "turns" VALUES('report/loop/report@1/*','globex',1000000,0);
CREATE TABLE weights (
    tenant TEXT    NOT NULL PRIMARY KEY,
    weight INTEGER NOT NULL CHECK (weight > 0),
    actor  TEXT    NOT NULL,
    at     INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO "weights" VALUES('acme',3,'ada',1767600000000000);
CREATE TABLE workers (
    id         TEXT    NOT NULL PRIMARY KEY,
    started_at INTEGER NOT NULL,
    renewed_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    lanes      TEXT    NOT NULL,
    about      TEXT    NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO "workers" VALUES('fixture-17818-0f951fd7dd5e',1767772800000000,1767772800000000,1767772830000000,'booking/thread/booking@1 count/loop/count@1 night/loop/quiet@1 order/loop/order@1 order/thread/order@1 press/thread/press@1 report/loop/report@1/*','fixture process 17818');
CREATE INDEX jobs_leased ON jobs (leased_by) WHERE leased_by IS NOT NULL;
CREATE INDEX jobs_parked ON jobs (parked_on, priority, not_before, id)
    WHERE parked_on IS NOT NULL;
CREATE INDEX jobs_waking ON jobs (wake_at) WHERE wake_at IS NOT NULL;
CREATE INDEX jobs_ended ON jobs (changed_at)
    WHERE lane = '' AND role <> 'held' AND role <> 'waiting';
CREATE INDEX jobs_remarkable ON jobs (role, id)
    WHERE role <> 'done' AND role <> 'ready' AND role <> 'busy';
CREATE INDEX slots_free ON slots (limit_name, n) WHERE job_id IS NULL AND closed = 0;
CREATE INDEX outbox_pending ON outbox (key, position) WHERE sent_at IS NULL AND dead = 0;
CREATE INDEX outbox_heads ON outbox (not_before, position) WHERE head = 1;
CREATE INDEX outbox_dead ON outbox (position) WHERE dead = 1;
CREATE INDEX proofs_first ON proofs (job_id) WHERE seq = 1;
CREATE INDEX schedules_due ON schedules (next_at, name) WHERE paused_at IS NULL;
CREATE INDEX ticks_of_job ON ticks (job_id);
CREATE INDEX jobs_claimable
    ON jobs (lane, priority, not_before, id, lapses, slot, rate, cost, parked_on, leased_by)
    WHERE leased_by IS NULL AND parked_on IS NULL AND lane <> '';
CREATE INDEX buckets_ready ON buckets (ready_at) WHERE ready_at IS NOT NULL;
CREATE INDEX pauses_ending ON pauses (until_at) WHERE until_at IS NOT NULL;
CREATE INDEX turns_began ON turns (lane, began);
CREATE INDEX audit_subject ON audit (subject, position);
CREATE UNIQUE INDEX hos_idempotency_keys_key ON hos_idempotency_keys (tenant_id, scope, key);
CREATE INDEX hos_idempotency_keys_expiry ON hos_idempotency_keys (expires_at);
CREATE INDEX hos_idempotency_keys_lease ON hos_idempotency_keys (lease_until)
    WHERE lease_until IS NOT NULL;
CREATE UNIQUE INDEX hos_proofs_key ON hos_proofs (tenant_id, kind, idempotency_key)
    WHERE idempotency_key IS NOT NULL;
CREATE INDEX hos_proofs_of_tenant ON hos_proofs (tenant_id, proof_id);
CREATE INDEX hos_proofs_of_subject ON hos_proofs (tenant_id, subject_type, subject_id, proof_id);
CREATE TRIGGER hos_proofs_are_not_updated BEFORE UPDATE ON hos_proofs
BEGIN
    SELECT RAISE(ABORT, 'proofs are only appended: a correction is a new proof');
END;
CREATE TRIGGER hos_proofs_are_not_deleted BEFORE DELETE ON hos_proofs
BEGIN
    SELECT RAISE(ABORT, 'proofs are only appended: a correction is a new proof');
END;
CREATE TRIGGER hos_proofs_are_not_replaced BEFORE INSERT ON hos_proofs
WHEN EXISTS (SELECT 1 FROM hos_proofs WHERE proof_id = NEW.proof_id)
    OR EXISTS (
        SELECT 1 FROM hos_proofs
        WHERE tenant_id = NEW.tenant_id AND kind = NEW.kind
            AND idempotency_key = NEW.idempotency_key
    )
BEGIN
    SELECT RAISE(ABORT, 'proofs are only appended: a correction is a new proof');
END;
CREATE UNIQUE INDEX hos_outbox_events_key
    ON hos_outbox_events (tenant_id, idempotency_key);
CREATE INDEX hos_outbox_events_open
    ON hos_outbox_events (tenant_id, aggregate, id)
    WHERE status <> 'sent' AND discarded_at IS NULL;
CREATE INDEX hos_outbox_events_due ON hos_outbox_events (available_at, id)
    WHERE status IN ('pending', 'processing');
CREATE INDEX hos_outbox_events_stuck ON hos_outbox_events (status, id)
    WHERE status IN ('rejected', 'dead') AND discarded_at IS NULL;
CREATE INDEX hos_outbox_events_attempts ON hos_outbox_events (attempted_at)
    WHERE attempted_at IS NOT NULL;
CREATE INDEX hos_outbox_events_drift ON hos_outbox_events (id)
    WHERE drift IS NOT NULL;
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('outbox',4);
INSERT INTO "sqlite_sequence" VALUES('audit',11);
INSERT INTO "sqlite_sequence" VALUES('hos_outbox_events',5);
COMMIT;
