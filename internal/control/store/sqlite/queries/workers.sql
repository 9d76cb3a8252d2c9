-- name: UpsertWorker :exec
INSERT INTO workers (id, version, isolation, cpu, memory_mb, disk_gb, max_sandboxes, enforced, runtimes, can_freeze, boot, registered_at, heartbeat_at, can_mount)
VALUES (@id, @version, @isolation, @cpu, @memory_mb, @disk_gb, @max_sandboxes, @enforced, @runtimes, @can_freeze, @boot, @heartbeat_at, @heartbeat_at, @can_mount)
ON CONFLICT (id) DO UPDATE SET
    version = excluded.version, isolation = excluded.isolation, cpu = excluded.cpu, memory_mb = excluded.memory_mb,
    disk_gb = excluded.disk_gb, max_sandboxes = excluded.max_sandboxes, enforced = excluded.enforced,
    runtimes = excluded.runtimes, can_freeze = excluded.can_freeze, can_mount = excluded.can_mount, boot = excluded.boot,
    heartbeat_at = excluded.heartbeat_at;

-- name: WorkerLoads :many
SELECT
    sqlc.embed(w),
    CAST(coalesce(sum(s.cpu), 0) AS REAL) AS used_cpu, CAST(coalesce(sum(s.memory_mb), 0) AS INTEGER) AS used_memory_mb,
    CAST(coalesce(sum(s.disk_gb), 0) AS REAL) AS used_disk_gb, count(s.id) AS sandboxes
FROM workers w LEFT JOIN sandboxes s ON s.worker_id = w.id AND (s.ended_at = 0 OR s.op <> '')
GROUP BY w.id ORDER BY w.registered_at, w.id;
