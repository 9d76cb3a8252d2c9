-- +goose Up
-- One row is a job and, while finished_at is 0, an item of the queue.
CREATE TABLE jobs (
    id             TEXT PRIMARY KEY,
    project_id     TEXT NOT NULL,
    session_id     TEXT NOT NULL, -- '': none
    session_shared INTEGER NOT NULL, -- 0 without a session; the spec says the same
    spec           TEXT NOT NULL, -- JSON
    metadata       TEXT NOT NULL, -- JSON object of strings
    priority       INTEGER NOT NULL,
    status         TEXT NOT NULL,
    input_key      TEXT NOT NULL,
    result_key     TEXT NOT NULL,
    attempt        INTEGER NOT NULL,
    sandbox_id     TEXT NOT NULL,
    process_id     TEXT NOT NULL,
    queued_at      INTEGER NOT NULL,
    started_at     INTEGER NOT NULL,
    finished_at    INTEGER NOT NULL,
    queue_deadline INTEGER NOT NULL,
    cancel_asked   INTEGER NOT NULL,
    exit_code      INTEGER, -- NULL: the program did not come to an end
    signal         TEXT NOT NULL,
    duration       INTEGER NOT NULL,
    cpu_seconds       REAL NOT NULL,
    memory_mb_seconds REAL NOT NULL,
    peak_memory_mb    INTEGER NOT NULL,
    disk_mb           INTEGER NOT NULL,
    egress_bytes      INTEGER NOT NULL,
    fault          TEXT NOT NULL, -- JSON; null: none
    fence          INTEGER NOT NULL,
    lease_owner    TEXT NOT NULL,
    lease_until    INTEGER NOT NULL,
    not_before     INTEGER NOT NULL,
    version        INTEGER NOT NULL
);
CREATE INDEX jobs_list ON jobs (project_id, queued_at, id, session_id, status); -- the last two: a page passes over others within the index
CREATE INDEX jobs_finished ON jobs (finished_at) WHERE finished_at <> 0;
-- What follows has no row of a job that has finished, so that taking one costs the same however many there are. The queue is made of
-- lanes, one for each project, session and way of using it: all that stand in one are due together but for their order.
CREATE INDEX jobs_queue ON jobs (project_id, session_id, session_shared, priority DESC, queued_at, id) WHERE status = 'queued';
CREATE INDEX jobs_deadline ON jobs (queue_deadline) WHERE status = 'queued';
CREATE INDEX jobs_running ON jobs (queued_at, id) WHERE status = 'running';
CREATE INDEX jobs_leased ON jobs (project_id, lease_until) WHERE lease_owner <> '';

-- Apart from jobs, so that a change of a row does not write them again.
CREATE TABLE job_payloads (
    job_id TEXT PRIMARY KEY REFERENCES jobs (id) ON DELETE CASCADE,
    input  BLOB,
    result BLOB -- NULL until it has finished
);

-- When each project last had its turn: the higher, the later.
CREATE TABLE job_turns (
    project_id TEXT PRIMARY KEY,
    turn       INTEGER NOT NULL
);
CREATE INDEX job_turns_order ON job_turns (turn);

CREATE TABLE sessions (
    id             TEXT PRIMARY KEY,
    project_id     TEXT NOT NULL,
    name           TEXT NOT NULL, -- '': none
    metadata       TEXT NOT NULL, -- JSON object of strings
    status         TEXT NOT NULL,
    status_reason  TEXT NOT NULL,
    disk_gb        REAL NOT NULL,
    ttl            INTEGER NOT NULL, -- ns, from the last use
    worker_id      TEXT NOT NULL,
    created_at     INTEGER NOT NULL,
    last_used_at   INTEGER NOT NULL,
    expires_at     INTEGER NOT NULL,
    ended_at       INTEGER NOT NULL,
    archive_key    TEXT NOT NULL,
    archive_digest TEXT NOT NULL,
    archive_bytes  INTEGER NOT NULL,
    version        INTEGER NOT NULL
);
CREATE INDEX sessions_list ON sessions (project_id, created_at, id);
CREATE UNIQUE INDEX sessions_name ON sessions (project_id, name) WHERE name <> '' AND status NOT IN ('deleting', 'deleted');
CREATE INDEX sessions_open ON sessions (status, project_id) WHERE ended_at = 0;
CREATE INDEX sessions_ended ON sessions (ended_at) WHERE ended_at <> 0;

ALTER TABLE sandboxes ADD COLUMN session_id TEXT NOT NULL DEFAULT ''; -- with the next two: what lists and sessions look for; the spec says the same
ALTER TABLE sandboxes ADD COLUMN session_shared INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sandboxes ADD COLUMN managed_by TEXT NOT NULL DEFAULT '';
ALTER TABLE sandboxes ADD COLUMN near_worker TEXT NOT NULL DEFAULT '';
CREATE INDEX sandboxes_session ON sandboxes (session_id) WHERE session_id <> '' AND ended_at = 0;
DROP INDEX sandboxes_list;
CREATE INDEX sandboxes_list ON sandboxes (project_id, created_at, id, managed_by); -- the last: a page passes over managed ones within the index

ALTER TABLE workers ADD COLUMN can_mount INTEGER NOT NULL DEFAULT 0;

-- +goose Down
ALTER TABLE workers DROP COLUMN can_mount;
DROP INDEX sandboxes_list;
CREATE INDEX sandboxes_list ON sandboxes (project_id, created_at, id);
DROP INDEX sandboxes_session;
ALTER TABLE sandboxes DROP COLUMN near_worker;
ALTER TABLE sandboxes DROP COLUMN managed_by;
ALTER TABLE sandboxes DROP COLUMN session_shared;
ALTER TABLE sandboxes DROP COLUMN session_id;
DROP TABLE sessions;
DROP TABLE job_turns;
DROP TABLE job_payloads;
DROP TABLE jobs;
