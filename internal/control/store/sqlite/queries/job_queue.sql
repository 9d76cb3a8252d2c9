-- name: JobsToTakeOver :many
-- Jobs that run and whose holder died.
SELECT * FROM jobs WHERE status = 'running' AND lease_until <= @now AND not_before <= @now ORDER BY queued_at, id LIMIT @max;

-- name: ProjectsWithQueuedJobs :many
-- From one project to the next in the index, without reading the jobs between.
WITH RECURSIVE waiting (id) AS (
    SELECT min(f.project_id) FROM jobs f WHERE f.status = 'queued'
    UNION ALL
    SELECT (SELECT min(n.project_id) FROM jobs n WHERE n.status = 'queued' AND n.project_id > waiting.id) FROM waiting WHERE waiting.id IS NOT NULL
)
SELECT
    CAST(waiting.id AS TEXT) AS id,
    (SELECT count(*) FROM jobs l WHERE l.project_id = waiting.id AND l.lease_owner <> '' AND l.lease_until > @now) AS leased,
    CAST(coalesce((SELECT t.turn FROM job_turns t WHERE t.project_id = waiting.id), 0) AS INTEGER) AS turn
FROM waiting WHERE waiting.id IS NOT NULL;

-- name: SessionsWithQueuedJobs :many
-- The sessions of a project that jobs wait for; '' stands for jobs without one.
WITH RECURSIVE waiting (id) AS (
    SELECT min(f.session_id) FROM jobs f WHERE f.status = 'queued' AND f.project_id = @project_id
    UNION ALL
    SELECT (SELECT min(n.session_id) FROM jobs n WHERE n.status = 'queued' AND n.project_id = @project_id AND n.session_id > waiting.id)
    FROM waiting WHERE waiting.id IS NOT NULL
)
SELECT CAST(waiting.id AS TEXT) AS id FROM waiting WHERE waiting.id IS NOT NULL;

-- name: NextQueuedJob :many
SELECT * FROM jobs
WHERE status = 'queued' AND project_id = @project_id AND session_id = @session_id AND session_shared = @session_shared
    AND lease_until <= @now AND not_before <= @now
ORDER BY priority DESC, queued_at, id LIMIT 1;

-- name: JobsThatUseSessions :many
-- A job that is leased and runs may be there twice: a UNION would read all jobs in the order of their ids.
SELECT l.id, l.session_id, l.session_shared FROM jobs l WHERE l.session_id <> '' AND l.lease_owner <> '' AND l.lease_until > @now
UNION ALL
SELECT r.id, r.session_id, r.session_shared FROM jobs r WHERE r.session_id <> '' AND r.status = 'running';

-- name: SandboxesThatUseSessions :many
SELECT id, session_id, session_shared, managed_by FROM sandboxes WHERE session_id <> '' AND ended_at = 0 AND managed_by <> session_id;

-- name: TakeTurn :exec
INSERT INTO job_turns (project_id, turn) VALUES (@project_id, 1 + (SELECT coalesce(max(t.turn), 0) FROM job_turns t))
ON CONFLICT (project_id) DO UPDATE SET turn = excluded.turn;

-- name: RenewJobLease :execrows
UPDATE jobs SET lease_until = @lease_until
WHERE id = @id AND fence = @fence AND lease_owner = @lease_owner AND finished_at = 0;

-- name: ReleaseOtherJobLeases :execrows
UPDATE jobs SET lease_owner = '', lease_until = 0 WHERE lease_owner <> '' AND lease_owner <> @owner;

-- name: QueuedJobOfSandbox :many
SELECT * FROM jobs
WHERE id = @id AND sandbox_id = @sandbox_id AND session_shared = @session_shared AND status = 'queued' AND lease_until <= @now AND not_before <= @now;
