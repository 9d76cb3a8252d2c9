package client_test

import (
	"encoding/json"
	"os"
	"slices"
	"testing"

	"github.com/cayhq/cay/client"
)

// methods says which of the client's methods speak each operation of the API.
var methods = map[string][]any{
	"healthz":       {(*client.Client).Healthy},
	"readyz":        {(*client.Client).Ready},
	"openapi":       {(*client.Client).OpenAPI},
	"metrics":       {(*client.Client).ServerMetrics},
	"get-info":      {(*client.Client).Info},
	"list-runtimes": {(*client.Client).Runtimes},
	"create-ticket": {(*client.Client).Ticket},

	"create-sandbox": {(*client.Client).Create},
	"list-sandboxes": {(*client.Client).List},
	"get-sandbox":    {(*client.Client).Get, (*client.Client).Wait},
	"update-sandbox": {(*client.Client).Update},
	"delete-sandbox": {(*client.Client).Delete},
	"pause-sandbox":  {(*client.Client).Pause},
	"resume-sandbox": {(*client.Client).Resume},
	"set-timeout":    {(*client.Client).SetTimeout, (*client.Client).ExtendTimeout},
	"get-metrics":    {(*client.Client).Metrics},
	"read-logs":      {(*client.Client).Logs},
	"list-events":    {(*client.Client).Events},
	"keep-alive":     {(*client.Client).Keepalive},
	"get-network":    {(*client.Client).Network},
	"set-network":    {(*client.Client).SetNetwork},

	"exec":           {(*client.Client).Exec, (*client.Client).Stream},
	"exec-websocket": {(*client.Client).Session, (*client.Processes).Attach},
	"terminal":       {(*client.Client).Terminal},

	"run-code":       {(*client.Client).RunCode, (*client.Client).StreamCode},
	"code-websocket": {(*client.Client).CodeSession},

	"create-context":    {(*client.Contexts).Create},
	"list-contexts":     {(*client.Contexts).List},
	"get-context":       {(*client.Contexts).Get},
	"delete-context":    {(*client.Contexts).Close},
	"interrupt-context": {(*client.Contexts).Interrupt},
	"restart-context":   {(*client.Contexts).Restart},

	"start-process":    {(*client.Processes).Start},
	"list-processes":   {(*client.Processes).List},
	"get-process":      {(*client.Processes).Get},
	"get-process-logs": {(*client.Processes).Logs, (*client.Processes).LogPages},
	"stream-process":   {(*client.Processes).Stream},
	"write-stdin":      {(*client.Processes).WriteStdin},
	"resize-process":   {(*client.Processes).Resize},
	"signal-process":   {(*client.Processes).Signal},
	"wait-for-process": {(*client.Processes).Wait, (*client.Processes).WaitFor},

	"expose-port": {(*client.Ports).Expose},
	"list-ports":  {(*client.Ports).List},
	"remove-port": {(*client.Ports).Close},
	"port-get":    {(*client.Ports).Do},
	"port-put":    {(*client.Ports).Do},
	"port-post":   {(*client.Ports).Do},
	"port-patch":  {(*client.Ports).Do},
	"port-delete": {(*client.Ports).Do},

	"read-file":       {(*client.Files).Read},
	"head-file":       {(*client.Files).Head},
	"write-file":      {(*client.Files).Write},
	"delete-file":     {(*client.Files).Remove},
	"stat-file":       {(*client.Files).Stat},
	"list-files":      {(*client.Files).List},
	"make-directory":  {(*client.Files).Mkdir},
	"move-file":       {(*client.Files).Move},
	"change-mode":     {(*client.Files).Chmod},
	"compose-file":    {(*client.Files).Compose},
	"search-files":    {(*client.Files).Search},
	"watch-files":     {(*client.Files).Watch},
	"sign-file":       {(*client.Files).Sign},
	"submit-job":      {(*client.Jobs).Submit},
	"list-jobs":       {(*client.Jobs).List},
	"get-job":         {(*client.Jobs).Get, (*client.Jobs).Wait},
	"cancel-job":      {(*client.Jobs).Cancel},
	"stream-job":      {(*client.Jobs).Stream},
	"read-job-output": {(*client.Jobs).OpenOutput},

	"create-session":        {(*client.Sessions).Create},
	"list-sessions":         {(*client.Sessions).List},
	"get-session":           {(*client.Sessions).Get},
	"delete-session":        {(*client.Sessions).Delete},
	"list-session-files":    {(*client.SessionFiles).List, (*client.SessionFiles).Stat},
	"read-session-file":     {(*client.SessionFiles).Read},
	"head-session-file":     {(*client.SessionFiles).Head},
	"write-session-file":    {(*client.SessionFiles).Write},
	"delete-session-file":   {(*client.SessionFiles).Remove},
	"read-session-archive":  {(*client.SessionFiles).OpenArchive, (*client.SessionFiles).DownloadArchive},
	"write-session-archive": {(*client.SessionFiles).UploadArchive},

	"list-history":        {(*client.History).List},
	"get-history-record":  {(*client.History).Get},
	"get-usage":           {(*client.Client).Usage},
	"list-audit":          {(*client.Audit).List},
	"list-project-events": {(*client.Client).ProjectEvents},

	"read-archive":  {(*client.Files).OpenArchive, (*client.Files).DownloadArchive},
	"write-archive": {(*client.Files).UploadArchive},
}

// forPeople are operations that a program has no use for.
var forPeople = []string{"docs"}

func TestEveryOperationOfTheAPIHasAMethod(t *testing.T) {
	raw, err := os.ReadFile("../openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Paths map[string]map[string]struct {
			OperationID string `json:"operationId"`
			AliasOf     string `json:"x-alias-of"`
		}
	}
	if err := json.Unmarshal(raw, &doc); err != nil {
		t.Fatal(err)
	}
	there := map[string]bool{}
	for path, operations := range doc.Paths {
		for verb, op := range operations {
			if op.AliasOf != "" { // another form of an operation that has a method
				continue
			}
			there[op.OperationID] = true
			if len(methods[op.OperationID]) == 0 && !slices.Contains(forPeople, op.OperationID) {
				t.Errorf("%s %s, operation %q, has no method in the Go client; say in this test which it is", verb, path, op.OperationID)
			}
		}
	}
	for op := range methods {
		if !there[op] {
			t.Errorf("the API has no operation %q", op)
		}
	}
}
