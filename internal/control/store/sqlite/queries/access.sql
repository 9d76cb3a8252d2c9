-- name: InsertProject :exec
INSERT INTO projects (id, name, created_at) VALUES (?, ?, ?);

-- name: Project :one
SELECT * FROM projects WHERE id = ?;

-- name: ProjectByName :one
SELECT * FROM projects WHERE name = ?;

-- name: Projects :many
SELECT * FROM projects ORDER BY created_at, id;

-- name: InsertKey :exec
INSERT INTO api_keys (id, project_id, name, hash, hint, scopes, created_at, expires_at, revoked_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: KeyByHash :one
SELECT * FROM api_keys WHERE hash = ?;

-- name: Key :one
SELECT * FROM api_keys WHERE id = ?;

-- name: Keys :many
SELECT * FROM api_keys WHERE project_id = ? ORDER BY created_at, id;

-- name: RevokeKey :execrows
UPDATE api_keys SET revoked_at = @revoked_at WHERE id = @id AND project_id = @project_id AND revoked_at = 0;

-- name: DeleteKey :exec
DELETE FROM api_keys WHERE id = ?;

-- name: InsertTicket :exec
INSERT INTO tickets (hash, key_id, method, url, expires_at) VALUES (?, ?, ?, ?, ?);

-- name: TakeTicket :one
DELETE FROM tickets WHERE hash = ? RETURNING *;

-- name: PurgeTickets :execrows
DELETE FROM tickets WHERE rowid IN (SELECT t.rowid FROM tickets t WHERE t.expires_at < @before LIMIT @max);
