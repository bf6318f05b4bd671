BEGIN TRANSACTION;
CREATE TABLE blocks (
        digest TEXT PRIMARY KEY, namespace_id INTEGER NOT NULL REFERENCES namespaces (id), page TEXT NOT NULL,
        dpi INTEGER NOT NULL, bytes INTEGER NOT NULL, checksum TEXT NOT NULL, created REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE documents (
        id INTEGER PRIMARY KEY AUTOINCREMENT, namespace_id INTEGER NOT NULL REFERENCES namespaces (id),
        source TEXT NOT NULL, digest TEXT NOT NULL, metadata TEXT NOT NULL, UNIQUE (namespace_id, source));
INSERT INTO "documents" VALUES(1,1,'a.txt','digest of one|shared','{"n": 2}');
INSERT INTO "documents" VALUES(2,1,'b.txt','digest of shared|two','{"n": 2}');
INSERT INTO "documents" VALUES(3,2,X'636166EDB3A92E747874','digest of one','{"n": 1}');
CREATE TABLE links (
        document_id INTEGER NOT NULL REFERENCES documents (id) ON DELETE CASCADE, number INTEGER NOT NULL,
        page_id INTEGER NOT NULL REFERENCES pages (id), PRIMARY KEY (document_id, number)) WITHOUT ROWID;
INSERT INTO "links" VALUES(1,0,1);
INSERT INTO "links" VALUES(1,1,2);
INSERT INTO "links" VALUES(2,0,2);
INSERT INTO "links" VALUES(2,1,4);
INSERT INTO "links" VALUES(3,0,5);
CREATE TABLE namespaces (
        id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, generation INTEGER NOT NULL DEFAULT 0);
INSERT INTO "namespaces" VALUES(1,'default',2);
INSERT INTO "namespaces" VALUES(2,'tenant',1);
CREATE TABLE pages (
        id INTEGER PRIMARY KEY AUTOINCREMENT, namespace_id INTEGER NOT NULL REFERENCES namespaces (id),
        digest TEXT NOT NULL, lines TEXT NOT NULL, text TEXT NOT NULL, embedding BLOB NOT NULL,
        UNIQUE (namespace_id, digest));
INSERT INTO "pages" VALUES(1,1,'85a3ad0ffe6fa2d24b6683862697dc2a823a8f21549d342fbc1011b2ea4f313e','["one", "end"]','one
end',X'3BB8DB3F008B073FEF4DC33F27C9153F014B32BE9A3FE83D14883B3F27CFC6BE');
INSERT INTO "pages" VALUES(2,1,'1d1c7a4f75eb508f93c949b8dc3ed06f7cbcf4bca6a0e04ad2e408f7f046d09c','["shared", "end"]','shared
end',X'5EE4353BEAF6A53CF2A394BF4298DE3E526E42BEBF428C3F3F3D96BF7FF537BE');
INSERT INTO "pages" VALUES(4,1,'b22919096bcd53a8a0e8fde4788dfa3ed5a9958bd15764311c5f115f1a5078ad','["two", "end"]','two
end',X'61C1F63E13D511BFF43A29BF0E9280BFD230E83F14C878BFB0D28DBE1F01F3BE');
INSERT INTO "pages" VALUES(5,2,'85a3ad0ffe6fa2d24b6683862697dc2a823a8f21549d342fbc1011b2ea4f313e','["one", "end"]','one
end',X'3BB8DB3F008B073FEF4DC33F27C9153F014B32BE9A3FE83D14883B3F27CFC6BE');
CREATE TABLE recipe (id INTEGER PRIMARY KEY CHECK (id = 1), json TEXT NOT NULL);
INSERT INTO "recipe" VALUES(1,'{"conditioning": "native", "dimension": 8, "dpis": [72, 120], "dtype": "bfloat16", "embedder": "BAAI/bge-m3", "embedder_digest": "eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee", "fingerprint": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "model": "zai-org/Glyph", "prefix": "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb", "processor": "cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc", "profile": {"font_size": 9.0, "name": "glyph"}, "profile_digest": "dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd", "revision": "main", "system_prompt": null}');
CREATE INDEX blocks_by_page ON blocks (namespace_id, page, dpi, bytes);
CREATE INDEX links_by_page ON links (page_id, document_id, number);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('namespaces',2);
INSERT INTO "sqlite_sequence" VALUES('documents',3);
INSERT INTO "sqlite_sequence" VALUES('pages',5);
COMMIT;
PRAGMA application_id = 1364611139;
PRAGMA user_version = 1;
