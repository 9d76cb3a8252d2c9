-- name: ClaimIdempotencyKey :execrows
INSERT INTO idempotency_keys (project_id, route, key, fingerprint, done, status, object_id, created_at)
VALUES (?, ?, ?, ?, 0, 0, ?, ?) ON CONFLICT DO NOTHING;

-- name: IdempotencyKey :one
SELECT * FROM idempotency_keys WHERE project_id = ? AND route = ? AND key = ?;

-- name: FinishIdempotencyKey :execrows
UPDATE idempotency_keys SET done = 1, status = @status, object_id = @object_id
WHERE project_id = @project_id AND route = @route AND key = @key AND done = 0;

-- name: AbandonIdempotencyKey :exec
DELETE FROM idempotency_keys WHERE project_id = ? AND route = ? AND key = ?;

-- name: DropExpiredIdempotencyKey :exec
DELETE FROM idempotency_keys WHERE project_id = ? AND route = ? AND key = ? AND created_at < ?;

-- name: OrphanIdempotencyKeys :exec
-- Their requests died with their server. Status -1 says so.
UPDATE idempotency_keys SET status = -1 WHERE done = 0;

-- name: AdoptIdempotencyKey :execrows
UPDATE idempotency_keys SET status = 0 WHERE project_id = ? AND route = ? AND key = ? AND done = 0 AND status = -1;

-- name: PurgeIdempotencyKeys :execrows
DELETE FROM idempotency_keys WHERE rowid IN (SELECT i.rowid FROM idempotency_keys i WHERE i.created_at < @before LIMIT @max);
