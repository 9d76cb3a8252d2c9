package main

import (
	"github.com/cayhq/cay/test/bench/harness"
	"github.com/cayhq/cay/test/bench/peer"
)

// What is promised. "Far ahead" of another exec is read as at most two thirds of its time; "flat memory" as at most 64 MB more.
const (
	execOfAgent     = 1.5
	farAhead        = 2.0 / 3
	bootOfRunsc     = 1.15
	idleMB          = 60.0
	streamMBs       = 100.0
	streamOfRunsc   = 0.5
	flatMB          = 64.0
	streamPromise   = "stream: 100 MB/s, or half of runsc exec where that is less"
	idlePromise     = "memory of an idle sandbox, PSS above an idle server"
	execPromise     = "exec of true through the API beside the agent alone"
	bootPromise     = "cold create to READY beside runsc run to first output"
	overRunsc       = "exec of true through the API beside runsc exec"
	overDocker      = "exec of true through the API beside docker exec"
	codeOfNative    = 1.0
	firstOfExec     = 1.3
	codePromise     = "code print(1) in a warm context beside the machine's own python3 -c"
	firstPromise    = "first code of a new sandbox beside a first exec of python3 -c"
	resumeMS        = 10.0
	resumePromise   = "resume of a paused sandbox, from the call to the answer"
	portsRate       = 1000.0
	portsPromise    = "requests a second through a port's URL, or nine tenths of those without the proxy where that is less"
	portsOfNode     = 0.9
	archiveOfSingle = 10.0
	archivePromise  = "small files in one archive: ten times as many a second as one by one"
	usualOfOff      = 1.03
	usualPromise    = "exec with history and metrics as usual beside one with as little as can be"
	growthPromised  = "growth of memory during a stream: "
)

// targets holds a run against what is promised; groups that were not measured are left out.
func targets(r harness.Report) []harness.Target {
	var all []harness.Target
	if g := r.Group("exec"); len(g.Series) > 0 {
		all = append(all,
			harness.RatioAtMost(execPromise, g, cayAPI, peer.AgentName, execOfAgent),
			harness.RatioAtMost(overRunsc, g, cayAPI, runscExec, farAhead),
			harness.RatioAtMost(overDocker, g, cayAPI, dockerExec, farAhead))
	}
	if g := r.Group("boot"); len(g.Series) > 0 {
		all = append(all, harness.RatioAtMost(bootPromise, g, coldReady, runscRun, bootOfRunsc))
	}
	if g := r.Group("code"); len(g.Series) > 0 {
		all = append(all, harness.RatioAtMost(codePromise, g, codeInContext, peer.NativeName, codeOfNative))
	}
	if g := r.Group("code-first"); len(g.Series) > 0 {
		all = append(all, harness.RatioAtMost(firstPromise, g, firstCode, firstExec, firstOfExec))
	}
	if g := r.Group("pause"); len(g.Series) > 0 {
		value, ok := g.Median(cayResume)
		all = append(all, harness.AtMost(resumePromise, "ms", value, resumeMS, ok))
	}
	if g := r.Group("idle"); len(g.Series) > 0 {
		value, ok := g.Median(idleCay)
		all = append(all, harness.AtMost(idlePromise, "MB", value, idleMB, ok))
	}
	if g := r.Group("stream"); len(g.Series) > 0 {
		value, ok := g.Median(cayWebSocket)
		bound := streamMBs
		if runsc, measured := g.Median(runscExec); measured {
			bound = min(bound, streamOfRunsc*runsc)
		}
		all = append(all, harness.AtLeast(streamPromise, "MB/s", value, bound, ok))
	}
	if g := r.Group("ports"); len(g.Series) > 0 {
		value, ok := g.Median(byURL)
		bound := portsRate
		if node, measured := g.Median(byNode); measured {
			bound = min(bound, portsOfNode*node)
		}
		all = append(all, harness.AtLeast(portsPromise, "requests/s", value, bound, ok))
	}
	if g := r.Group("archive"); len(g.Series) > 0 {
		value, ok := g.Median(byArchive)
		single, measured := g.Median(oneByOne)
		all = append(all, harness.AtLeast(archivePromise, "files/s", value, archiveOfSingle*single, ok && measured))
	}
	if g := r.Group("telemetry"); len(g.Series) > 0 {
		all = append(all, harness.RatioAtMost(usualPromise, g, telemetryUsual, telemetryOff, usualOfOff))
	}
	for _, s := range r.Group(flatGrowth).Series {
		all = append(all, harness.AtMost(growthPromised+s.Name, "MB", s.Max, flatMB, s.N > 0))
	}
	return all
}
