package api

import (
	"context"
	"errors"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// fixedCounts answers the same counts each time.
type fixedCounts struct {
	queued, running int64
	oldest          time.Time
	err             error
}

func (c fixedCounts) CountJobs(context.Context) (queued, running int64, oldest time.Time, err error) {
	return c.queued, c.running, c.oldest, c.err
}

func metricsWith(t *testing.T, counts fixedCounts) (string, *rig) {
	t.Helper()
	r := newRig(t, func(c *Config) { c.JobCounts = counts })
	return string(r.status(r.do("GET", "/metrics", ""), 200).body), r
}

func TestTheMetricsSayHowManyJobsThereAreAndHowLongTheyWait(t *testing.T) {
	page, _ := metricsWith(t, fixedCounts{queued: 7, running: 3, oldest: time.Now().Add(-time.Hour)})
	for _, line := range []string{`cay_jobs{status="queued"} 7`, `cay_jobs{status="running"} 3`} {
		if !strings.Contains(page, line+"\n") {
			t.Errorf("%s is missing in\n%s", line, page)
		}
	}
	found := regexp.MustCompile(`(?m)^cay_job_queue_oldest_seconds (\S+)$`).FindStringSubmatch(page)
	if found == nil {
		t.Fatalf("the age of the queue is missing in\n%s", page)
	}
	if age, err := strconv.ParseFloat(found[1], 64); err != nil || age < 3600 || age > 3660 {
		t.Errorf("the oldest job has waited %s s, want an hour", found[1])
	}
	if page, _ := metricsWith(t, fixedCounts{running: 1}); !strings.Contains(page, "\ncay_job_queue_oldest_seconds 0\n") {
		t.Errorf("without a queue the metrics are\n%s", page)
	}
}

func TestMetricsWithoutCountsOfJobsHaveAllOthers(t *testing.T) {
	page, r := metricsWith(t, fixedCounts{err: errors.New("the disk is gone")})
	if strings.Contains(page, "cay_jobs") || !strings.Contains(page, "cay_http_requests_in_flight") {
		t.Errorf("the metrics are\n%s", page)
	}
	if log := r.log.String(); !strings.Contains(log, "the disk is gone") {
		t.Errorf("the log is silent: %s", log)
	}
}
