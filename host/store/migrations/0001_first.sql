-- Every key begins with the tenant, so that no query can cross from one to another by mistake.
-- Times are milliseconds since 1970. A released migration is never edited: a change is a new file.

-- Where each session stands. `id` stands for (tenant, session) in the tables that grow, and never
-- leaves the store.
CREATE TABLE sessions (
    id         INTEGER PRIMARY KEY,
    tenant     TEXT    NOT NULL,
    session    TEXT    NOT NULL,
    agent      TEXT    NOT NULL,
    head_seq   INTEGER NOT NULL,
    status     TEXT    NOT NULL,
    next_wake  INTEGER,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    UNIQUE (tenant, session)
) STRICT;

CREATE INDEX sessions_by_change ON sessions (tenant, updated_at, session);

-- The one index across tenants: timers are the host's own. Sessions that sleep are not in it.
CREATE INDEX sessions_by_wake ON sessions (next_wake) WHERE next_wake IS NOT NULL;

-- The log. Rows lie in the order they were written, whatever their session, so a group of appends
-- fills a few pages instead of touching one for each session; bodies of kilobytes would make a
-- clustered key (WITHOUT ROWID) deep and wide. The key ends in `last_seq` because "what holds
-- events after n" is then one seek, also when n lies inside a commit.
CREATE TABLE commits (
    id        INTEGER PRIMARY KEY,
    tenant    TEXT    NOT NULL,
    session   INTEGER NOT NULL,
    last_seq  INTEGER NOT NULL,
    first_seq INTEGER NOT NULL,
    at        INTEGER NOT NULL,
    events    TEXT    NOT NULL,
    UNIQUE (tenant, session, last_seq)
) STRICT;

-- One folded state per session; may be emptied at any time.
CREATE TABLE snapshots (
    id      INTEGER PRIMARY KEY,
    tenant  TEXT    NOT NULL,
    session INTEGER NOT NULL,
    seq     INTEGER NOT NULL,
    format  INTEGER NOT NULL,
    body    TEXT    NOT NULL,
    UNIQUE (tenant, session)
) STRICT;

-- Contents by sha256. `body` is null when it lies in a file of the blob folder.
CREATE TABLE blobs (
    id     INTEGER PRIMARY KEY,
    tenant TEXT    NOT NULL,
    digest TEXT    NOT NULL,
    size   INTEGER NOT NULL,
    body   BLOB,
    UNIQUE (tenant, digest)
) STRICT;

-- Uploaded components, in the order they came; `about` is the version as JSON, its bytes a blob.
CREATE TABLE versions (
    id      INTEGER PRIMARY KEY,
    tenant  TEXT NOT NULL,
    agent   TEXT NOT NULL,
    version TEXT NOT NULL,
    about   TEXT NOT NULL,
    UNIQUE (tenant, agent, version)
) STRICT;

-- Every move of every label, for ever; where a label points is its last move. `id` counts the
-- moves of one agent from 1.
CREATE TABLE label_moves (
    tenant   TEXT    NOT NULL,
    agent    TEXT    NOT NULL,
    id       INTEGER NOT NULL,
    label    TEXT    NOT NULL,
    version  TEXT,
    previous TEXT,
    swap     TEXT    NOT NULL,
    by       TEXT    NOT NULL,
    at       INTEGER NOT NULL,
    PRIMARY KEY (tenant, agent, id)
) STRICT, WITHOUT ROWID;
