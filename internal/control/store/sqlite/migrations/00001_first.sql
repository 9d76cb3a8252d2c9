-- Times are Unix microseconds, 0 for none; durations are nanoseconds.

-- +goose Up
CREATE TABLE projects (
    id         TEXT PRIMARY KEY,
    name       TEXT NOT NULL UNIQUE,
    created_at INTEGER NOT NULL
);

CREATE TABLE api_keys (
    id         TEXT PRIMARY KEY,
    project_id TEXT NOT NULL REFERENCES projects (id),
    name       TEXT NOT NULL,
    hash       BLOB NOT NULL UNIQUE, -- SHA-256 of the secret, which is kept nowhere
    hint       TEXT NOT NULL,
    scopes     TEXT NOT NULL,        -- JSON array
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    revoked_at INTEGER NOT NULL
);
CREATE INDEX api_keys_project ON api_keys (project_id, created_at);

CREATE TABLE tickets (
    hash       BLOB PRIMARY KEY, -- SHA-256 of the ticket
    key_id     TEXT NOT NULL,
    method     TEXT NOT NULL,
    url        TEXT NOT NULL,
    expires_at INTEGER NOT NULL
);
CREATE INDEX tickets_expiry ON tickets (expires_at);

CREATE TABLE workers (
    id            TEXT PRIMARY KEY,
    version       TEXT NOT NULL,
    isolation     TEXT NOT NULL,
    cpu           REAL NOT NULL,
    memory_mb     INTEGER NOT NULL,
    disk_gb       REAL NOT NULL,
    max_sandboxes INTEGER NOT NULL, -- 0: no bound
    enforced      TEXT NOT NULL, -- JSON array
    runtimes      TEXT NOT NULL, -- JSON array
    can_freeze    INTEGER NOT NULL,
    boot          TEXT NOT NULL,
    registered_at INTEGER NOT NULL,
    heartbeat_at  INTEGER NOT NULL
);

-- One row is a sandbox and, while op is not empty, an item of the queue.
CREATE TABLE sandboxes (
    id              TEXT PRIMARY KEY,
    project_id      TEXT NOT NULL,
    spec            TEXT NOT NULL, -- JSON, without metadata
    metadata        TEXT NOT NULL, -- JSON object of strings
    cpu             REAL NOT NULL, -- with memory_mb and disk_gb: what placement sums up; the spec says the same
    memory_mb       INTEGER NOT NULL,
    disk_gb         REAL NOT NULL,
    status          TEXT NOT NULL,
    status_reason   TEXT NOT NULL,
    detail          TEXT NOT NULL,
    worker_id       TEXT NOT NULL,
    created_at      INTEGER NOT NULL,
    ready_at        INTEGER NOT NULL,
    expires_at      INTEGER NOT NULL,
    last_active_at  INTEGER NOT NULL,
    paused_at       INTEGER NOT NULL,
    ended_at        INTEGER NOT NULL,
    ttl_left        INTEGER NOT NULL,
    queue_deadline  INTEGER NOT NULL,
    create_queue_ms    INTEGER NOT NULL,
    create_schedule_ms INTEGER NOT NULL,
    create_boot_ms     INTEGER NOT NULL,
    create_total_ms    INTEGER NOT NULL,
    cpu_seconds       REAL NOT NULL,
    memory_mb_seconds REAL NOT NULL,
    peak_memory_mb    INTEGER NOT NULL,
    disk_mb           INTEGER NOT NULL,
    egress_bytes      INTEGER NOT NULL,
    op              TEXT NOT NULL,
    attempt         INTEGER NOT NULL,
    lease_owner     TEXT NOT NULL,
    lease_until     INTEGER NOT NULL,
    not_before      INTEGER NOT NULL,
    failure_count   INTEGER NOT NULL,
    version         INTEGER NOT NULL
);
CREATE INDEX sandboxes_list ON sandboxes (project_id, created_at, id);
CREATE INDEX sandboxes_queue ON sandboxes (created_at) WHERE op <> '';
CREATE INDEX sandboxes_live ON sandboxes (worker_id) WHERE ended_at = 0;
CREATE INDEX sandboxes_ended ON sandboxes (ended_at) WHERE ended_at <> 0;

CREATE TABLE events (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT, -- never used twice, also after a purge
    sandbox_id TEXT NOT NULL,
    project_id TEXT NOT NULL,
    type       TEXT NOT NULL,
    at         INTEGER NOT NULL,
    data       TEXT NOT NULL -- JSON object
);
CREATE INDEX events_project ON events (project_id, seq);
CREATE INDEX events_sandbox ON events (sandbox_id, seq);
CREATE INDEX events_age ON events (at);

CREATE TABLE idempotency_keys (
    project_id  TEXT NOT NULL,
    route       TEXT NOT NULL,
    key         TEXT NOT NULL,
    fingerprint BLOB NOT NULL,
    done        INTEGER NOT NULL,
    status      INTEGER NOT NULL,
    object_id   TEXT NOT NULL,
    created_at  INTEGER NOT NULL,
    PRIMARY KEY (project_id, route, key)
);
CREATE INDEX idempotency_age ON idempotency_keys (created_at);

-- +goose Down
DROP TABLE idempotency_keys;
DROP TABLE events;
DROP TABLE sandboxes;
DROP TABLE workers;
DROP TABLE tickets;
DROP TABLE api_keys;
DROP TABLE projects;
