-- name: InsertRecord :execrows
INSERT INTO records (
    project_id, id, kind, key_id, sandbox_id, session_id, name, command, language, outcome, ok, exit_code, signal,
    started_at, ended_at, duration, stdout_bytes, stderr_bytes, cpu_seconds, peak_memory_mb, trace_id
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (project_id, id) DO NOTHING;

-- name: Record :one
SELECT * FROM records WHERE project_id = ? AND id = ?;

-- name: PurgeRecordsBefore :execrows
DELETE FROM records WHERE seq IN (SELECT r.seq FROM records r WHERE r.ended_at < @before LIMIT @max);

-- name: PurgeRecordsBeyond :execrows
DELETE FROM records WHERE seq IN (
    SELECT r.seq FROM records r WHERE r.seq <= (SELECT coalesce(max(m.seq), 0) FROM records m) - CAST(@keep AS INTEGER) LIMIT @max
);

-- name: AddUsage :exec
INSERT INTO usage_days (
    project_id, sandbox_id, day, running_seconds, paused_seconds, cpu_seconds, memory_mb_seconds,
    allocated_cpu_seconds, allocated_memory_mb_seconds, allocated_disk_gb_seconds, egress_bytes
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (project_id, day, sandbox_id) DO UPDATE SET
    running_seconds = running_seconds + excluded.running_seconds, paused_seconds = paused_seconds + excluded.paused_seconds,
    cpu_seconds = cpu_seconds + excluded.cpu_seconds, memory_mb_seconds = memory_mb_seconds + excluded.memory_mb_seconds,
    allocated_cpu_seconds = allocated_cpu_seconds + excluded.allocated_cpu_seconds,
    allocated_memory_mb_seconds = allocated_memory_mb_seconds + excluded.allocated_memory_mb_seconds,
    allocated_disk_gb_seconds = allocated_disk_gb_seconds + excluded.allocated_disk_gb_seconds,
    egress_bytes = egress_bytes + excluded.egress_bytes;

-- name: PurgeUsageBefore :execrows
DELETE FROM usage_days WHERE seq IN (SELECT u.seq FROM usage_days u WHERE u.day < @before LIMIT @max);

-- name: AddToTotal :exec
INSERT INTO totals (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = value + excluded.value;

-- name: Total :one
SELECT CAST(coalesce((SELECT t.value FROM totals t WHERE t.name = ?), 0) AS INTEGER);

-- name: InsertAudit :exec
INSERT INTO audit (at, project_id, key_id, action, object, status, reason, request_id, trace_id, remote_addr, user_agent)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: PurgeAuditBefore :execrows
DELETE FROM audit WHERE seq IN (SELECT a.seq FROM audit a WHERE a.at < @before LIMIT @max);

-- name: PurgeAuditBeyond :execrows
DELETE FROM audit WHERE seq IN (
    SELECT a.seq FROM audit a WHERE a.seq <= (SELECT coalesce(max(m.seq), 0) FROM audit m) - CAST(@keep AS INTEGER) LIMIT @max
);

-- name: CountByStatus :many
SELECT status, count(*) AS n FROM sandboxes WHERE ended_at = 0 GROUP BY status;

-- name: CountUntaken :one
-- Since when a row waits is when it got its operation, as near as it says so: a create is there from the start, an end begins with a
-- change of status, a pause or resume with a use.
SELECT count(*) AS n, CAST(coalesce(min(max(created_at, accounted_at, ended_at, CASE WHEN op IN ('pause', 'resume') THEN last_active_at ELSE 0 END)), 0) AS INTEGER) AS oldest
FROM sandboxes WHERE op <> '' AND lease_owner = '';
