-- name: InsertEvent :one
INSERT INTO events (sandbox_id, project_id, type, at, data, job_id, session_id) VALUES (?, ?, ?, ?, ?, ?, ?) RETURNING seq;

-- name: ProjectEvents :many
-- types is a JSON array; empty: any.
SELECT * FROM events
WHERE project_id = @project_id AND seq > @seq
  AND (CAST(@types AS TEXT) = '[]' OR type IN (SELECT w.value FROM json_each(CAST(@types AS TEXT)) w))
ORDER BY seq LIMIT @max;

-- name: SandboxEvents :many
-- Without those of jobs that it ran.
SELECT * FROM events WHERE project_id = ? AND sandbox_id = ? AND seq > ? AND job_id = '' ORDER BY seq LIMIT ?;

-- name: PurgeEventsBefore :execrows
DELETE FROM events WHERE seq IN (SELECT e.seq FROM events e WHERE e.at < @before LIMIT @max);

-- name: PurgeEventsBeyond :execrows
DELETE FROM events WHERE seq IN (
    SELECT e.seq FROM events e WHERE e.seq <= (SELECT coalesce(max(m.seq), 0) FROM events m) - CAST(@keep AS INTEGER) LIMIT @max
);

-- name: EventSpan :one
SELECT CAST(coalesce((SELECT min(o.seq) FROM events o), 0) AS INTEGER) AS oldest, CAST(coalesce((SELECT max(n.seq) FROM events n), 0) AS INTEGER) AS newest;

-- name: NewestEvent :one
SELECT CAST(coalesce(max(seq), 0) AS INTEGER) FROM events;

-- name: SandboxesWithEvents :many
SELECT DISTINCT sandbox_id FROM events WHERE seq > @after AND seq <= @newest AND sandbox_id <> '' AND job_id = '' LIMIT @max;
