-- +goose Up
CREATE TABLE ports (
    sandbox_id TEXT NOT NULL,
    port       INTEGER NOT NULL,
    project_id TEXT NOT NULL,
    public     INTEGER NOT NULL,
    nonce      BLOB NOT NULL, -- the token is derived from it and a server secret, and kept nowhere
    created_at INTEGER NOT NULL,
    PRIMARY KEY (sandbox_id, port)
);

-- +goose Down
DROP TABLE ports;
