package clienttest

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// builtins are the programs every sandbox has.
var builtins = map[string]Program{
	"true":  func(context.Context, *Proc) int { return 0 },
	"false": func(context.Context, *Proc) int { return 1 },
	"echo": func(_ context.Context, p *Proc) int {
		fmt.Fprintln(p.Stdout, strings.Join(p.Args[1:], " "))
		return 0
	},
	"warn": func(_ context.Context, p *Proc) int {
		fmt.Fprintln(p.Stderr, strings.Join(p.Args[1:], " "))
		return 0
	},
	"exit": func(_ context.Context, p *Proc) int {
		code, _ := strconv.Atoi(p.Args[1])
		return code
	},
	"cat": func(_ context.Context, p *Proc) int {
		io.Copy(p.Stdout, p.Stdin)
		return 0
	},
	"seq": func(_ context.Context, p *Proc) int {
		n, _ := strconv.Atoi(p.Args[1])
		for i := 1; i <= n; i++ {
			fmt.Fprintln(p.Stdout, i)
		}
		return 0
	},
	"env": func(_ context.Context, p *Proc) int {
		for k, v := range p.Env {
			fmt.Fprintf(p.Stdout, "%s=%s\n", k, v)
		}
		return 0
	},
	"block": func(ctx context.Context, p *Proc) int { // until a signal; says when it runs
		fmt.Fprintln(p.Stdout, "blocking")
		<-ctx.Done()
		return 0
	},
	"trap": func(ctx context.Context, p *Proc) int { // reports signals until KILL
		p.Catch()
		fmt.Fprintln(p.Stdout, "trapping")
		for {
			select {
			case name := <-p.Signals:
				fmt.Fprintf(p.Stdout, "got %s\n", name)
			case <-ctx.Done():
				return 0
			}
		}
	},
	"tty": func(ctx context.Context, p *Proc) int { // reports sizes; echoes lines until "exit N"
		done := make(chan struct{})
		defer func() { <-done }()
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		go func() {
			defer close(done)
			for {
				select {
				case size := <-p.Sizes:
					fmt.Fprintf(p.Stdout, "size %dx%d\r\n", size[0], size[1])
				case <-ctx.Done():
					return
				}
			}
		}()
		in := bufio.NewReader(p.Stdin)
		for {
			line, err := in.ReadString('\r')
			if err != nil {
				return 0
			}
			line = strings.TrimRight(line, "\r")
			if code, ok := strings.CutPrefix(line, "exit "); ok {
				n, _ := strconv.Atoi(code)
				return n
			}
			fmt.Fprintf(p.Stdout, "line %q\r\n", line)
		}
	},
}
