-- name: InsertSandbox :exec
INSERT INTO sandboxes (
    id, project_id, spec, metadata, cpu, memory_mb, disk_gb, status, status_reason, detail, worker_id,
    created_at, ready_at, expires_at, last_active_at, paused_at, ended_at, ttl_left, queue_deadline,
    create_queue_ms, create_schedule_ms, create_boot_ms, create_total_ms,
    cpu_seconds, memory_mb_seconds, peak_memory_mb, disk_mb, egress_bytes,
    op, attempt, lease_owner, lease_until, not_before, failure_count, version,
    session_id, session_shared, managed_by, near_worker, accounted_at, created_by, traceparent
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: SandboxExists :one
SELECT EXISTS (SELECT 1 FROM sandboxes WHERE id = ?);

-- name: Sandbox :one
SELECT * FROM sandboxes WHERE id = ?;

-- name: LiveSandboxes :many
SELECT * FROM sandboxes WHERE ended_at = 0 ORDER BY created_at, id;

-- name: UpdateSandbox :execrows
UPDATE sandboxes SET
    spec = @spec, metadata = @metadata, status = @status, status_reason = @status_reason, detail = @detail,
    worker_id = @worker_id, ready_at = @ready_at, expires_at = @expires_at, last_active_at = @last_active_at,
    paused_at = @paused_at, ended_at = @ended_at, ttl_left = @ttl_left, queue_deadline = @queue_deadline,
    create_queue_ms = @create_queue_ms, create_schedule_ms = @create_schedule_ms, create_boot_ms = @create_boot_ms,
    create_total_ms = @create_total_ms, cpu_seconds = @cpu_seconds, memory_mb_seconds = @memory_mb_seconds,
    peak_memory_mb = @peak_memory_mb, disk_mb = @disk_mb, egress_bytes = @egress_bytes,
    op = @op, attempt = @attempt, lease_owner = @lease_owner, lease_until = @lease_until, not_before = @not_before,
    failure_count = @failure_count, near_worker = @near_worker, accounted_at = @accounted_at,
    traceparent = @traceparent, version = @version + 1
WHERE id = @id AND version = @version;

-- name: CountActive :one
SELECT count(*) FROM sandboxes WHERE project_id = ? AND ended_at = 0 AND status <> 'TERMINATING' AND managed_by = '';

-- name: CountQueued :one
SELECT count(*) FROM sandboxes WHERE op <> '' AND status = 'CREATING';

-- name: DueSandboxes :many
SELECT * FROM sandboxes
WHERE op <> '' AND op IN (SELECT o.value FROM json_each(CAST(@ops AS TEXT)) o) AND not_before <= @now AND lease_until <= @now
ORDER BY created_at, id LIMIT @max;

-- name: RenewLease :execrows
UPDATE sandboxes SET lease_until = @lease_until
WHERE id = @id AND attempt = @attempt AND lease_owner = @lease_owner;

-- name: ReleaseOtherLeases :execrows
UPDATE sandboxes SET lease_owner = '', lease_until = 0 WHERE op <> '' AND lease_owner <> '' AND lease_owner <> @owner;

-- name: Accounted :one
-- What of a row that has not ended its usage is accrued from.
SELECT project_id, status, cpu, memory_mb, disk_gb, last_active_at, accounted_at, cpu_seconds, memory_mb_seconds, egress_bytes
FROM sandboxes WHERE id = ? AND ended_at = 0;

-- name: TouchSandbox :exec
UPDATE sandboxes SET
    last_active_at = max(last_active_at, CAST(@last_active_at AS INTEGER)), cpu_seconds = max(cpu_seconds, CAST(@cpu_seconds AS REAL)),
    memory_mb_seconds = max(memory_mb_seconds, CAST(@memory_mb_seconds AS REAL)), peak_memory_mb = max(peak_memory_mb, CAST(@peak_memory_mb AS INTEGER)),
    disk_mb = @disk_mb, egress_bytes = max(egress_bytes, CAST(@egress_bytes AS INTEGER)),
    accounted_at = max(accounted_at, CAST(@accounted_at AS INTEGER))
WHERE id = @id AND ended_at = 0;

-- name: PurgeSandboxes :execrows
DELETE FROM sandboxes WHERE id IN (
    SELECT s.id FROM sandboxes s WHERE s.ended_at <> 0 AND s.ended_at < @before AND s.op = '' LIMIT @max
);
