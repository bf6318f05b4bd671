BEGIN TRANSACTION;
CREATE TABLE blocks (
        digest TEXT PRIMARY KEY, namespace_id INTEGER NOT NULL REFERENCES namespaces (id), page TEXT NOT NULL,
        dpi INTEGER NOT NULL, bytes INTEGER NOT NULL, checksum TEXT NOT NULL, created REAL NOT NULL, used REAL NOT NULL DEFAULT 0, cost REAL NOT NULL DEFAULT 0, state INTEGER NOT NULL DEFAULT 0, uploaded INTEGER NOT NULL DEFAULT 0) WITHOUT ROWID;
CREATE TABLE claims (digest TEXT PRIMARY KEY, writer TEXT NOT NULL, since REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE counters (
        namespace_id INTEGER NOT NULL REFERENCES namespaces (id), name TEXT NOT NULL, value INTEGER NOT NULL,
        PRIMARY KEY (namespace_id, name)) WITHOUT ROWID;
CREATE TABLE documents (
        id INTEGER PRIMARY KEY AUTOINCREMENT, namespace_id INTEGER NOT NULL REFERENCES namespaces (id),
        source TEXT NOT NULL, digest TEXT NOT NULL, metadata TEXT NOT NULL, UNIQUE (namespace_id, source));
INSERT INTO "documents" VALUES(1,1,'a.txt','digest of one|shared','{"n": 2}');
INSERT INTO "documents" VALUES(2,1,'b.txt','digest of shared|two','{"n": 2}');
INSERT INTO "documents" VALUES(3,2,X'636166EDB3A92E747874','digest of one','{"n": 1}');
CREATE TABLE links (
        document_id INTEGER NOT NULL REFERENCES documents (id) ON DELETE CASCADE, number INTEGER NOT NULL,
        page_id INTEGER NOT NULL REFERENCES pages (id), PRIMARY KEY (document_id, number)) WITHOUT ROWID;
INSERT INTO "links" VALUES(1,0,1099511627777);
INSERT INTO "links" VALUES(1,1,1099511627778);
INSERT INTO "links" VALUES(2,0,1099511627778);
INSERT INTO "links" VALUES(2,1,1099511627780);
INSERT INTO "links" VALUES(3,0,2199023255553);
CREATE TABLE namespaces (
        id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, generation INTEGER NOT NULL DEFAULT 0, quota INTEGER, last_page INTEGER NOT NULL DEFAULT 0);
INSERT INTO "namespaces" VALUES(1,'default',2,NULL,4);
INSERT INTO "namespaces" VALUES(2,'tenant',1,1000000,1);
CREATE TABLE pages (
        id INTEGER PRIMARY KEY AUTOINCREMENT, namespace_id INTEGER NOT NULL REFERENCES namespaces (id),
        digest TEXT NOT NULL, lines TEXT NOT NULL, text TEXT NOT NULL, embedding BLOB NOT NULL,
        UNIQUE (namespace_id, digest));
INSERT INTO "pages" VALUES(1099511627777,1,'85a3ad0ffe6fa2d24b6683862697dc2a823a8f21549d342fbc1011b2ea4f313e','["one", "end"]','one
end',X'3BB8DB3F008B073FEF4DC33F27C9153F014B32BE9A3FE83D14883B3F27CFC6BE');
INSERT INTO "pages" VALUES(1099511627778,1,'1d1c7a4f75eb508f93c949b8dc3ed06f7cbcf4bca6a0e04ad2e408f7f046d09c','["shared", "end"]','shared
end',X'5EE4353BEAF6A53CF2A394BF4298DE3E526E42BEBF428C3F3F3D96BF7FF537BE');
INSERT INTO "pages" VALUES(1099511627780,1,'b22919096bcd53a8a0e8fde4788dfa3ed5a9958bd15764311c5f115f1a5078ad','["two", "end"]','two
end',X'61C1F63E13D511BFF43A29BF0E9280BFD230E83F14C878BFB0D28DBE1F01F3BE');
INSERT INTO "pages" VALUES(2199023255553,2,'85a3ad0ffe6fa2d24b6683862697dc2a823a8f21549d342fbc1011b2ea4f313e','["one", "end"]','one
end',X'3BB8DB3F008B073FEF4DC33F27C9153F014B32BE9A3FE83D14883B3F27CFC6BE');
CREATE TABLE recipe (id INTEGER PRIMARY KEY CHECK (id = 1), json TEXT NOT NULL);
INSERT INTO "recipe" VALUES(1,'{"conditioning": "native", "dimension": 8, "dpis": [72, 120], "dtype": "bfloat16", "embedder": "BAAI/bge-m3", "embedder_digest": "eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee", "fingerprint": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "model": "zai-org/Glyph", "prefix": "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb", "processor": "cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc", "profile": {"font_size": 9.0, "name": "glyph"}, "profile_digest": "dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd", "revision": "main", "system_prompt": null}');
CREATE TABLE reservations (
        file TEXT PRIMARY KEY, namespace_id INTEGER NOT NULL REFERENCES namespaces (id), writer TEXT NOT NULL,
        bytes INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE settings (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO "settings" VALUES('max_bytes',10000000);
CREATE INDEX links_by_page ON links (page_id, document_id, number);
CREATE INDEX blocks_by_page ON blocks (namespace_id, page, dpi, state, bytes);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('namespaces',2);
INSERT INTO "sqlite_sequence" VALUES('documents',3);
INSERT INTO "sqlite_sequence" VALUES('pages',2199023255553);
COMMIT;
PRAGMA application_id = 1364611139;
PRAGMA user_version = 2;
