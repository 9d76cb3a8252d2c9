-- +goose Up
-- What the server proves to itself with; made once, by whichever replica comes first.
CREATE TABLE server_secrets (
    name  TEXT PRIMARY KEY,
    value BLOB NOT NULL
);

-- +goose Down
DROP TABLE server_secrets;
