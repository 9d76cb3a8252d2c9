-- name: ListJobsNewestFirst :many
-- Filters as those of ListNewestFirst in list.sql.
SELECT j.* FROM jobs j
WHERE j.project_id = @project_id AND j.queued_at > @created_after
  AND (j.queued_at < @cursor_at OR (j.queued_at = @cursor_at AND j.id < @cursor_id))
  AND (CAST(@session_id AS TEXT) = '' OR j.session_id = CAST(@session_id AS TEXT))
  AND (CAST(@statuses AS TEXT) = '[]' OR j.status IN (SELECT w.value FROM json_each(CAST(@statuses AS TEXT)) w))
  AND NOT EXISTS (
      SELECT 1 FROM json_each(CAST(@metadata AS TEXT)) f
      WHERE NOT EXISTS (SELECT 1 FROM json_each(j.metadata) m WHERE m.key = f.key AND m.value = f.value))
ORDER BY j.queued_at DESC, j.id DESC LIMIT @max;

-- name: ListJobsOldestFirst :many
SELECT j.* FROM jobs j
WHERE j.project_id = @project_id AND j.queued_at > @created_after
  AND (j.queued_at > @cursor_at OR (j.queued_at = @cursor_at AND j.id > @cursor_id))
  AND (CAST(@session_id AS TEXT) = '' OR j.session_id = CAST(@session_id AS TEXT))
  AND (CAST(@statuses AS TEXT) = '[]' OR j.status IN (SELECT w.value FROM json_each(CAST(@statuses AS TEXT)) w))
  AND NOT EXISTS (
      SELECT 1 FROM json_each(CAST(@metadata AS TEXT)) f
      WHERE NOT EXISTS (SELECT 1 FROM json_each(j.metadata) m WHERE m.key = f.key AND m.value = f.value))
ORDER BY j.queued_at, j.id LIMIT @max;
