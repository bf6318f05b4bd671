"""The database's tables: what each format added. A new database takes all steps, an older one those that it lacks."""

from __future__ import annotations

__all__ = ["FORMAT", "MIGRATIONS"]

# Page and document ids are never used again: an id that was once given out never comes to mean something else.
_FORMAT_1 = (
    "CREATE TABLE recipe (id INTEGER PRIMARY KEY CHECK (id = 1), json TEXT NOT NULL)",
    """CREATE TABLE namespaces (
        id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, generation INTEGER NOT NULL DEFAULT 0)""",
    """CREATE TABLE blocks (
        digest TEXT PRIMARY KEY, namespace_id INTEGER NOT NULL REFERENCES namespaces (id), page TEXT NOT NULL,
        dpi INTEGER NOT NULL, bytes INTEGER NOT NULL, checksum TEXT NOT NULL, created REAL NOT NULL) WITHOUT ROWID""",
    "CREATE INDEX blocks_by_page ON blocks (namespace_id, page, dpi, bytes)",
    """CREATE TABLE pages (
        id INTEGER PRIMARY KEY AUTOINCREMENT, namespace_id INTEGER NOT NULL REFERENCES namespaces (id),
        digest TEXT NOT NULL, lines TEXT NOT NULL, text TEXT NOT NULL, embedding BLOB NOT NULL,
        UNIQUE (namespace_id, digest))""",
    """CREATE TABLE documents (
        id INTEGER PRIMARY KEY AUTOINCREMENT, namespace_id INTEGER NOT NULL REFERENCES namespaces (id),
        source TEXT NOT NULL, digest TEXT NOT NULL, metadata TEXT NOT NULL, UNIQUE (namespace_id, source))""",
    """CREATE TABLE links (
        document_id INTEGER NOT NULL REFERENCES documents (id) ON DELETE CASCADE, number INTEGER NOT NULL,
        page_id INTEGER NOT NULL REFERENCES pages (id), PRIMARY KEY (document_id, number)) WITHOUT ROWID""",
    "CREATE INDEX links_by_page ON links (page_id, document_id, number)",
)

# Blocks: when they were last used and what compiling them cost (seconds), both for eviction; `state` 0 is stored,
# 1 damaged (quarantined in its place, never served), 2 evicted (no file; ingesting its document does not bring it
# back); `uploaded` 1 once the remote tier has it. Reservations are bytes of files being written or removed.
_FORMAT_2 = (
    "ALTER TABLE blocks ADD COLUMN used REAL NOT NULL DEFAULT 0",
    "ALTER TABLE blocks ADD COLUMN cost REAL NOT NULL DEFAULT 0",
    "ALTER TABLE blocks ADD COLUMN state INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE blocks ADD COLUMN uploaded INTEGER NOT NULL DEFAULT 0",
    "UPDATE blocks SET used = created",
    "DROP INDEX blocks_by_page",
    "CREATE INDEX blocks_by_page ON blocks (namespace_id, page, dpi, state, bytes)",
    "ALTER TABLE namespaces ADD COLUMN quota INTEGER",
    "ALTER TABLE namespaces ADD COLUMN last_page INTEGER NOT NULL DEFAULT 0",
    "CREATE TABLE settings (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
    """CREATE TABLE reservations (
        file TEXT PRIMARY KEY, namespace_id INTEGER NOT NULL REFERENCES namespaces (id), writer TEXT NOT NULL,
        bytes INTEGER NOT NULL) WITHOUT ROWID""",
    "CREATE TABLE claims (digest TEXT PRIMARY KEY, writer TEXT NOT NULL, since REAL NOT NULL) WITHOUT ROWID",
    """CREATE TABLE counters (
        namespace_id INTEGER NOT NULL REFERENCES namespaces (id), name TEXT NOT NULL, value INTEGER NOT NULL,
        PRIMARY KEY (namespace_id, name)) WITHOUT ROWID""",
)

MIGRATIONS = (_FORMAT_1, _FORMAT_2)
FORMAT = len(MIGRATIONS)
