package contract

import (
	"strings"
)

// longAgo and soon are times around all that this suite does.
const longAgo, soon = "2020-01-02T15:04:05Z", "2100-01-02T15:04:05Z"

var historyCalls = map[string]example{
	"list-history": {call: does(call{query: fields{"limit": "3", "order": "asc", "kind": "exec,job", "outcome": "exited,success", "ok": "true", "text": "e", "from": longAgo, "to": soon, "all_projects": "true",
		"sandbox_id": "sbx_" + strings.Repeat("0", 26), "session_id": "ses_" + strings.Repeat("0", 26), "key_id": "key_" + strings.Repeat("0", 26)}}),
		more: []func(*stage) call{
			does(call{query: fields{"limit": "5"}}), does(call{query: fields{"kind": "cook"}, want: 400}), does(call{query: fields{"outcome": "a,,b"}, want: 400}),
			does(call{query: fields{"from": soon, "to": longAgo}, want: 400}), does(call{query: fields{"sandbox_id": "job_1"}, want: 400}), does(call{query: fields{"text": strings.Repeat("a", 201)}, want: 400}),
		}},
	"get-history-record": {call: ofJob(call{}), more: []func(*stage) call{
		does(call{want: 404}), // of a sandbox that has not ended
	}},
	"get-usage": {call: does(call{query: fields{"from": "2026-01-02", "to": soon, "group_by": "day,sandbox,project", "sandbox_id": "sbx_" + strings.Repeat("0", 26), "all_projects": "true", "limit": "3"}}),
		more: []func(*stage) call{
			does(call{}), does(call{query: fields{"group_by": "hour"}, want: 400}), does(call{query: fields{"from": "yesterday"}, want: 400}), does(call{query: fields{"from": "2026-01-03", "to": "2026-01-02"}, want: 400}),
		}},
	"list-audit": {call: does(call{query: fields{"limit": "3", "order": "desc", "key_id": "key_" + strings.Repeat("0", 26), "action": "create-sandbox", "object": "sbx_" + strings.Repeat("0", 26), "from": longAgo, "to": soon, "all_projects": "true"}}),
		more: []func(*stage) call{does(call{query: fields{"limit": "5"}}), does(call{query: fields{"action": "steal"}, want: 400})}},
	"list-project-events": {call: does(call{query: fields{"after": "0", "limit": "10", "types": "status,job_status"}}), more: []func(*stage) call{
		does(call{query: fields{"follow": "false"}, header: []string{"Accept", eventType}}), does(call{query: fields{"follow": "false", "after": "999999999"}, header: []string{"Accept", eventType}}),
		does(call{header: []string{"Accept", eventType, "Last-Event-ID", "0"}, until: "status"}), does(call{query: fields{"types": "weather"}, want: 400}),
	}},
}
