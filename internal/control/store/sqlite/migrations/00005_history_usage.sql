-- +goose Up
-- What remains of what has ended. seq is the order of writing, by which the oldest go when there are too many.
CREATE TABLE records (
    seq            INTEGER PRIMARY KEY,
    project_id     TEXT NOT NULL,
    id             TEXT NOT NULL, -- of what it tells
    kind           TEXT NOT NULL,
    key_id         TEXT NOT NULL,
    sandbox_id     TEXT NOT NULL,
    session_id     TEXT NOT NULL,
    name           TEXT NOT NULL,
    command        TEXT NOT NULL,
    language       TEXT NOT NULL,
    outcome        TEXT NOT NULL,
    ok             INTEGER NOT NULL,
    exit_code      INTEGER, -- NULL: no program came to an end
    signal         TEXT NOT NULL,
    started_at     INTEGER NOT NULL,
    ended_at       INTEGER NOT NULL,
    duration       INTEGER NOT NULL,
    stdout_bytes   INTEGER NOT NULL,
    stderr_bytes   INTEGER NOT NULL,
    cpu_seconds    REAL NOT NULL,
    peak_memory_mb INTEGER NOT NULL,
    trace_id       TEXT NOT NULL
);
CREATE UNIQUE INDEX records_id ON records (project_id, id);
CREATE INDEX records_list ON records (project_id, ended_at, id);
CREATE INDEX records_all ON records (ended_at, id);
CREATE INDEX records_sandbox ON records (sandbox_id, ended_at, id) WHERE sandbox_id <> '';
CREATE INDEX records_session ON records (session_id, ended_at, id) WHERE session_id <> '';

-- What each sandbox used on each day (UTC).
CREATE TABLE usage_days (
    seq                         INTEGER PRIMARY KEY,
    project_id                  TEXT NOT NULL,
    sandbox_id                  TEXT NOT NULL,
    day                         INTEGER NOT NULL, -- its midnight
    running_seconds             REAL NOT NULL,
    paused_seconds              REAL NOT NULL,
    cpu_seconds                 REAL NOT NULL,
    memory_mb_seconds           REAL NOT NULL,
    allocated_cpu_seconds       REAL NOT NULL,
    allocated_memory_mb_seconds REAL NOT NULL,
    allocated_disk_gb_seconds   REAL NOT NULL,
    egress_bytes                INTEGER NOT NULL
);
CREATE UNIQUE INDEX usage_days_key ON usage_days (project_id, day, sandbox_id);
CREATE INDEX usage_days_sandbox ON usage_days (sandbox_id, day);
CREATE INDEX usage_days_age ON usage_days (day);

-- Sums over all that there ever was, also over what was purged.
CREATE TABLE totals (
    name  TEXT PRIMARY KEY,
    value INTEGER NOT NULL
);

CREATE TABLE audit (
    seq         INTEGER PRIMARY KEY AUTOINCREMENT, -- never used twice, also after a purge
    at          INTEGER NOT NULL,
    project_id  TEXT NOT NULL, -- '': of nobody known
    key_id      TEXT NOT NULL,
    action      TEXT NOT NULL,
    object      TEXT NOT NULL,
    status      INTEGER NOT NULL,
    reason      TEXT NOT NULL,
    request_id  TEXT NOT NULL,
    trace_id    TEXT NOT NULL,
    remote_addr TEXT NOT NULL,
    user_agent  TEXT NOT NULL
);
CREATE INDEX audit_project ON audit (project_id, at, seq);
CREATE INDEX audit_all ON audit (at, seq);
CREATE INDEX audit_object ON audit (object, at, seq) WHERE object <> '';

ALTER TABLE sandboxes ADD COLUMN accounted_at INTEGER NOT NULL DEFAULT 0; -- until when its usage is in usage_days
ALTER TABLE sandboxes ADD COLUMN created_by TEXT NOT NULL DEFAULT '';
ALTER TABLE sandboxes ADD COLUMN traceparent TEXT NOT NULL DEFAULT '';
ALTER TABLE jobs ADD COLUMN created_by TEXT NOT NULL DEFAULT '';
ALTER TABLE jobs ADD COLUMN traceparent TEXT NOT NULL DEFAULT '';
ALTER TABLE jobs ADD COLUMN stdout_bytes INTEGER NOT NULL DEFAULT 0; -- with the next: what the program wrote
ALTER TABLE jobs ADD COLUMN stderr_bytes INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN created_by TEXT NOT NULL DEFAULT '';
ALTER TABLE events ADD COLUMN job_id TEXT NOT NULL DEFAULT ''; -- with the next: '' but for events of jobs and sessions
ALTER TABLE events ADD COLUMN session_id TEXT NOT NULL DEFAULT '';

-- Of sandboxes that are there already, time counts since they became what they are, and what was measured so far counts on that day.
UPDATE sandboxes SET accounted_at = CASE status WHEN 'PAUSED' THEN paused_at ELSE ready_at END WHERE ended_at = 0 AND ready_at <> 0;
INSERT INTO usage_days (project_id, sandbox_id, day, running_seconds, paused_seconds, cpu_seconds, memory_mb_seconds,
    allocated_cpu_seconds, allocated_memory_mb_seconds, allocated_disk_gb_seconds, egress_bytes)
SELECT project_id, id, accounted_at / 86400000000 * 86400000000, 0, 0, cpu_seconds, memory_mb_seconds, 0, 0, 0, egress_bytes
FROM sandboxes WHERE ended_at = 0 AND accounted_at <> 0;

-- +goose Down
ALTER TABLE events DROP COLUMN session_id;
ALTER TABLE events DROP COLUMN job_id;
ALTER TABLE sessions DROP COLUMN created_by;
ALTER TABLE jobs DROP COLUMN stderr_bytes;
ALTER TABLE jobs DROP COLUMN stdout_bytes;
ALTER TABLE jobs DROP COLUMN traceparent;
ALTER TABLE jobs DROP COLUMN created_by;
ALTER TABLE sandboxes DROP COLUMN traceparent;
ALTER TABLE sandboxes DROP COLUMN created_by;
ALTER TABLE sandboxes DROP COLUMN accounted_at;
DROP TABLE audit;
DROP TABLE totals;
DROP TABLE usage_days;
DROP TABLE records;
