-- name: InsertJob :exec
INSERT INTO jobs (
    id, project_id, session_id, session_shared, spec, metadata, priority, status, input_key, result_key,
    attempt, sandbox_id, process_id, queued_at, started_at, finished_at, queue_deadline, cancel_asked,
    exit_code, signal, duration, cpu_seconds, memory_mb_seconds, peak_memory_mb, disk_mb, egress_bytes, fault,
    fence, lease_owner, lease_until, not_before, version, created_by, traceparent, stdout_bytes, stderr_bytes
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: InsertJobPayload :exec
INSERT INTO job_payloads (job_id, input, result) VALUES (?, ?, ?);

-- name: Job :one
SELECT sqlc.embed(j), p.input, p.result FROM jobs j JOIN job_payloads p ON p.job_id = j.id WHERE j.id = ?;

-- name: JobInput :one
SELECT input FROM job_payloads WHERE job_id = ?;

-- name: UpdateJob :execrows
UPDATE jobs SET
    spec = @spec, metadata = @metadata, priority = @priority, status = @status, input_key = @input_key, result_key = @result_key,
    attempt = @attempt, sandbox_id = @sandbox_id, process_id = @process_id, started_at = @started_at, finished_at = @finished_at,
    queue_deadline = @queue_deadline, cancel_asked = @cancel_asked, exit_code = @exit_code, signal = @signal, duration = @duration,
    cpu_seconds = @cpu_seconds, memory_mb_seconds = @memory_mb_seconds, peak_memory_mb = @peak_memory_mb, disk_mb = @disk_mb,
    egress_bytes = @egress_bytes, fault = @fault, fence = @fence, lease_owner = @lease_owner, lease_until = @lease_until,
    not_before = @not_before, stdout_bytes = @stdout_bytes, stderr_bytes = @stderr_bytes, version = @version + 1
WHERE id = @id AND version = @version;

-- name: SetJobResult :exec
UPDATE job_payloads SET result = @result WHERE job_id = @job_id;

-- name: CountUnfinishedJobs :one
SELECT CAST((SELECT count(*) FROM jobs q WHERE q.project_id = @project_id AND q.status = 'queued')
    + (SELECT count(*) FROM jobs r WHERE r.project_id = @project_id AND r.status = 'running') AS INTEGER) AS unfinished;

-- name: CountJobs :one
SELECT
    (SELECT count(*) FROM jobs q WHERE q.status = 'queued') AS queued,
    (SELECT count(*) FROM jobs r WHERE r.status = 'running') AS running,
    CAST((SELECT coalesce(min(o.queued_at), 0) FROM jobs o WHERE o.status = 'queued') AS INTEGER) AS oldest;

-- name: ExpiredJobs :many
SELECT sqlc.embed(j), p.input, p.result FROM jobs j JOIN job_payloads p ON p.job_id = j.id
WHERE j.status = 'queued' AND j.queue_deadline <> 0 AND j.queue_deadline <= @now AND j.lease_until <= @now
ORDER BY j.queue_deadline LIMIT @max;

-- name: OldJobs :many
SELECT sqlc.embed(j), p.input, p.result FROM jobs j JOIN job_payloads p ON p.job_id = j.id
WHERE j.finished_at <> 0 AND j.finished_at < @before
ORDER BY j.finished_at LIMIT @max;

-- name: DeleteJob :execrows
DELETE FROM jobs WHERE id = ?;

-- name: PurgeJobTurns :execrows
DELETE FROM job_turns WHERE project_id IN (
    SELECT t.project_id FROM job_turns t WHERE NOT EXISTS (SELECT 1 FROM jobs j WHERE j.project_id = t.project_id) LIMIT @max
);
