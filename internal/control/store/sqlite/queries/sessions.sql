-- name: InsertSession :exec
INSERT INTO sessions (
    id, project_id, name, metadata, status, status_reason, disk_gb, ttl, worker_id, created_at, last_used_at, expires_at, ended_at,
    archive_key, archive_digest, archive_bytes, version, created_by
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: Session :one
SELECT * FROM sessions WHERE id = ?;

-- name: SessionOfName :one
SELECT id FROM sessions WHERE project_id = @project_id AND name = @name AND name <> '' AND status NOT IN ('deleting', 'deleted');

-- name: CountSessions :one
SELECT count(*) FROM sessions WHERE project_id = @project_id AND ended_at = 0 AND status IN ('active', 'archiving', 'archived', 'restoring');

-- name: UpdateSession :execrows
UPDATE sessions SET
    name = @name, metadata = @metadata, status = @status, status_reason = @status_reason, disk_gb = @disk_gb, ttl = @ttl,
    worker_id = @worker_id, last_used_at = @last_used_at, expires_at = @expires_at, ended_at = @ended_at,
    archive_key = @archive_key, archive_digest = @archive_digest, archive_bytes = @archive_bytes, version = @version + 1
WHERE id = @id AND version = @version;

-- name: SessionUsers :many
SELECT * FROM sandboxes WHERE session_id = ? AND session_id <> '' AND ended_at = 0 ORDER BY created_at, id;

-- name: DueSessions :many
-- What needs nobody but the store comes first: however many wait for a worker, the others are seen.
SELECT s.* FROM sessions s
WHERE s.ended_at = 0 AND (s.status IN ('deleting', 'archiving', 'restoring')
    OR ((s.expires_at <= @now OR (s.status = 'active' AND s.worker_id <> '' AND s.last_used_at < @idle_before))
        AND NOT EXISTS (SELECT 1 FROM sandboxes u WHERE u.session_id = s.id AND u.session_id <> '' AND u.ended_at = 0 AND u.managed_by <> s.id)
        AND NOT EXISTS (SELECT 1 FROM jobs q WHERE q.project_id = s.project_id AND q.session_id = s.id AND q.status = 'queued')
        AND NOT EXISTS (SELECT 1 FROM jobs r WHERE r.session_id = s.id AND r.status = 'running')))
ORDER BY s.status IN ('deleting', 'archiving', 'restoring'), s.expires_at, s.id LIMIT @max;

-- name: PurgeSessions :execrows
DELETE FROM sessions WHERE id IN (
    SELECT s.id FROM sessions s WHERE s.ended_at <> 0 AND s.ended_at < @before LIMIT @max
);

-- name: ListSessionsNewestFirst :many
-- Filters as those of ListNewestFirst in list.sql.
SELECT s.* FROM sessions s
WHERE s.project_id = @project_id AND s.created_at > @created_after
  AND (s.created_at < @cursor_at OR (s.created_at = @cursor_at AND s.id < @cursor_id))
  AND (CAST(@name AS TEXT) = '' OR s.name = CAST(@name AS TEXT))
  AND s.status IN (SELECT w.value FROM json_each(CAST(@statuses AS TEXT)) w)
  AND NOT EXISTS (
      SELECT 1 FROM json_each(CAST(@metadata AS TEXT)) f
      WHERE NOT EXISTS (SELECT 1 FROM json_each(s.metadata) m WHERE m.key = f.key AND m.value = f.value))
ORDER BY s.created_at DESC, s.id DESC LIMIT @max;

-- name: ListSessionsOldestFirst :many
SELECT s.* FROM sessions s
WHERE s.project_id = @project_id AND s.created_at > @created_after
  AND (s.created_at > @cursor_at OR (s.created_at = @cursor_at AND s.id > @cursor_id))
  AND (CAST(@name AS TEXT) = '' OR s.name = CAST(@name AS TEXT))
  AND s.status IN (SELECT w.value FROM json_each(CAST(@statuses AS TEXT)) w)
  AND NOT EXISTS (
      SELECT 1 FROM json_each(CAST(@metadata AS TEXT)) f
      WHERE NOT EXISTS (SELECT 1 FROM json_each(s.metadata) m WHERE m.key = f.key AND m.value = f.value))
ORDER BY s.created_at, s.id LIMIT @max;
