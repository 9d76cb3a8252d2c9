package main

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"net"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/internal/wire/guestv1"
)

func control() (net.Conn, error) {
	c, err := dial()
	if err != nil {
		return nil, err
	}
	if err := wire.WritePreamble(c, wire.Preamble{Kind: wire.ConnControl}); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func message(m *guestv1.ToNode) []byte {
	raw, err := proto.Marshal(m)
	if err != nil {
		panic(err) // the messages are made here
	}
	if len(raw) > wire.MaxFrame {
		raw = raw[:wire.MaxFrame]
	}
	return wire.AppendFrame(nil, wire.Frame{Type: wire.FrameMessage, Payload: raw})
}

func hello(generation uint64, processes ...*guestv1.Running) []byte {
	return message(&guestv1.ToNode{Message: &guestv1.ToNode_Hello{Hello: &guestv1.Hello{
		Protocol: wire.GuestProtocol, Generation: generation, Claimed: true, Processes: processes, Version: "hostile",
	}}})
}

// after opens a control connection, sends all of that, and reads until the node hangs up.
func after(sends ...[]byte) error {
	c, err := control()
	if err != nil {
		return err
	}
	defer c.Close()
	// The node may hang up in the middle; what it sends must be read, or it would be the one to wait.
	read := make(chan error, 1)
	go func() { read <- drain(c) }()
	for _, b := range sends {
		if _, err := c.Write(b); err != nil {
			break
		}
	}
	return <-read
}

// oversized announces more than a frame may hold, and sends it.
func oversized() error {
	huge := []byte{0xff, 0xff, 0xff, 0xff, byte(wire.FrameMessage), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	return after(hello(1), huge, bytes.Repeat([]byte{'x'}, 8<<20))
}

// reserved sends unknown types and bits that must be zero.
func reserved() error {
	f := wire.AppendFrame(nil, wire.Frame{Type: wire.FrameMessage})
	f[4], f[5] = 99, 1
	return after(hello(1), f)
}

// early sends output before any hello.
func early() error {
	return after(wire.AppendData(nil, wire.FrameStdout, 1, 0, []byte("early")), hello(1))
}

// hellos says hello with generations that go back and forth, and with more processes than there can be.
func hellos() error {
	var many []*guestv1.Running
	for i := range 1000 {
		many = append(many, &guestv1.Running{ProcessId: fmt.Sprintf("prc_%026d", i), Pid: int64(i), Produced: math.MaxInt64, Acknowledged: -1, StdinOffset: math.MinInt64, Stream: uint64(i)})
	}
	var errs []error
	for _, generation := range []uint64{0, 1, math.MaxUint64, 5, math.MaxUint64 - 1} {
		errs = append(errs, after(hello(generation), hello(generation+1), hello(0, many...)))
	}
	return errors.Join(errs...)
}

// forge claims exits, answers and output for processes and requests that it was never asked about.
func forge() error {
	sends := [][]byte{hello(math.MaxUint32)}
	for i := range min(*count, 500) {
		id := fmt.Sprintf("prc_%026d", i)
		sends = append(sends,
			message(&guestv1.ToNode{Message: &guestv1.ToNode_Exited{Exited: &guestv1.Exited{ProcessId: id, Produced: math.MaxInt64, DurationMs: -1, Code: math.MaxInt32, Signal: -9}}}),
			message(&guestv1.ToNode{ReplyTo: uint64(i), Message: &guestv1.ToNode_Started{Started: &guestv1.Started{Pid: -1}}}),
			message(&guestv1.ToNode{ReplyTo: math.MaxUint64, Message: &guestv1.ToNode_Done{Done: &guestv1.Done{}}}),
			message(&guestv1.ToNode{Message: &guestv1.ToNode_StdinAck{StdinAck: &guestv1.StdinAck{ProcessId: id, Offset: math.MaxInt64}}}),
			message(&guestv1.ToNode{Message: &guestv1.ToNode_Killed{Killed: &guestv1.Killed{Victims: []*guestv1.Killed_Victim{{ProcessId: id, RssBytes: math.MaxInt64}}}}}),
			message(&guestv1.ToNode{}),
			wire.AppendData(nil, wire.FrameStdout, uint64(i), 1<<61, make([]byte, 1000)),
			wire.AppendData(nil, wire.FrameStderr, math.MaxUint64, 0, nil),
			wire.AppendFrame(nil, wire.Frame{Type: wire.FrameData, Payload: make([]byte, wire.MaxFrame)}),
			wire.AppendFrame(nil, wire.Frame{Type: wire.FrameMessage, Payload: []byte{0xff, 0xff, 0xff}}),
		)
	}
	return after(sends...)
}

// replay sends the same output again and again.
func replay() error {
	sends := [][]byte{hello(math.MaxUint32)}
	run := wire.AppendData(nil, wire.FrameStdout, 1, 0, make([]byte, wire.MaxDataRun))
	for range min(*count, 500) {
		sends = append(sends, run)
	}
	return after(sends...)
}

// reorder sends output with offsets that fall and leap.
func reorder() error {
	sends := [][]byte{hello(math.MaxUint32)}
	for i := range min(*count, 500) {
		for stream := range uint64(4) {
			sends = append(sends, wire.AppendData(nil, wire.FrameStdout, stream, int64(1000000-i*1000), []byte("backwards")), wire.AppendData(nil, wire.FrameStderr, stream, int64(i)<<40, []byte("leaping")))
		}
	}
	return after(sends...)
}

// tokens guesses the tokens of bulk connections.
func tokens() error {
	var errs []error
	for range min(*count, 200) {
		c, err := dial()
		if err != nil {
			errs = append(errs, err)
			continue
		}
		var p wire.Preamble
		p.Kind = wire.ConnBulk
		rand.Read(p.Token[:])
		if err := wire.WritePreamble(c, p); err != nil {
			errs = append(errs, err)
		}
		_ = c.SetDeadline(time.Now().Add(50 * time.Millisecond))
		_ = drain(c)
		_ = c.Close()
	}
	return errors.Join(errs...)
}

// falseAgent takes the agent's place and answers each request wrongly in turn.
func falseAgent() error { return serve(lie) }

// bigAgent does the same with as much data as it can push.
func bigAgent() error {
	payload := make([]byte, wire.MaxDataRun)
	return serve(func(m *guestv1.ToAgent, n int) [][]byte {
		start := m.GetStart()
		if start == nil {
			return lie(m, n)
		}
		sends := [][]byte{message(&guestv1.ToNode{ReplyTo: m.Id, Message: &guestv1.ToNode_Started{Started: &guestv1.Started{Pid: 2}}})}
		for i := range 2000 { // 128 MiB beyond any credit
			sends = append(sends, wire.AppendData(nil, wire.FrameStdout, start.Stream, int64(i)*wire.MaxDataRun, payload))
		}
		return sends
	})
}

func serve(answer func(m *guestv1.ToAgent, n int) [][]byte) error {
	c, err := control()
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := c.Write(hello(math.MaxUint32)); err != nil {
		return err
	}
	r := wire.NewReader(bufio.NewReader(c))
	var whole []byte
	for n := 0; ; n++ {
		f, err := r.Read()
		if err != nil {
			return err
		}
		switch f.Type {
		case wire.FramePart:
			whole = append(whole, f.Payload...)
			continue
		case wire.FrameMessage:
			whole = append(whole, f.Payload...)
		default:
			continue
		}
		var m guestv1.ToAgent
		err = proto.Unmarshal(whole, &m)
		whole = nil
		if err != nil {
			return err
		}
		for _, b := range answer(&m, n) {
			if _, err := c.Write(b); err != nil {
				return err
			}
		}
	}
}

// lie answers pings and claims, so that it is kept, and everything else with one falsehood after another.
func lie(m *guestv1.ToAgent, n int) [][]byte {
	done := message(&guestv1.ToNode{ReplyTo: m.Id, Message: &guestv1.ToNode_Done{Done: &guestv1.Done{}}})
	if m.GetPing() != nil || m.GetClaim() != nil {
		return [][]byte{done}
	}
	wrong := []*guestv1.ToNode{
		{ReplyTo: m.Id, Message: &guestv1.ToNode_Stats{Stats: &guestv1.Stats{DiskUsedBytes: -1, Pids: math.MaxInt64}}},
		{ReplyTo: m.Id, Message: &guestv1.ToNode_Problem{Problem: &guestv1.Problem{Reason: "unauthorized", Detail: string(bytes.Repeat([]byte("\x1b[31m<script>"), 4000))}}},
		{ReplyTo: m.Id, Message: &guestv1.ToNode_File{File: &guestv1.FileInfo{Path: "/../../etc/shadow", Name: []byte("../x\x00"), Type: "nonsense", Size: -5, Mode: math.MaxUint32, ModifiedUnixNs: math.MinInt64}}},
		{ReplyTo: m.Id + 1, Message: &guestv1.ToNode_Done{Done: &guestv1.Done{}}},
		{ReplyTo: m.Id, Message: &guestv1.ToNode_Started{Started: &guestv1.Started{Pid: math.MinInt64}}},
		{ReplyTo: m.Id},
	}
	sends := [][]byte{message(wrong[n%len(wrong)])}
	if s := m.GetStart(); s != nil {
		sends = append(sends,
			message(&guestv1.ToNode{ReplyTo: m.Id, Message: &guestv1.ToNode_Started{Started: &guestv1.Started{Pid: 1}}}),
			wire.AppendData(nil, wire.FrameStdout, s.Stream, 0, []byte("forged")),
			wire.AppendData(nil, wire.FrameStdout, s.Stream, 3, []byte("overlapping")),
			message(&guestv1.ToNode{Message: &guestv1.ToNode_Exited{Exited: &guestv1.Exited{ProcessId: s.ProcessId, Code: -1, Produced: math.MaxInt64}}}),
			wire.AppendData(nil, wire.FrameStdout, s.Stream, 6, []byte("after the exit")),
			message(&guestv1.ToNode{Message: &guestv1.ToNode_Exited{Exited: &guestv1.Exited{ProcessId: s.ProcessId, Code: 0, Produced: 0}}}),
		)
	}
	if b := m.GetBulk(); b != nil {
		go badBulk(b)
	}
	return sends
}

// badBulk uses a real token and then breaks the transfer.
func badBulk(b *guestv1.Bulk) {
	c, err := dial()
	if err != nil {
		return
	}
	defer c.Close()
	p := wire.Preamble{Kind: wire.ConnBulk}
	copy(p.Token[:], b.Token)
	if wire.WritePreamble(c, p) != nil {
		return
	}
	header, err := proto.Marshal(&guestv1.BulkHeader{File: &guestv1.FileInfo{Path: "/x", Type: "file", Size: 10}})
	if err != nil {
		return
	}
	_, _ = c.Write(wire.AppendFrame(nil, wire.Frame{Type: wire.FrameHeader, Payload: header}))
	for range 100 { // more than the header promised, and never an end
		if _, err := c.Write(wire.AppendFrame(nil, wire.Frame{Type: wire.FrameData, Payload: make([]byte, wire.MaxFrame)})); err != nil {
			return
		}
	}
}
