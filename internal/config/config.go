// Package config is Cay's configuration: one struct, filled from defaults, a file, the environment and flags, in that order. It
// reads and checks values; what they mean is up to the parts that are given them.
package config

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
)

// Config is all that can be set. Each field's tags name it: `key` in the file and for --set, `env` in the environment, `help` for people.
type Config struct {
	DataDir          string   `key:"data_dir" env:"CAY_DATA_DIR" help:"where everything that must last is kept"`
	RunDir           string   `key:"run_dir" env:"CAY_RUN_DIR" help:"sockets and what need not outlive a boot; empty: below /run/cay as root, else below $XDG_RUNTIME_DIR or data_dir"`
	Listen           string   `key:"listen" env:"CAY_LISTEN" help:"address of the API, host:port; port 0 takes a free one"`
	BootstrapKey     string   `key:"bootstrap_key" env:"CAY_BOOTSTRAP_KEY" help:"the first admin key (cay_ and 64 hex digits); generated when empty" secret:"true"`
	Origins          []string `key:"allowed_origins" env:"CAY_ALLOWED_ORIGINS" help:"browser origins that may call the API, comma-separated"`
	Hosts            []string `key:"allowed_hosts" env:"CAY_ALLOWED_HOSTS" help:"further Host names that a loopback listener answers to, comma-separated"`
	SandboxDomain    string   `key:"sandbox_domain" env:"CAY_SANDBOX_DOMAIN" help:"domain, or domain:port, below which every exposed port of a sandbox has its host; it must not be one that the API or other sites are served at"`
	SandboxURLScheme string   `key:"sandbox_url_scheme" env:"CAY_SANDBOX_URL_SCHEME" help:"http or https, in the URLs of ports; empty: http for localhost, else https"`
	ServerUser       string   `key:"server_user" env:"CAY_SERVER_USER" help:"user, or uid:gid, that the server drops to when started as root"`
	LogLevel         string   `key:"log_level" env:"CAY_LOG_LEVEL" help:"debug, info, warn or error"`
	LogFormat        string   `key:"log_format" env:"CAY_LOG_FORMAT" help:"text or json"`

	PoolSize              int64   `key:"pool_size" env:"CAY_POOL_SIZE" help:"sandboxes of the default shape kept prepared"`
	MaxSandboxes          int64   `key:"max_sandboxes" env:"CAY_MAX_SANDBOXES" help:"sandboxes on this node at once"`
	MaxSandboxesProject   int64   `key:"max_sandboxes_per_project" env:"CAY_MAX_SANDBOXES_PER_PROJECT" help:"active sandboxes of one project"`
	CPUOvercommit         float64 `key:"cpu_overcommit" env:"CAY_CPU_OVERCOMMIT" help:"promised cores for each real one"`
	MemoryMB              int64   `key:"memory_mb" env:"CAY_MEMORY_MB" help:"memory that sandboxes may be promised in all; 0: what the machine has, less a tenth"`
	DiskGB                float64 `key:"disk_gb" env:"CAY_DISK_GB" help:"disk that sandboxes may be promised in all; 0: what is free in data_dir"`
	AllowUnenforcedLimits bool    `key:"allow_unenforced_limits" env:"CAY_ALLOW_UNENFORCED_LIMITS" help:"accept explicit limits that this node cannot enforce (rootless without delegated cgroups)"`

	DefaultCPU        float64 `key:"default_cpu" env:"CAY_DEFAULT_CPU" help:"cores of a sandbox that asks for none"`
	DefaultMemoryMB   int64   `key:"default_memory_mb" env:"CAY_DEFAULT_MEMORY_MB" help:"memory of a sandbox that asks for none"`
	DefaultDiskGB     float64 `key:"default_disk_gb" env:"CAY_DEFAULT_DISK_GB" help:"disk of a sandbox that asks for none"`
	DefaultPids       int64   `key:"default_pids" env:"CAY_DEFAULT_PIDS" help:"processes of a sandbox that asks for none"`
	DefaultTTLSeconds float64 `key:"default_ttl_seconds" env:"CAY_DEFAULT_TTL_SECONDS" help:"life of a sandbox that asks for none"`
	MaxTTLSeconds     float64 `key:"max_ttl_seconds" env:"CAY_MAX_TTL_SECONDS" help:"the longest life"`

	BlobURL string `key:"blob_url" env:"CAY_BLOB_URL" help:"where artifacts and archives are kept: file:///a/folder, or s3://bucket?region=… with the credentials in the AWS_ variables; empty: a folder in data_dir" secret:"true"`

	JobConcurrency      int64   `key:"job_concurrency" env:"CAY_JOB_CONCURRENCY" help:"jobs that run at once; 0: twice the machine's cores"`
	MaxJobsProject      int64   `key:"max_jobs_per_project" env:"CAY_MAX_JOBS_PER_PROJECT" help:"jobs of one project that have not finished"`
	JobRetentionSeconds float64 `key:"job_retention_seconds" env:"CAY_JOB_RETENTION_SECONDS" help:"how long a finished job is kept, with its output"`

	DefaultSessionDiskGB       float64 `key:"default_session_disk_gb" env:"CAY_DEFAULT_SESSION_DISK_GB" help:"disk of a session that asks for none"`
	MaxSessionDiskGB           float64 `key:"max_session_disk_gb" env:"CAY_MAX_SESSION_DISK_GB" help:"the most that a session may ask for"`
	DefaultSessionTTLSeconds   float64 `key:"default_session_ttl_seconds" env:"CAY_DEFAULT_SESSION_TTL_SECONDS" help:"how long a session that asks for nothing else is kept after its last use"`
	MaxSessionTTLSeconds       float64 `key:"max_session_ttl_seconds" env:"CAY_MAX_SESSION_TTL_SECONDS" help:"the longest that a session is kept after its last use"`
	MaxSessionsProject         int64   `key:"max_sessions_per_project" env:"CAY_MAX_SESSIONS_PER_PROJECT" help:"sessions of one project"`
	SessionArchiveAfterSeconds float64 `key:"session_archive_after_seconds" env:"CAY_SESSION_ARCHIVE_AFTER_SECONDS" help:"how long after its last use a session goes to blob storage; 0: never"`

	MetricsListen           string  `key:"metrics_listen" env:"CAY_METRICS_LISTEN" help:"a further address, host:port, that answers /metrics without a key, for Prometheus; empty: none"`
	HistoryRetentionSeconds float64 `key:"history_retention_seconds" env:"CAY_HISTORY_RETENTION_SECONDS" help:"how long records of what ran are kept"`
	MaxHistoryRecords       int64   `key:"max_history_records" env:"CAY_MAX_HISTORY_RECORDS" help:"records of what ran that are kept at most; the oldest go first"`
	HistoryCommands         bool    `key:"history_commands" env:"CAY_HISTORY_COMMANDS" help:"keep the beginning of each command and program in its record"`
	UsageRetentionSeconds   float64 `key:"usage_retention_seconds" env:"CAY_USAGE_RETENTION_SECONDS" help:"how long the usage of a day is kept"`
	AuditRetentionSeconds   float64 `key:"audit_retention_seconds" env:"CAY_AUDIT_RETENTION_SECONDS" help:"how long entries of the audit log are kept"`
}

// Default is the configuration before anything is read. Root keeps its data in /var/lib/cay, others in ~/.local/share/cay.
func Default() Config {
	return Config{
		DataDir:             defaultDataDir(),
		Listen:              "127.0.0.1:8080",
		SandboxDomain:       "localhost",
		ServerUser:          "61999:61999", // in the range that systemd keeps free of login accounts (61184–65519, systemd's UIDS-GIDS)
		LogLevel:            "info",
		LogFormat:           "text",
		PoolSize:            2,
		MaxSandboxes:        256,
		MaxSandboxesProject: 256,
		CPUOvercommit:       16,
		DefaultCPU:          1,
		DefaultMemoryMB:     1024,
		DefaultDiskGB:       4,
		DefaultPids:         512,
		DefaultTTLSeconds:   3600,
		MaxTTLSeconds:       30 * 24 * 3600,

		MaxJobsProject:             10_000,
		JobRetentionSeconds:        7 * 24 * 3600,
		DefaultSessionDiskGB:       1,
		MaxSessionDiskGB:           16,
		DefaultSessionTTLSeconds:   7 * 24 * 3600,
		MaxSessionTTLSeconds:       90 * 24 * 3600,
		MaxSessionsProject:         1000,
		SessionArchiveAfterSeconds: 24 * 3600,

		HistoryRetentionSeconds: 30 * 24 * 3600,
		MaxHistoryRecords:       1_000_000,
		HistoryCommands:         true,
		UsageRetentionSeconds:   400 * 24 * 3600,
		AuditRetentionSeconds:   90 * 24 * 3600,
	}
}

func defaultDataDir() string {
	if os.Geteuid() == 0 {
		return "/var/lib/cay"
	}
	if d := os.Getenv("XDG_DATA_HOME"); d != "" {
		return filepath.Join(d, "cay")
	}
	return filepath.Join(os.Getenv("HOME"), ".local/share/cay")
}

var (
	keyForm = regexp.MustCompile(`^cay_[0-9a-f]{64}$`)
	// domainForm is a host name with an optional port.
	domainForm = regexp.MustCompile(`^([a-z0-9]([a-z0-9-]*[a-z0-9])?\.)*[a-z0-9]([a-z0-9-]*[a-z0-9])?(:[0-9]{1,5})?$`)
	userForm   = regexp.MustCompile(`^([0-9]+:[0-9]+|[a-z_][a-z0-9_-]*)$`)
)

// Validate reports every fault at once.
func (c Config) Validate() error {
	var faults []error
	bad := func(key, format string, args ...any) {
		faults = append(faults, fmt.Errorf("%s: %s", key, fmt.Sprintf(format, args...)))
	}
	if !filepath.IsAbs(c.DataDir) {
		bad("data_dir", "%q is not an absolute path", c.DataDir)
	}
	if c.RunDir != "" && !filepath.IsAbs(c.RunDir) {
		bad("run_dir", "%q is not an absolute path", c.RunDir)
	}
	if host, port, err := net.SplitHostPort(c.Listen); err != nil || port == "" {
		bad("listen", "%q is not host:port", c.Listen)
	} else if _, err := net.LookupPort("tcp", port); err != nil {
		bad("listen", "%q has no usable port", c.Listen)
	} else if host != "" && host != "localhost" && net.ParseIP(host) == nil {
		bad("listen", "%q does not begin with an IP address or localhost", c.Listen)
	}
	if c.BootstrapKey != "" && !keyForm.MatchString(c.BootstrapKey) {
		bad("bootstrap_key", "must be cay_ and 64 lower-case hex digits")
	}
	for _, o := range c.Origins {
		if u, err := url.Parse(o); err != nil || u.Host == "" || u.Path != "" || (u.Scheme != "http" && u.Scheme != "https") {
			bad("allowed_origins", "%q is not an origin such as https://app.example.com", o)
		}
	}
	if !domainForm.MatchString(c.SandboxDomain) || len(c.SandboxDomain) > 200 {
		bad("sandbox_domain", "%q is not a domain in lower case such as sandboxes.example.com", c.SandboxDomain)
	}
	if !userForm.MatchString(c.ServerUser) {
		bad("server_user", "%q is neither a user name nor uid:gid", c.ServerUser)
	}
	oneOf := func(key, value string, allowed ...string) {
		for _, a := range allowed {
			if value == a {
				return
			}
		}
		bad(key, "%q is none of %v", value, allowed)
	}
	oneOf("sandbox_url_scheme", c.SandboxURLScheme, "", "http", "https")
	oneOf("log_level", c.LogLevel, "debug", "info", "warn", "error")
	oneOf("log_format", c.LogFormat, "text", "json")
	atLeast := func(key string, value, least float64) {
		if !(value >= least) { // also false for NaN
			bad(key, "%v is less than %v", value, least)
		}
	}
	atLeast("pool_size", float64(c.PoolSize), 0)
	atLeast("max_sandboxes", float64(c.MaxSandboxes), 1)
	atLeast("max_sandboxes_per_project", float64(c.MaxSandboxesProject), 1)
	atLeast("cpu_overcommit", c.CPUOvercommit, 0.1)
	atLeast("memory_mb", float64(c.MemoryMB), 0)
	atLeast("disk_gb", c.DiskGB, 0)
	atLeast("default_cpu", c.DefaultCPU, 0.1)
	atLeast("default_memory_mb", float64(c.DefaultMemoryMB), 64)
	atLeast("default_disk_gb", c.DefaultDiskGB, 0.01)
	atLeast("default_pids", float64(c.DefaultPids), 8)
	atLeast("default_ttl_seconds", c.DefaultTTLSeconds, 1)
	atLeast("max_ttl_seconds", c.MaxTTLSeconds, c.DefaultTTLSeconds)
	if u, err := url.Parse(c.BlobURL); c.BlobURL != "" && (err != nil || u.Scheme != "file" && u.Scheme != "s3") {
		bad("blob_url", "must begin with file:/// or s3://")
	}
	atLeast("job_concurrency", float64(c.JobConcurrency), 0)
	atLeast("max_jobs_per_project", float64(c.MaxJobsProject), 1)
	atLeast("job_retention_seconds", c.JobRetentionSeconds, 1)
	atLeast("default_session_disk_gb", c.DefaultSessionDiskGB, 0.01)
	atLeast("max_session_disk_gb", c.MaxSessionDiskGB, c.DefaultSessionDiskGB)
	atLeast("default_session_ttl_seconds", c.DefaultSessionTTLSeconds, 1)
	atLeast("max_session_ttl_seconds", c.MaxSessionTTLSeconds, c.DefaultSessionTTLSeconds)
	atLeast("max_sessions_per_project", float64(c.MaxSessionsProject), 1)
	atLeast("session_archive_after_seconds", c.SessionArchiveAfterSeconds, 0)
	if c.MetricsListen != "" {
		if _, port, err := net.SplitHostPort(c.MetricsListen); err != nil || port == "" {
			bad("metrics_listen", "%q is not host:port", c.MetricsListen)
		}
	}
	atLeast("history_retention_seconds", c.HistoryRetentionSeconds, 60)
	atLeast("max_history_records", float64(c.MaxHistoryRecords), 1)
	atLeast("usage_retention_seconds", c.UsageRetentionSeconds, 24*3600)
	atLeast("audit_retention_seconds", c.AuditRetentionSeconds, 60)
	if c.DefaultCPU > float64(runtime.NumCPU()) {
		bad("default_cpu", "%v is more than the machine has (%d)", c.DefaultCPU, runtime.NumCPU())
	}
	return errors.Join(faults...)
}
