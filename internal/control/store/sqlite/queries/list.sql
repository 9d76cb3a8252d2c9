-- name: ListNewestFirst :many
-- The lists' filters: statuses is a JSON array of what is wanted (empty: any); metadata a JSON object whose every pair must be there.
-- Keys are compared as values of json_each, never as a JSON path, so that dots and quotes in them mean nothing.
SELECT s.* FROM sandboxes s
WHERE s.project_id = @project_id AND s.created_at > @created_after
  AND (s.created_at < @cursor_at OR (s.created_at = @cursor_at AND s.id < @cursor_id))
  AND (CAST(@managed AS INTEGER) <> 0 OR s.managed_by = '') AND (CAST(@session_id AS TEXT) = '' OR s.session_id = CAST(@session_id AS TEXT))
  AND (CAST(@statuses AS TEXT) = '[]' OR s.status IN (SELECT w.value FROM json_each(CAST(@statuses AS TEXT)) w))
  AND NOT EXISTS (
      SELECT 1 FROM json_each(CAST(@metadata AS TEXT)) f
      WHERE NOT EXISTS (SELECT 1 FROM json_each(s.metadata) m WHERE m.key = f.key AND m.value = f.value))
ORDER BY s.created_at DESC, s.id DESC LIMIT @max;

-- name: ListOldestFirst :many
SELECT s.* FROM sandboxes s
WHERE s.project_id = @project_id AND s.created_at > @created_after
  AND (s.created_at > @cursor_at OR (s.created_at = @cursor_at AND s.id > @cursor_id))
  AND (CAST(@managed AS INTEGER) <> 0 OR s.managed_by = '') AND (CAST(@session_id AS TEXT) = '' OR s.session_id = CAST(@session_id AS TEXT))
  AND (CAST(@statuses AS TEXT) = '[]' OR s.status IN (SELECT w.value FROM json_each(CAST(@statuses AS TEXT)) w))
  AND NOT EXISTS (
      SELECT 1 FROM json_each(CAST(@metadata AS TEXT)) f
      WHERE NOT EXISTS (SELECT 1 FROM json_each(s.metadata) m WHERE m.key = f.key AND m.value = f.value))
ORDER BY s.created_at, s.id LIMIT @max;
