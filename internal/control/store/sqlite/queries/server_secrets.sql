-- name: OfferServerSecret :exec
INSERT INTO server_secrets (name, value) VALUES (?, ?) ON CONFLICT (name) DO NOTHING;

-- name: ServerSecret :one
SELECT value FROM server_secrets WHERE name = ?;
