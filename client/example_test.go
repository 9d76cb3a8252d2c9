package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cayhq/cay/client"
	"github.com/cayhq/cay/client/clienttest"
)

// exampleServer stands for the server that CAY_URL names: a fake, or the real one that CAY_EXAMPLES_URL and CAY_EXAMPLES_KEY name.
func exampleServer() (stop func()) {
	if url := os.Getenv("CAY_EXAMPLES_URL"); url != "" {
		os.Setenv("CAY_URL", url)
		os.Setenv("CAY_API_KEY", os.Getenv("CAY_EXAMPLES_KEY"))
		return func() {}
	}
	server := clienttest.New()
	server.Handle("python3", func(ctx context.Context, p *clienttest.Proc) int {
		if p.Args[1] == "-m" { // http.server
			<-ctx.Done()
			return 0
		}
		fmt.Fprintln(p.Stdout, "42")
		return 0
	})
	server.HandleLanguage("bash", func(context.Context, *clienttest.Proc, string, map[string]string) clienttest.Outcome {
		return clienttest.Outcome{Files: map[string]string{"/session/greeting": "hello\n"}}
	})
	server.Serve(8000, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello") }))
	os.Setenv("CAY_URL", server.URL)
	os.Setenv("CAY_API_KEY", clienttest.Key)
	return server.Close
}

func Example() {
	defer exampleServer()()
	ctx := context.Background()

	c, err := client.FromEnv()
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	sb, err := c.Create(ctx, client.CreateRequest{Image: "host", MemoryMB: 512, TTL: 10 * time.Minute})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Delete(context.WithoutCancel(ctx), sb.ID)

	res, err := c.Exec(ctx, sb.ID, client.Command("python3", "-c", "print(6*7)"))
	if err != nil {
		log.Fatal(err) // the command could not be run at all
	}
	fmt.Printf("exit code %d, output %s", res.ExitCode, res.Stdout)
	// Output: exit code 0, output 42
}

func ExampleClient_Stream() {
	c, id, stop := exampleSandbox()
	defer stop()
	ctx := context.Background()

	for ev, err := range c.Stream(ctx, id, client.Shell("seq 3")) {
		if err != nil {
			log.Fatal(err) // nothing is known of the command's success
		}
		switch ev := ev.(type) {
		case client.OutputEvent:
			fmt.Printf("%s", ev.Data)
		case client.ExitEvent:
			fmt.Println("exit code", ev.ExitCode)
		}
	}
	// Output:
	// 1
	// 2
	// 3
	// exit code 0
}

func ExampleClient_Session() {
	c, id, stop := exampleSandbox()
	defer stop()
	ctx := context.Background()

	s, err := c.Session(ctx, id, client.SessionRequest{
		ExecRequest: client.Command("cat"),
		SessionIO:   client.SessionIO{Stdout: os.Stdout, Stderr: os.Stderr},
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Fprintln(s.Stdin(), "hello")
	s.CloseStdin()
	exit, err := s.Wait()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("exit code", exit.ExitCode)
	// Output:
	// hello
	// exit code 0
}

func ExampleClient_RunCode() {
	c, id, stop := exampleSandbox()
	defer stop()
	ctx := context.Background()

	res, err := c.RunCode(ctx, id, client.CodeRequest{Language: "python", Code: "print(1 + 1)"})
	if err != nil {
		log.Fatal(err) // the code could not be run at all
	}
	fmt.Printf("exit code %d, output %s", res.ExitCode, res.Stdout)
	for _, file := range res.Outputs { // what it left below /output
		fmt.Println(file.Path, file.MIME, len(file.Data))
	}
	// Output: exit code 0, output 2
}

func ExampleContexts() {
	c, id, stop := exampleSandbox()
	defer stop()
	ctx := context.Background()

	python, err := c.Contexts(id).Create(ctx, client.ContextRequest{Language: "python"})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Contexts(id).Close(ctx, python.ID)
	for _, code := range []string{"n = 40", "n + 2"} {
		res, err := c.RunCode(ctx, id, client.CodeRequest{ContextID: python.ID, Code: code})
		if err != nil {
			log.Fatal(err)
		}
		if res.CodeOutcome.Error != nil {
			fmt.Println(res.CodeOutcome.Error)
		}
		if value := res.Main(); value != nil {
			fmt.Println(value.Text(), len(value.Bytes("image/png")))
		}
	}
	// Output: 42 0
}

func ExampleJobs() {
	c, _, stop := exampleSandbox()
	defer stop()
	ctx := context.Background()

	job, err := c.Jobs().Submit(ctx, client.JobRequest{Language: "python", Code: "print(1 + 1)"})
	if err != nil {
		log.Fatal(err)
	}
	for frame, err := range c.Jobs().Stream(ctx, job.ID, 0) {
		if err != nil {
			log.Fatal(err) // nothing is known of how the job ended
		}
		switch frame.Type {
		case client.FrameStdout, client.FrameStderr:
			fmt.Printf("%s", frame.Data)
		case client.FrameExit, client.FrameError: // the last one
			fmt.Println("it ended with", frame.Status)
		}
	}
	// Output:
	// 2
	// it ended with success
}

func ExampleSessions() {
	c, _, stop := exampleSandbox()
	defer stop()
	ctx := context.Background()

	session, err := c.Sessions().Create(ctx, client.CreateSessionRequest{TTL: 24 * time.Hour})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Sessions().Delete(context.WithoutCancel(ctx), session.ID, true)
	job, err := c.Jobs().Submit(ctx, client.JobRequest{
		Language: "bash", Code: "echo hello > /session/greeting", SessionID: session.ID, Wait: time.Minute,
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(job.Status)
	file, err := c.Sessions().Files(session.ID).Read(ctx, "greeting", client.ReadOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer file.Close()
	if _, err := io.Copy(os.Stdout, file); err != nil {
		log.Fatal(err)
	}
	// Output:
	// success
	// hello
}

func ExampleProcesses() {
	c, id, stop := exampleSandbox()
	defer stop()
	ctx := context.Background()

	processes := c.Processes(id)
	if _, err := processes.Start(ctx, client.ProcessRequest{ExecRequest: client.Command("cat"), Name: "copier", StdinOpen: true}); err != nil {
		log.Fatal(err)
	}
	if _, err := processes.WriteStdin(ctx, "copier", strings.NewReader("hello\n"), client.StdinOptions{Close: true}); err != nil {
		log.Fatal(err)
	}
	p, err := processes.Wait(ctx, "copier")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(p.Status, p.ExitCode)
	for page, err := range processes.LogPages(ctx, p.ID, client.LogsOptions{}) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s", page.Stdout)
	}
	// Output:
	// exited 0
	// hello
}

func ExamplePorts() {
	c, id, stop := exampleSandbox()
	defer stop()
	ctx := context.Background()
	if _, err := c.Files(id).Write(ctx, "/workspace/hello.txt", strings.NewReader("hello"), client.WriteOptions{}); err != nil {
		log.Fatal(err)
	}

	server := client.ProcessRequest{ExecRequest: client.Command("python3", "-m", "http.server", "8000")}
	if _, err := c.Processes(id).Start(ctx, server); err != nil {
		log.Fatal(err)
	}
	port, err := c.Ports(id).Expose(ctx, 8000, client.ExposeOptions{}) // for browsers: port.TokenURL()
	if err != nil {
		log.Fatal(err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "/hello.txt", nil)
	if err != nil {
		log.Fatal(err)
	}
	res, err := c.Ports(id).Do(request, port.Port) // with the API key, and without an exposed port too
	if err != nil {
		log.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(res.StatusCode, string(body))
	// Output: 200 hello
}

func ExampleClient_Events() {
	c, id, stop := exampleSandbox()
	defer stop()
	ctx := context.Background()

	for ev, err := range c.Events(ctx, id, client.FeedOptions{Follow: true}) { // until the sandbox has ended
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(ev.Type, string(ev.Data))
		break
	}
	// Output: status {"from":"CREATING","to":"READY"}
}

func ExampleFiles() {
	c, id, stop := exampleSandbox()
	defer stop()
	ctx := context.Background()

	files := c.Files(id)
	if _, err := files.Write(ctx, "/workspace/a.txt", strings.NewReader("hello"), client.WriteOptions{Mode: 0o644}); err != nil {
		log.Fatal(err)
	}
	r, err := files.Read(ctx, "/workspace/a.txt", client.ReadOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer r.Close()
	content, err := io.ReadAll(r)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%d bytes: %s\n", r.Size, content)
	for info, err := range files.List(ctx, "/workspace", 1) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(info.Mode, info.Name)
	}
	// Output:
	// 5 bytes: hello
	// -rw-r--r-- a.txt
}

func ExampleFiles_Watch() {
	c, id, stop := exampleSandbox()
	defer stop()
	ctx := context.Background()

	files := c.Files(id)
	for ev, err := range files.Watch(ctx, "/workspace", client.WatchOptions{Recursive: true}) {
		if err != nil {
			log.Fatal(err)
		}
		if ev.Type == client.WatchReady { // changes are seen from here on
			if err := files.Mkdir(ctx, "/workspace/results", 0o755, false); err != nil {
				log.Fatal(err)
			}
			continue
		}
		fmt.Println(ev.Type, ev.Path)
		break
	}
	// Output: create /workspace/results
}

func ExampleFiles_Search() {
	c, id, stop := exampleSandbox()
	defer stop()
	ctx := context.Background()
	if _, err := c.Files(id).Write(ctx, "/workspace/src/main.go", strings.NewReader("package main\n\nfunc main() {}\n"), client.WriteOptions{}); err != nil {
		log.Fatal(err)
	}

	for match, err := range c.Files(id).Search(ctx, "/workspace", client.SearchOptions{Pattern: "*.go", Contains: "func "}) {
		if err != nil {
			log.Fatal(err)
		}
		for _, line := range match.Lines {
			fmt.Printf("%s:%d: %s\n", match.Path, line.Number, line.Text)
		}
	}
	// Output: /workspace/src/main.go:3: func main() {}
}

func ExampleFiles_CopyFrom() {
	c, id, stop := exampleSandbox()
	defer stop()
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "cay")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if _, err := c.Files(id).Write(ctx, "/output/plots/a.png", strings.NewReader("png"), client.WriteOptions{}); err != nil {
		log.Fatal(err)
	}

	report, err := c.Files(id).CopyFrom(ctx, "/output", filepath.Join(dir, "results"), client.CopyOptions{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(report.Files, "files,", report.Bytes, "bytes")
	for _, s := range report.Skipped {
		fmt.Println("left out", s.Path, s.Why)
	}
	// Output: 1 files, 3 bytes
}

func ExampleReasonOf() {
	c, _, stop := exampleSandbox()
	defer stop()
	ctx := context.Background()

	_, err := c.Get(ctx, "sbx_nosuch")
	if client.ReasonOf(err) == client.ReasonNotFound {
		fmt.Println("there is no such sandbox")
	}
	var e *client.Error
	if errors.As(err, &e) {
		fmt.Println(e.Status, e.Reason)
	}
	// Output:
	// there is no such sandbox
	// 404 not_found
}

func exampleSandbox() (*client.Client, string, func()) {
	stop := exampleServer()
	c, err := client.FromEnv()
	if err != nil {
		log.Fatal(err)
	}
	sb, err := c.Create(context.Background(), client.CreateRequest{})
	if err != nil {
		log.Fatal(err)
	}
	return c, sb.ID, func() {
		if _, err := c.Delete(context.Background(), sb.ID); err != nil {
			log.Print(err)
		}
		stop()
		c.Close()
	}
}
