package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cayhq/cay/client"
	"github.com/cayhq/cay/client/clienttest"
)

// exampleServer stands for the server that CAY_URL names.
func exampleServer() (stop func()) {
	server := clienttest.New()
	server.Handle("python3", func(_ context.Context, p *clienttest.Proc) int {
		fmt.Fprintln(p.Stdout, "42")
		return 0
	})
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
		fmt.Println(e.Status, e.Detail)
	}
	// Output:
	// there is no such sandbox
	// 404 there is no sandbox sbx_nosuch
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
	return c, sb.ID, func() { stop(); c.Close() }
}
