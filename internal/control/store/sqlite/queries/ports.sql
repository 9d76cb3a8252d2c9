-- name: PutPort :one
INSERT INTO ports (sandbox_id, port, project_id, public, nonce, created_at) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (sandbox_id, port) DO UPDATE SET public = excluded.public
RETURNING *;

-- name: CountPorts :one
SELECT count(*) FROM ports WHERE sandbox_id = ?;

-- name: Port :one
SELECT * FROM ports WHERE sandbox_id = ? AND port = ?;

-- name: Ports :many
SELECT * FROM ports WHERE sandbox_id = ? ORDER BY port;

-- name: DeletePort :execrows
DELETE FROM ports WHERE sandbox_id = ? AND port = ?;

-- name: PurgePorts :execrows
DELETE FROM ports WHERE rowid IN (
    SELECT p.rowid FROM ports p LEFT JOIN sandboxes s ON s.id = p.sandbox_id WHERE s.id IS NULL LIMIT @max
);
